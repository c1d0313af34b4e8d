"""The signature of a Python function: its schemas, and the decoding of arguments and encoding of results."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Never, NoReturn, get_args, get_origin

import msgspec
from msgspec import UNSET

from enfold.errors import DecodeError
from enfold.schema.types import Definitions, Scalar, Shape, engine_msgspec, has_pattern
from enfold.schema.types.annotations import TypeReader, spelled
from enfold.schema.types.callables import (
    Arguments,
    Declaration,
    Injection,
    read_arguments,
    read_callable,
    read_shape,
)
from enfold.schema.types.docstring import parse_docstring
from enfold.schema.types.engine_msgspec import (
    MakeSchema,
    RefusedError,
    refused_by_schema,
    rewritten,
    whole_number,
)

if TYPE_CHECKING:
    from enfold.schema.types.typed_results import Converter


__all__ = ["DecodeError", "Signature", "read_signature"]

Kind = Literal["def", "async", "stream"]

_NULL: Final = Scalar("null")
_STREAMS: Final = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
_SYNC_STREAMS: Final = (abc.Iterator, abc.Generator)


class Signature(msgspec.Struct, frozen=True):
    """What a function accepts and returns; its schemas are created on first use."""

    name: str
    kind: Kind
    engine: Engine
    description: str
    decode: Decode  # from the JSON object of a call to keyword arguments; raises DecodeError
    decode_quickly: Decode  # the fastest variant: input it rejects, also by a RecursionError, may still be valid
    returns: Any  # the return annotation, for a stream that of its items; UNSET where there is none
    values: int  # the number of values returned: 0, 1, or the length of a `tuple[A, B]`
    context_parameter: str | None
    injected: dict[str, Injection]  # the parameters that the runtime fills in, which are not part of the schema
    make_input_schema: MakeSchema
    make_output_schema: MakeSchema
    make_converter: Callable[[], Converter | None]  # of results, if an engine supports their type

    @property
    def input_schema(self) -> dict[str, Any]:
        return self.make_input_schema()

    @property
    def output_schema(self) -> dict[str, Any]:
        return self.make_output_schema()


def read_signature(
    function: Any,
    *,
    engine: Engine = "msgspec",
    context_type: type | None = None,
) -> Signature:
    """Read the signature of a function; raise TypeError if it cannot be served.

    `engine` is tried first. A parameter of `context_type` is left out of the schema.
    """
    declaration = read_callable(function)
    documentation = parse_docstring(declaration.doc)
    arguments = read_arguments(declaration, documentation, context_type)
    result = _read_result(declaration)
    input_schema = cache(partial(_describe_input, arguments))
    chosen, decode, quick = choose_engine(arguments, engine, input_schema)
    return Signature(
        name=declaration.name,
        kind=result.kind,
        engine=chosen,
        description=documentation.text,
        decode=decode,
        decode_quickly=quick,
        returns=result.annotation,
        values=1 if result.kind == "stream" else 0 if result.shape == _NULL else _count_values(result.annotation),
        context_parameter=arguments.context_parameter,
        injected=arguments.injected,
        make_input_schema=input_schema,
        make_output_schema=cache(partial(_describe_result, result, documentation.returns)),
        make_converter=partial(_make_converter, result),
    )


def _describe_input(arguments: Arguments) -> dict[str, Any]:
    from enfold.schema.types.describe import describe

    return describe(arguments.record, arguments.definitions, "input")


def _describe_result(result: _Result, description: str | None) -> dict[str, Any]:
    """Return the schema of the result, with the description from the docstring."""
    from enfold.schema.types.describe import describe

    schema: dict[str, Any] = describe(result.shape, result.definitions, "output")
    is_undescribed = description and schema and "description" not in schema
    return {**schema, "description": description} if is_undescribed else schema


class _Result(msgspec.Struct, frozen=True):
    """The return type of a function and how it runs."""

    kind: Kind
    annotation: Any
    shape: Shape
    definitions: Definitions


def _read_result(declaration: Declaration) -> _Result:
    annotation = declaration.returns
    if annotation is not UNSET:
        annotation = declaration.resolve(annotation, "the return type")
    kind, annotation = _read_stream(declaration, annotation)
    reader = TypeReader(declaration.locals, is_result=True)
    asked = Any if annotation is UNSET else None if annotation in (Never, NoReturn) else annotation
    shape = read_shape(declaration, "the return type", reader, asked)
    if reader.unknown is not None:
        raise TypeError(f"{declaration.name}(): the return type {reader.unknown} is not JSON serializable")
    return _Result(kind, annotation, shape, reader.definitions)


def _make_converter(result: _Result) -> Converter | None:
    from enfold.schema.types.typed_results import result_converter

    return result_converter(result.annotation, result.shape, result.definitions)


def _read_stream(declaration: Declaration, annotation: Any) -> tuple[Kind, Any]:
    """Return how the function runs and the type of its result or items."""
    origin = get_origin(annotation) or annotation
    if declaration.kind == "generator":
        return "stream", _item_of_generator(declaration, annotation, origin)
    if origin in _SYNC_STREAMS:
        raise TypeError(f"{declaration.name}(): to stream, use `yield` instead of returning an iterator")
    if origin in _STREAMS:
        if declaration.kind == "async":
            raise TypeError(
                f"{declaration.name}(): to stream, use `async def` with `yield` instead of returning a stream"
            )
        return "stream", next(iter(get_args(annotation)), Any)
    if declaration.kind == "stream" and annotation is not UNSET:
        raise TypeError(f"{declaration.name}(): annotate a stream as AsyncIterator[...], not {spelled(annotation)}")
    return declaration.kind, annotation


def _item_of_generator(declaration: Declaration, annotation: Any, origin: Any) -> Any:
    """Return the item type of a `def` with `yield`."""
    if annotation is UNSET:
        return Any
    if origin not in (*_SYNC_STREAMS, abc.Iterable):
        raise TypeError(f"{declaration.name}(): annotate a stream as Iterator[...], not {spelled(annotation)}")
    return next(iter(get_args(annotation)), Any)


def _count_values(annotation: Any) -> int:
    if get_origin(annotation) is Annotated:
        return _count_values(get_args(annotation)[0])
    values = get_args(annotation)
    return len(values) if get_origin(annotation) is tuple and values and Ellipsis not in values else 1


Engine = Literal["msgspec", "pydantic"]
Decode = Callable[[dict[str, Any]], dict[str, Any]]


def choose_engine(arguments: Arguments, first: Engine, schema: MakeSchema) -> tuple[Engine, Decode, Decode]:
    """Return the engine that reads the arguments, its decoder, and a faster decoder that may reject valid input."""
    engine, read = _choose_reader(arguments, first, schema)
    if has_pattern(arguments.record, arguments.definitions):
        read = _matching(read, schema)
    decode = _accepting_whole_floats(read, arguments)
    if not arguments.defaults:
        return engine, decode, read
    decode = _filling_in(decode, arguments.defaults)
    return engine, decode, decode


def _choose_reader(arguments: Arguments, first: Engine, schema: MakeSchema) -> tuple[Engine, Decode]:
    beyond = arguments.beyond_msgspec
    if first == "msgspec" and beyond is None:
        try:
            return "msgspec", engine_msgspec.argument_reader(arguments.record, arguments.definitions, schema)
        except (TypeError, NameError):
            beyond = _first_rejected(arguments, engine_msgspec.argument_reader)
    return "pydantic", _pydantic_reader(arguments, schema, beyond or "")


def _pydantic_reader(arguments: Arguments, schema: MakeSchema, beyond_msgspec: str) -> Decode:
    engine = _pydantic(_place(arguments, beyond_msgspec))
    try:
        read: Decode = engine.argument_reader(arguments.record, arguments.definitions, schema)
    except (TypeError, ImportError) as error:
        why = f"{arguments.unknown} is not JSON serializable" if arguments.unknown else error
        raise TypeError(f"{_place(arguments, _first_rejected(arguments, engine.argument_reader))}: {why}") from error
    return read


def _place(arguments: Arguments, parameter: str) -> str:
    return f"{arguments.record.name}(): parameter {parameter!r}"


def _pydantic(where: str) -> Any:
    try:
        from enfold.schema.types import engine_pydantic
    except ImportError as error:
        raise TypeError(f"{where} requires pydantic: pip install pydantic") from error
    return engine_pydantic


def _first_rejected(arguments: Arguments, make_reader: Callable[..., Any]) -> str:
    """Return the first parameter that an engine rejects on its own."""
    for field in arguments.record.fields:
        try:
            make_reader(msgspec.structs.replace(arguments.record, fields=(field,)), arguments.definitions, dict)
        except (TypeError, NameError, ImportError):
            return field.keyword
    return ""


def _matching(read: Decode, schema: MakeSchema) -> Decode:
    """Check patterns with the bounded matcher of `regexp`: `re` can take hours for a short text."""
    from enfold.schema.compiled import compile_schema

    compiled = cache(lambda: compile_schema(schema()))

    def read_matching(data: dict[str, Any]) -> dict[str, Any]:
        value = read(data)
        if compiled().check(data):
            return value
        raise RefusedError(partial(refused_by_schema, data, schema()))

    return read_matching


def _accepting_whole_floats(read: Decode, arguments: Arguments) -> Decode:
    """Accept 1.0 as an integer, since JSON has one number type: rejected data is converted and read again."""

    def decode(data: dict[str, Any]) -> dict[str, Any]:
        try:
            try:
                return read(data)
            except DecodeError:
                whole = rewritten(arguments.record, data, arguments.definitions, whole_number)
                if whole is data:
                    raise
                return read(whole)
        except RecursionError:
            raise DecodeError("", "it is nested too deeply", "constraint") from None

    return decode


def _filling_in(decode: Decode, defaults: dict[str, Callable[[], Any]]) -> Decode:
    def decode_and_fill(data: dict[str, Any]) -> dict[str, Any]:
        given = decode(data)
        return {name: make() for name, make in defaults.items() if name not in given} | given

    return decode_and_fill
