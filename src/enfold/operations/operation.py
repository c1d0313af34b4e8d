"""A spec with its handler, how a function becomes an operation, and the protocols that other packages plug into a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from enfold.operations.context import Context
from enfold.operations.policy import INHERIT, Policy
from enfold.operations.spec import OperationSpec, OperationType, legal_name, read_type

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.errors import CallError
    from enfold.operations.call import Middleware
    from enfold.operations.dependencies import Dependencies
    from enfold.schema.signature import Signature


_COROUTINE: Final = 0x0080  # of the flags of code


class Origin(msgspec.Struct, frozen=True):
    """The source of an operation: its kind (functions, openapi, mcp, calls) and its name."""

    kind: str = "functions"
    name: str = ""


FUNCTIONS: Final = Origin()


class Operation(msgspec.Struct, frozen=True, eq=False):
    """A spec and its handler; the signature of a function determines how its arguments are read.

    Without a signature the handler is called as `handler(input, context)`.
    """

    spec: OperationSpec
    handler: Callable[..., Any] | None
    signature: Signature | None = None
    policy: Policy = INHERIT
    inline: bool = False
    origin: Origin = FUNCTIONS
    middleware: tuple[Middleware, ...] = ()  # around its calls, the outermost first
    dependencies: Dependencies = ()  # what its handler needs beside the arguments

    def __repr__(self) -> str:
        return f"<Operation {self.spec.id} ({self.spec.type.value})>"

    def replace(self, **changes: Any) -> Operation:
        """Return a copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)


def operation_from_function(
    function: Callable[..., Any],
    *,
    type: OperationType | str | None = None,
    namespace: str = "",
    name: str | None = None,
    description: str | None = None,
    inline: bool = False,
    policy: Policy = INHERIT,
    middleware: Iterable[Middleware] = (),
    **fields: Any,
) -> Operation:
    """Turn a function into an operation: schemas from its signature, descriptions from its docstring."""
    function = _checked(function)
    # It reads types: a registry of imported operations needs none of it.
    from enfold.schema.signature import read_signature

    signature = read_signature(function, context_type=Context)
    original = name or function_name(function)
    legal = legal_name(original)
    meta = dict(fields.pop("meta", None) or {})
    if legal != original:
        meta.setdefault("original_name", original)
    is_stream = signature.kind == "stream"
    # Without an explicit type it may change something: do not claim more than was declared.
    unsaid = OperationType.SUBSCRIPTION if is_stream else OperationType.MUTATION
    kind = unsaid if type is None else read_type(type)
    if is_stream and kind is not OperationType.SUBSCRIPTION:
        raise TypeError(f"{original} returns a stream: register it as a subscription")
    spec = OperationSpec(
        namespace=namespace,
        name=legal,
        type=kind,
        description=signature.description if description is None else description,
        input_schema=lambda: signature.input_schema,
        output_schema=lambda: signature.output_schema,
        values=signature.values,
        meta=meta,
        **fields,
    )
    return Operation(
        spec,
        function,
        signature,
        policy,
        inline,
        middleware=checked_middleware(middleware),
        dependencies=_dependencies_of(signature),
    )


def _dependencies_of(signature: Signature) -> Dependencies:
    if not signature.injected:
        return ()
    from enfold.operations.dependencies import read_dependencies  # which few programs need

    return read_dependencies(signature.injected)


def checked_middleware(middleware: Iterable[Any]) -> tuple[Middleware, ...]:
    """Check middleware; raise TypeError for objects that cannot wrap a call."""
    if not isinstance(middleware, Iterable):
        raise TypeError("`middleware` must be a list, as in middleware=[log]")
    whole = tuple(middleware)
    for each in whole:
        check_middleware(each)
    return whole


def check_middleware(middleware: Any) -> None:
    """Refuse at registration what cannot wrap a call."""
    if isinstance(middleware, type):
        raise TypeError(f"{middleware.__name__} is a class: pass an instance of it as middleware")
    if not callable(middleware) or not is_coroutine_function(middleware) or not _takes_two(middleware):
        name = getattr(middleware, "__name__", type(middleware).__name__)
        raise TypeError(
            f"{name} is not a middleware: pass an `async def` with the parameters (call, next), or an object with such a `__call__`"
        )
    if is_coroutine_function(getattr(middleware, "stream", None)):
        name = type(middleware).__name__
        raise TypeError(f"the method stream of {name} has no yield: write `async for item in next(call): yield item`")


def _takes_two(function: Callable[..., Any]) -> bool:
    import inspect  # slow to load, and few programs have middleware

    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a signature that cannot be read
        return True
    return True


def _checked(function: Any) -> Any:
    """Check that a function was decorated or passed; raise a TypeError with advice otherwise."""
    if isinstance(function, staticmethod):
        return function.__func__
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if isinstance(function, type):
        raise TypeError(f"{name} is a class: register a function, or a method of an instance")
    if isinstance(function, str):
        option = "http='GET /path'" if "/" in function else f"name={function!r}"
        raise TypeError(f"{function!r} is a string, not a function: write {option}")
    if isinstance(function, CoroutineType):
        function.close()
        raise TypeError(f"{name} was called: register the function itself, without parentheses")
    if isinstance(function, classmethod) or _takes_self(function):
        method = name.rpartition(".")[2]
        raise TypeError(
            f"{name} is a method without its instance: register a bound method, as in ops.register(instance.{method}), "
            "or move the function out of the class"
        )
    if not callable(function):
        raise TypeError(f"{name} is not a function")
    return function


def _takes_self(function: Any) -> bool:
    """Whether the first parameter stands for an instance, which no caller can give."""
    while (inner := getattr(function, "__wrapped__", None) or _unfilled(function)) is not None:
        function = inner
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__self__") or not code.co_argcount:
        return False
    first = code.co_varnames[0]
    return first in ("self", "cls") and first not in function.__annotations__


def _unfilled(function: Any) -> Any:
    """Return the function of a `functools.partial` without positional arguments."""
    return function.func if hasattr(function, "func") and not getattr(function, "args", True) else None


def function_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None)
    if name is None or name == "<lambda>":
        raise TypeError(f"{function!r} has no name: pass name=...")
    return str(name)


def is_coroutine_function(handler: Any) -> bool:
    """Whether calling it returns a coroutine, without importing `inspect`, which is slow."""
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code is not None and bool(code.co_flags & _COROUTINE)


class RecordedRun(Protocol):
    """One run that is being recorded: nested calls have it as their parent, and it receives the outcome."""

    def nested(self) -> RecordedRun: ...

    @property
    def run_id(self) -> str: ...

    @property
    def is_kept(self) -> bool: ...

    async def keep_success(
        self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any], *, inline: bool = False
    ) -> ResponseEnvelope[Any]: ...

    async def keep_failure(
        self, spec: OperationSpec, input: Any, error: CallError, *, inline: bool = False
    ) -> dict[str, Any] | None: ...

    def request(self) -> dict[str, Any]: ...

    def wishes(self) -> dict[str, Any] | None: ...

    def recorded_elsewhere(self, wire: dict[str, Any] | None) -> None: ...

    def adopt(self, wire: Any) -> None: ...


class RunningTask(Protocol):
    """The task that a handler runs for, as the handler sees it."""

    @property
    def id(self) -> str:
        """The same in every attempt: who hands it to another system as its key has the effect there once."""

    @property
    def attempt(self) -> int:
        """How often the handler has been started for this task, this time included."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """What earlier attempts have noted."""

    @property
    def is_left(self) -> bool:
        """Whether the task continues without this attempt: its worker stops, it is another's, or it waits for an answer."""

    async def note(self, key: str, value: Any) -> None:
        """Keep a JSON value for later attempts; it is stored when this returns."""
