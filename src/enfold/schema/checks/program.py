"""Python functions generated as source: indented lines, and a program whose functions are compiled on demand.

Nothing from a schema becomes an identifier: strings are literals through `repr`, other values are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any, Final

# Lines that a generated function may have before the rest moves into separate functions.
_LONG: Final = 3_000
# CPython allows 20 nested blocks; one level of a value takes up to three.
_DEEP: Final = 7
_SHORT: Final = 4_000
# Levels of a schema written into one function; the writers recurse once per level.
_NESTED: Final = 5


class Function:
    """One function being generated. Its statements return False where the value is invalid."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.parameters = ""  # in addition to the value
        self.ending = "return True"
        self.may_raise_key_error = False  # whether a lookup inside may raise KeyError
        self._depth = 0
        self._nested = 0
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def reject_unless(self, condition: str) -> None:
        if condition != "True":
            self.line(f"if not ({condition}): return False")

    def reject_if(self, condition: str) -> None:
        self.line(f"if {condition}: return False")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Open an indented block; an empty one is removed."""
        self.line(head)
        before = len(self.lines)
        self._depth += 1
        yield
        self._depth -= 1
        if len(self.lines) == before:
            self.lines.pop()

    @contextmanager
    def level(self) -> Iterator[None]:
        """Enter another level of the schema within this function."""
        self._nested += 1
        yield
        self._nested -= 1

    @property
    def fits_inline(self) -> bool:
        return self._depth < _DEEP and self._nested < _NESTED and len(self.lines) < _LONG

    def new_local(self) -> str:
        """Return an unused local name."""
        self._names += 1
        return f"x{self._names}"

    def text(self) -> str:
        lines = [*self.lines, self.ending]
        if self.may_raise_key_error:
            lines = ["try:", *(f"    {line}" for line in lines), "except KeyError:", "    return False"]
        body = "\n".join(f"    {line}" for line in lines)
        defaults = "".join(f", {name}=None" for name in self.defaults())  # the values are set on the function
        return f"def f(v{self.parameters}{defaults}):\n{body}\n"

    def defaults(self) -> dict[str, Any]:
        """Return the default arguments: no memo, and in functions with loops the types, as faster local names."""
        return _IN_LOOPS if any(line.lstrip().startswith("for ") for line in self.lines) else _NO_MEMO


Write = Callable[[Function], None]


# Results by function and value identity. Each holds a reference to its value so that the identity stays unique.
CheckMemo = dict[tuple[str, int], tuple[bool, Any]]


# Wraps a function so that its results are memoized.
Memoize = Callable[[Callable[..., bool]], Callable[..., bool]]


class Program:
    """The functions of one schema. A function is generated and compiled on its first call."""

    def __init__(self, *, memoizes: bool, tools: dict[str, Any]) -> None:
        self.memoizes: Final = memoizes
        self.memo_argument: Final = ", m" if memoizes else ""  # passes the memo on
        self.namespace: Final[dict[str, Any]] = {**tools, "__builtins__": _BUILTINS}
        self._waiting: dict[str, tuple[Write, Memoize | None]] = {}  # functions not called yet
        self._constants: dict[int, str] = {}
        self._kept: list[Any] = []
        self._numbers = count()

    def number(self) -> int:
        """Return a number that is unique within this program, across threads."""
        return next(self._numbers)

    def constant(self, value: Any) -> str:
        """Return the name of a constant that holds this object."""
        name = self._constants.get(id(value))
        if name is None:
            name = f"K{self.number()}"
            self._kept.append(value)  # keeps the id unique
            self.namespace[name] = value
            self._constants[id(value)] = name
        return name

    def literal(self, value: Any) -> str:
        """Return a value as source: strings and small integers as literals, anything else as a constant."""
        if type(value) is str or (type(value) is int and abs(value) < 1 << 62):
            return repr(value)
        return self.constant(value)

    def declare(self, name: str, write: Write, memoize: Memoize | None = None) -> None:
        """Declare a function; it is generated on its first call."""
        if name in self.namespace:
            return
        self._waiting[name] = write, memoize

        def compile_and_call(*arguments: Any) -> Any:
            self._compile(name)
            return self.namespace[name](*arguments)

        self.namespace[name] = compile_and_call

    def call(self, name: str, variable: str) -> str:
        return f"{name}({variable}{self.memo_argument})"

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that takes the value and the memo, which is None where results are not memoized."""
        self._compile(name)
        return self.namespace[name]  # type: ignore[no-any-return]  # generated

    def standalone(self, name: str) -> Callable[[Any], Any]:
        """Return a function that takes the value alone."""
        function = self.function(name)
        return (lambda value: function(value, CheckMemo())) if self.memoizes else function

    def _compile(self, name: str) -> None:
        waiting = self._waiting.get(name)
        if waiting is None:
            return
        write, memoize = waiting
        writing = Function(self)
        write(writing)
        # A copy of the code: the interpreter specializes code to its globals, and those differ.
        code, defaults = _code(writing.text()).replace(co_name=name), tuple(writing.defaults().values())
        function: Callable[..., Any] = FunctionType(code, self.namespace, name, defaults)
        self.namespace[name] = memoize(function) if self.memoizes and memoize is not None else function
        self._waiting.pop(name, None)


_TYPES: Final = {"type": type, "dict": dict, "list": list, "str": str, "int": int, "float": float, "bool": bool}
_NO_MEMO: Final = {"m": None}
_IN_LOOPS: Final = {**_NO_MEMO, **_TYPES}
_BUILTINS: Final = {**_TYPES, "len": len, "id": id, "KeyError": KeyError}


def _code(text: str) -> CodeType:
    # Short functions recur across schemas; long ones rarely do.
    return _compiled(text) if len(text) < _SHORT else _compiled.__wrapped__(text)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    module = compile(text, "<schema>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def memoizing(name: str, provisional: bool | None) -> Memoize:
    """Return a wrapper that memoizes results under this name; `provisional` is the result while the check is running."""

    def memoize(function: Callable[..., bool]) -> Callable[..., bool]:
        def memoized(value: Any, memo: CheckMemo) -> bool:
            key = (name, id(value))
            known = memo.get(key)
            if known is None:
                if provisional is not None:
                    memo[key] = provisional, value
                answer = function(value, memo)
                memo[key] = answer, value
                return answer
            return known[0]

        return memoized

    return memoize
