"""The parameters of a function as one record: names, shapes, defaults, and which of them is the context."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import UNSET

from enfold.schema.types.annotations import TypeReader, spelled
from enfold.schema.types.callables import Declaration, FunctionParameter
from enfold.schema.types.docstring import Docstring
from enfold.schema.types.shapes import Anything, Definitions, Either, Field, Noted, RecordShape, Scalar, Shape
from enfold.schema.types.value_limits import field_alias, field_default, is_field, known_default

_NULL: Final = Scalar("null")


class Arguments(msgspec.Struct, frozen=True):
    """The parameters of a function as one record, the types it names, and what decides which engine reads it."""

    record: RecordShape
    definitions: Definitions
    context_parameter: str | None
    beyond_msgspec: str | None  # the first parameter that msgspec cannot read
    unknown: str | None  # a class that neither msgspec nor pydantic may know
    defaults: dict[str, Callable[[], Any]]  # those that a pydantic `Field` holds, unknown to the function itself


def read_arguments(declaration: Declaration, documentation: Docstring, context_type: type | None) -> Arguments:
    reader = TypeReader(declaration.locals)
    fields: list[Field] = []
    context_parameter: str | None = None
    beyond: str | None = None
    defaults: dict[str, Callable[[], Any]] = {}
    for parameter in declaration.parameters:
        annotation = _resolve_parameter(declaration, parameter, context_type)
        if _is_context(annotation, context_type):
            if context_parameter is not None:
                both = f"{context_parameter!r} and {parameter.name!r}"
                raise TypeError(f"{declaration.name}(): {both} both ask for the context, and there is one")
            context_parameter = parameter.name
            continue
        annotation, default = _field_as_metadata(annotation, parameter.default)
        shape = read_shape(declaration, f"parameter {parameter.name!r}", reader, annotation)
        fields.append(
            _make_field(FunctionParameter(parameter.name, annotation, default), shape, documentation, defaults)
        )
        if reader.needs_pydantic and beyond is None:
            beyond = parameter.name
    record = RecordShape(None, declaration.name, tuple(fields), dict, is_closed=True)
    return Arguments(record, reader.definitions, context_parameter, beyond, reader.unknown, defaults)


def _resolve_parameter(declaration: Declaration, parameter: FunctionParameter, context_type: type | None) -> Any:
    annotation = parameter.annotation
    try:
        return declaration.resolve(annotation, f"parameter {parameter.name!r}") if annotation is not UNSET else Any
    except TypeError:
        # The context is often imported for the type checker only, so its name has to do.
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
    """A pydantic `Field` that stands as the default says what one inside `Annotated` says."""
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
    """A default of None says that None is a value, whatever the annotation says."""
    if isinstance(shape, Noted):
        return Noted(_or_null(shape.shape), shape.notes)
    members = shape.members if isinstance(shape, Either) else (shape,)
    return shape if _NULL in members or Anything() in members else Either((*members, _NULL))


def read_shape(declaration: Declaration, where: str, reader: TypeReader, annotation: Any) -> Shape:
    try:
        return reader.read(annotation)
    except NameError as error:
        raise TypeError(
            f"{declaration.name}(): {where}: the name {error.name!r} in {spelled(annotation)} cannot be found"
        ) from error
    except TypeError as error:
        raise TypeError(f"{declaration.name}(): {where}: {error}") from error
