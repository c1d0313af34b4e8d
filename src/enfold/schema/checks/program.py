"""Python functions written as text: lines with their indentation, and a program whose functions are compiled on demand.

Nothing of a schema ever becomes a name: its words are literals through `repr`, its other values constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any, Final

import msgspec

# A generated function may hold so many lines before the rest moves into functions of its own.
_LONG: Final = 3_000
# CPython allows twenty nested blocks; one level of a value takes up to three.
_DEEP: Final = 7
_SHORT: Final = 4_000
# The writers call each other once per level that stays inside one function.
_NESTED: Final = 5


class Function:
    """One function being written. Its statements return False where the value does not fit."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.parameters = ""  # beside the value
        self.ending = "return True"
        self.may_raise_key_error = False  # whether a missing key may raise inside
        self._depth = 0
        self._nested = 0
        self._names = 0
        self._keys: dict[int, str] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def refuse_unless(self, condition: str) -> None:
        if condition != "True":
            self.line(f"if not ({condition}): return False")

    def refuse_if(self, condition: str) -> None:
        self.line(f"if {condition}: return False")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block; one that stays empty is taken back."""
        self.line(head)
        before = len(self.lines)
        self._depth += 1
        yield
        self._depth -= 1
        if len(self.lines) == before:
            self.lines.pop()

    @contextmanager
    def level(self) -> Iterator[None]:
        """One more level of the schema inside this function."""
        self._nested += 1
        yield
        self._nested -= 1

    @property
    def has_room(self) -> bool:
        return self._depth < _DEEP and self._nested < _NESTED and len(self.lines) < _LONG

    def new_local(self) -> str:
        """A local name that nobody uses yet."""
        self._names += 1
        return f"x{self._names}"

    def key(self, names: list[str]) -> str:
        """The local name that stands for each of these names in a loop over them."""
        return self._keys.setdefault(id(names), f"k{len(self._keys)}")

    def text(self) -> str:
        lines = [*self.lines, self.ending]
        if self.may_raise_key_error:
            lines = ["try:", *(f"    {line}" for line in lines), "except KeyError:", "    return False"]
        body = "\n".join(f"    {line}" for line in lines)
        defaults = "".join(f", {name}=None" for name in self.defaults())  # the values come with the function
        return f"def f(v{self.parameters}{defaults}):\n{body}\n"

    def defaults(self) -> dict[str, Any]:
        """What is passed by default: no answers, and in a loop, where it pays to have them as local names, the types."""
        return _IN_LOOPS if any(line.lstrip().startswith("for ") for line in self.lines) else _NO_ANSWERS


Write = Callable[[Function], None]


class StepsLeft(msgspec.Struct):
    """What may still be tried."""

    count: int


class CheckResults(dict[tuple[str, int], tuple[bool, Any]]):
    """Answers by function and identity of the value; each is kept with its value, so that no other takes its identity.

    Repairs that are run for an answer share `steps_left`, set by the first that tries a variant. How many there are
    depends on the size of `outermost_value`, the one that the first repair was given.
    """

    steps_left: StepsLeft | None = None
    outermost_value: tuple[Any] | None = None


# Makes of a function one that remembers its answers.
Remember = Callable[[Callable[..., bool]], Callable[..., bool]]


class Program:
    """The functions of one schema. A function is written and compiled when it is first called."""

    def __init__(self, *, remembers: bool, tools: dict[str, Any]) -> None:
        self.remembers: Final = remembers
        self.passed_answers: Final = ", m" if remembers else ""  # the answers so far, passed on
        self.namespace: Final[dict[str, Any]] = {**tools, "__builtins__": _BUILTINS}
        self._waiting: dict[str, tuple[Write, Remember | None]] = {}  # functions that nobody has called yet
        self._constants: dict[int, str] = {}
        self._kept: list[Any] = []
        self._numbers = count()

    def number(self) -> int:
        """A number that this program has not given out before, whichever thread asks."""
        return next(self._numbers)

    def constant(self, value: Any) -> str:
        """The name of a constant that holds this object."""
        name = self._constants.get(id(value))
        if name is None:
            name = f"K{self.number()}"
            self._kept.append(value)  # as long as it lives, nothing else gets its id
            self.namespace[name] = value
            self._constants[id(value)] = name
        return name

    def literal(self, value: Any) -> str:
        """A value as source: a word or a small number as such, anything else as a constant."""
        if type(value) is str or (type(value) is int and abs(value) < 1 << 62):
            return repr(value)
        return self.constant(value)

    def declare(self, name: str, write: Write, remember: Remember | None = None) -> None:
        """Make a function known; it is written when it is first called."""
        if name in self.namespace:
            return
        self._waiting[name] = write, remember

        def compile_and_call(*arguments: Any) -> Any:
            self._compile(name)
            return self.namespace[name](*arguments)

        self.namespace[name] = compile_and_call

    def call(self, name: str, variable: str) -> str:
        return f"{name}({variable}{self.passed_answers})"

    def function(self, name: str) -> Callable[..., Any]:
        """A function itself, called with the value and the answers so far, which are None where none are kept."""
        self._compile(name)
        return self.namespace[name]  # type: ignore[no-any-return]  # generated

    def standalone(self, name: str) -> Callable[[Any], Any]:
        """A function to be called with the value alone."""
        function = self.function(name)
        return (lambda value: function(value, CheckResults())) if self.remembers else function

    def _compile(self, name: str) -> None:
        waiting = self._waiting.get(name)
        if waiting is None:
            return
        write, remember = waiting
        writing = Function(self)
        write(writing)
        # A copy of the code: the interpreter tunes code to the names around it, and those differ.
        code, defaults = _code(writing.text()).replace(co_name=name), tuple(writing.defaults().values())
        function: Callable[..., Any] = FunctionType(code, self.namespace, name, defaults)
        self.namespace[name] = remember(function) if self.remembers and remember is not None else function
        self._waiting.pop(name, None)


_TYPES: Final = {"type": type, "dict": dict, "list": list, "str": str, "int": int, "float": float, "bool": bool}
_NO_ANSWERS: Final = {"m": None}
_IN_LOOPS: Final = {**_NO_ANSWERS, **_TYPES}
_BUILTINS: Final = {**_TYPES, "len": len, "id": id, "KeyError": KeyError}


def _code(text: str) -> CodeType:
    # Schemas repeat themselves, in large and small; a long function is unlikely to come again.
    return _compiled(text) if len(text) < _SHORT else _compiled.__wrapped__(text)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    module = compile(text, "<schema>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def remembering(name: str, provisional: bool | None) -> Remember:
    """Lets a function of this name remember its answers; `provisional` is its answer while one is still being found."""

    def remember(function: Callable[..., bool]) -> Callable[..., bool]:
        def remembered(value: Any, answers: CheckResults) -> bool:
            key = (name, id(value))
            known = answers.get(key)
            if known is None:
                if provisional is not None:
                    answers[key] = provisional, value
                answer = function(value, answers)
                answers[key] = answer, value
                return answer
            return known[0]

        return remembered

    return remember
