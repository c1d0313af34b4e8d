"""Reads callables: parameters, return type and kind."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET

from enfold.schema.types import (
    Anything,
    Definitions,
    Either,
    Field,
    Injected,
    Noted,
    RecordShape,
    Scalar,
    Shape,
    field_alias,
    field_default,
    is_field,
    known_default,
)
from enfold.schema.types.annotations import TypeReader, injected_in, marks_of, resolve, spelled
from enfold.schema.types.docstring import Docstring

Kind = Literal["def", "async", "stream", "generator"]


class FunctionParameter(msgspec.Struct, frozen=True):
    """One parameter that can be passed by name; `annotation` is unevaluated."""

    name: str
    annotation: Any = UNSET
    default: Any = UNSET


class Declaration(msgspec.Struct, frozen=True):
    """The declaration of a callable and the namespaces of its annotations."""

    name: str
    kind: Kind
    parameters: tuple[FunctionParameter, ...]
    returns: Any
    doc: str | None
    globals: Mapping[str, Any]
    locals: Mapping[str, Any]

    def resolve(self, annotation: Any, where: str) -> Any:
        """Evaluate an annotation; raise TypeError with the name that is not defined."""
        try:
            return resolve(annotation, self.globals, self.locals)
        except NameError as error:
            missing = error.name or str(error)
            raise TypeError(f"{self.name}(): {where}: the name {missing!r} in the annotation is not defined") from error
        except Exception as error:
            raise TypeError(f"{self.name}(): {where}: the annotation {annotation!r} cannot be read: {error}") from error


class Injection(msgspec.Struct, frozen=True):
    """A parameter that the runtime fills in: its mark, and its annotation with it."""

    mark: Injected
    annotation: Any


class FilledParameters(msgspec.Struct, frozen=True):
    """The parameters of a function that the runtime calls, all of which it fills in, and how the function runs."""

    name: str
    kind: Kind
    context_parameter: str | None
    injected: dict[str, Injection]


def read_filled_parameters(function: Any, context_type: type) -> FilledParameters:
    """Read a function whose arguments come from the runtime; raise TypeError for a parameter that nothing fills in."""
    declaration = read_callable(function, skips_variable=True)
    context_parameter: str | None = None
    injected: dict[str, Injection] = {}
    for parameter in declaration.parameters:
        try:
            annotation = _resolve_parameter(declaration, parameter, context_type)
        except TypeError:
            if parameter.default is UNSET:
                raise
            continue
        _refuse_marks(declaration, parameter, annotation)
        if (mark := injected_in(annotation)) is not None:
            injected[parameter.name] = Injection(mark, annotation)
        elif context_parameter is None and _is_context(annotation, context_type):
            context_parameter = parameter.name
        elif parameter.default is UNSET:
            raise TypeError(
                f"{declaration.name}(): nothing provides the parameter {parameter.name!r} of a dependency: annotate it as "
                "Context or Annotated[..., Depends(...)], or give it a default"
            )
    return FilledParameters(declaration.name, declaration.kind, context_parameter, injected)


# Frameworks whose marks are easily imported by mistake: a parameter that they would fill in must not become an argument.
_OTHERS: Final = {"fastapi": "FastAPI", "fastmcp": "FastMCP", "uncalled_for": "FastMCP"}


def _refuse_marks(declaration: Declaration, parameter: FunctionParameter, annotation: Any) -> None:
    """Refuse a mark that is the default of a parameter, and one that another framework would read."""
    where = f"{declaration.name}(): parameter {parameter.name!r} has"
    for mark in (parameter.default, *marks_of(annotation)):
        kind, other = type(mark).__name__.strip("_"), _OTHERS.get(type(mark).__module__.partition(".")[0])
        if other is not None and kind in ("Depends", "Security"):
            raise TypeError(f"{where} {kind} of {other}: write {parameter.name}: Annotated[T, enfold.Depends(...)]")
        if other is not None:
            advice = "leave it out, or use pydantic.Field for constraints"
            raise TypeError(f"{where} {kind} of {other}, which Enfold does not read: {advice}")
    if isinstance(parameter.default, Injected):
        type_ = "T" if parameter.annotation is UNSET else _spelled(parameter.annotation)
        mark = type(parameter.default).__name__
        raise TypeError(f"{where} {mark}(...) as its default: write {parameter.name}: Annotated[{type_}, {mark}(...)]")


def _spelled(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else spelled(annotation)


def read_callable(function: Any, *, skips_variable: bool = False) -> Declaration:
    """Read a function, method, partial, class or callable object; raise TypeError if it cannot be served.

    With `skips_variable`, `*args` and `**kwargs` are left out instead of refused.
    """
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    outer = _unpartial(function)
    name = getattr(outer, "__name__", type(outer).__name__)
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{name}(): its signature cannot be read") from error
    except NameError as error:  # Python 3.14 evaluates annotations on access
        raise TypeError(f"{name}(): the name {error.name!r} in an annotation is not defined") from error
    parameters = tuple(
        _read_parameter(name, parameter)
        for parameter in signature.parameters.values()
        if not (skips_variable and parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD))
    )
    plain = _find_code(inspect.unwrap(outer))
    is_named = isinstance(outer, types.FunctionType | types.MethodType | type)
    return Declaration(
        name,
        _kind(outer, plain),
        parameters,
        UNSET if signature.return_annotation is signature.empty else signature.return_annotation,
        outer.__doc__ if is_named else getattr(plain, "__doc__", None) or outer.__doc__,
        getattr(plain, "__globals__", {}),
        {} if plain is None else _local_names(plain, outer),
    )


def _unpartial(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _read_parameter(name: str, parameter: inspect.Parameter) -> FunctionParameter:
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise TypeError(f"{name}(): *{parameter.name} cannot be passed by name; declare the parameters")
    if parameter.kind is parameter.VAR_KEYWORD:
        raise TypeError(f"{name}(): **{parameter.name} has no schema; declare the parameters")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(f"{name}(): parameter {parameter.name!r} is positional-only; arguments are passed by name")
    annotation, default = (
        UNSET if each is parameter.empty else each for each in (parameter.annotation, parameter.default)
    )
    return FunctionParameter(parameter.name, annotation, default)


def _find_code(function: Any) -> types.FunctionType | None:
    """Return the plain function behind a method or callable object."""
    if isinstance(function, types.FunctionType):
        return function
    if isinstance(function, types.MethodType):
        return _find_code(inspect.unwrap(function.__func__))
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is wanted
    return call if isinstance(call, types.FunctionType) and not isinstance(function, type) else None


def _local_names(function: types.FunctionType, outer: Any) -> dict[str, Any]:
    """Return the names that annotations may use in addition to globals: type parameters, enclosing functions' locals."""
    own = {each.__name__: each for each in getattr(function, "__type_params__", ())}
    if outer is not function:
        owner = getattr(outer, "__self__", outer)  # of a method, or the callable object
        for cls in (owner if isinstance(owner, type) else type(owner)).__mro__:
            own = {each.__name__: each for each in getattr(cls, "__parameters__", ())} | own
    if "<locals>" not in function.__qualname__:
        return own
    return _names_of_callers(function.__globals__) | _closure(function) | own


def _closure(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # still empty
            continue
    return found


def _names_of_callers(globals_: dict[str, Any]) -> dict[str, Any]:
    """Return the locals of calling frames of the same module: a decorator runs where local classes are defined."""
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is globals_ and frame.f_locals is not globals_:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _kind(outer: Any, inner: Any) -> Kind:
    """Return how a call runs: by the outer function, unless it is a plain `def` around the inner one."""
    kind = _kind_of_code(_find_code(outer))
    return _kind_of_code(inner) if kind == "def" else kind


def _kind_of_code(function: types.FunctionType | None) -> Kind:
    flags = 0 if function is None else function.__code__.co_flags
    if flags & inspect.CO_ASYNC_GENERATOR:
        return "stream"
    if flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
        return "async"
    return "generator" if flags & inspect.CO_GENERATOR else "def"


_NULL: Final = Scalar("null")


class Arguments(msgspec.Struct, frozen=True):
    """The parameters of a function as one record, the types it names, and what determines the engine."""

    record: RecordShape
    definitions: Definitions
    context_parameter: str | None
    injected: dict[str, Injection]
    beyond_msgspec: str | None  # the first parameter that msgspec does not support
    unknown: str | None  # a class that neither engine may support
    defaults: dict[str, Callable[[], Any]]  # from pydantic `Field`s, unknown to the function itself


def read_arguments(declaration: Declaration, documentation: Docstring, context_type: type | None) -> Arguments:
    reader = TypeReader(declaration.locals)
    fields: list[Field] = []
    context_parameter: str | None = None
    injected: dict[str, Injection] = {}
    beyond: str | None = None
    defaults: dict[str, Callable[[], Any]] = {}
    for parameter in declaration.parameters:
        annotation = _resolve_parameter(declaration, parameter, context_type)
        if _is_context(annotation, context_type):
            if context_parameter is not None:
                both = f"{context_parameter!r} and {parameter.name!r}"
                raise TypeError(f"{declaration.name}(): {both} both request the context; declare one")
            context_parameter = parameter.name
            continue
        _refuse_marks(declaration, parameter, annotation)
        if (mark := injected_in(annotation)) is not None:
            injected[parameter.name] = Injection(mark, annotation)
            continue
        annotation, default = _field_as_metadata(annotation, parameter.default)
        shape = read_shape(declaration, f"parameter {parameter.name!r}", reader, annotation)
        fields.append(
            _make_field(FunctionParameter(parameter.name, annotation, default), shape, documentation, defaults)
        )
        if reader.needs_pydantic and beyond is None:
            beyond = parameter.name
    record = RecordShape(None, declaration.name, tuple(fields), dict, is_closed=True)
    return Arguments(record, reader.definitions, context_parameter, injected, beyond, reader.unknown, defaults)


def _resolve_parameter(declaration: Declaration, parameter: FunctionParameter, context_type: type | None) -> Any:
    annotation = parameter.annotation
    try:
        return declaration.resolve(annotation, f"parameter {parameter.name!r}") if annotation is not UNSET else Any
    except TypeError:
        # The context is often imported under TYPE_CHECKING, so its name is enough.
        if context_type is not None and isinstance(annotation, str):
            names = {name.split(".")[-1] for name in re.findall(r"[\w.]+", annotation)}
            if context_type.__name__ in names and names <= {context_type.__name__, "None", "Optional"}:
                return context_type
        raise


def _is_context(annotation: Any, context_type: type | None) -> bool:
    if context_type is None:
        return False
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, context_type)
    if get_origin(annotation) not in (Annotated, Union, types.UnionType):
        return False
    return any(_is_context(part, context_type) for part in get_args(annotation))


def _field_as_metadata(annotation: Any, default: Any) -> tuple[Any, Any]:
    """Treat a pydantic `Field` used as the default like one inside `Annotated`."""
    return (Annotated[annotation, default], UNSET) if is_field(default) else (annotation, default)


def _field_in(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return None
    return next((item for item in get_args(annotation)[1:] if is_field(item)), None)


def _make_field(
    parameter: FunctionParameter, shape: Shape, documentation: Docstring, defaults: dict[str, Callable[[], Any]]
) -> Field:
    name, default, field = parameter.name, parameter.default, _field_in(parameter.annotation)
    required = default is UNSET
    if required and field is not None and (make_default := field_default(field)) is not None:
        defaults[name] = make_default
        default, required = known_default(field), False
    return Field(
        (field is not None and field_alias(field)) or name,
        name,
        _or_null(shape) if default is None else shape,
        required,
        default,
        documentation.parameters.get(name),
    )


def _or_null(shape: Shape) -> Shape:
    """Allow null for a parameter whose default is None."""
    if isinstance(shape, Noted):
        return Noted(_or_null(shape.shape), shape.notes)
    members = shape.members if isinstance(shape, Either) else (shape,)
    return shape if _NULL in members or Anything() in members else Either((*members, _NULL))


def read_shape(declaration: Declaration, where: str, reader: TypeReader, annotation: Any) -> Shape:
    try:
        return reader.read(annotation)
    except NameError as error:
        raise TypeError(
            f"{declaration.name}(): {where}: the name {error.name!r} in {spelled(annotation)} is not defined"
        ) from error
    except TypeError as error:
        raise TypeError(f"{declaration.name}(): {where}: {error}") from error
