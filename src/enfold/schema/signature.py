"""A Python function as an operation sees it: its schemas, and how its arguments and results cross to JSON and back."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Never, NoReturn, get_args, get_origin

import msgspec
from msgspec import UNSET

from enfold.errors import DecodeError
from enfold.schema.types.annotations import TypeReader, spelled
from enfold.schema.types.callables import Declaration, read_callable
from enfold.schema.types.decoding import MakeSchema
from enfold.schema.types.docstring import parse_docstring
from enfold.schema.types.engines import Decode, Engine, as_type, choose_engine
from enfold.schema.types.function_parameters import Arguments, read_arguments, read_shape
from enfold.schema.types.shapes import Definitions, Scalar, Shape

if TYPE_CHECKING:
    from enfold.schema.types.typed_results import Converter

__all__ = ["DecodeError", "Signature", "as_type", "read_signature"]

Kind = Literal["def", "async", "stream"]

_NULL: Final = Scalar("null")
_STREAMS: Final = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
_SYNC_STREAMS: Final = (abc.Iterator, abc.Generator)


class Signature(msgspec.Struct, frozen=True):
    """What a function takes and gives; its schemas are made when they are first asked for."""

    name: str
    kind: Kind
    engine: Engine
    description: str
    decode: Decode  # the JSON object of a call to keyword arguments; raises DecodeError
    decode_quickly: Decode  # the same at its fastest: what it refuses, also by a RecursionError, may still be right
    returns: Any  # the return annotation, UNSET where there is none; of a stream, that of its items
    values: int  # how many the function gives: none (0), one, or those of a `tuple[A, B]`
    context_parameter: str | None
    make_input_schema: MakeSchema
    make_output_schema: MakeSchema
    make_converter: Callable[[], Converter | None]  # of results, by the engine that knows their type, if one does

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
    """Read a function; a TypeError says, in one sentence, what about it cannot be served.

    `engine` is the first to be tried. A parameter of `context_type` is left out of the schema.
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
        make_input_schema=input_schema,
        make_output_schema=cache(partial(_describe_result, result, documentation.returns)),
        make_converter=partial(_make_converter, result),
    )


def _describe_input(arguments: Arguments) -> dict[str, Any]:
    from enfold.schema.types.describe import describe  # with the first schema, here and below

    return describe(arguments.record, arguments.definitions, "input")


def _describe_result(result: _Result, words: str | None) -> dict[str, Any]:
    """The schema of what a function gives, with what its docstring says of it."""
    from enfold.schema.types.describe import describe

    schema: dict[str, Any] = describe(result.shape, result.definitions, "output")
    return {**schema, "description": words} if words and schema and "description" not in schema else schema


class _Result(msgspec.Struct, frozen=True):
    """What a function gives, and how."""

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
        raise TypeError(f"{declaration.name}(): the return type {reader.unknown} has no form in JSON")
    return _Result(kind, annotation, shape, reader.definitions)


def _make_converter(result: _Result) -> Converter | None:
    from enfold.schema.types.typed_results import result_converter

    return result_converter(result.annotation, result.shape, result.definitions)


def _read_stream(declaration: Declaration, annotation: Any) -> tuple[Kind, Any]:
    """How the function runs, and what it gives each time."""
    origin = get_origin(annotation) or annotation
    if declaration.kind == "generator":
        return "stream", _item_of_generator(declaration, annotation, origin)
    if origin in _SYNC_STREAMS:
        raise TypeError(f"{declaration.name}(): a stream is a function with `yield`, not one that returns an iterator")
    if origin in _STREAMS:
        if declaration.kind == "async":
            raise TypeError(f"{declaration.name}(): a stream is an `async def` with `yield`, not one that returns it")
        return "stream", next(iter(get_args(annotation)), Any)
    if declaration.kind == "stream" and annotation is not UNSET:
        raise TypeError(f"{declaration.name}(): a stream returns AsyncIterator[...], not {spelled(annotation)}")
    return declaration.kind, annotation


def _item_of_generator(declaration: Declaration, annotation: Any, origin: Any) -> Any:
    """What a `def` with `yield` gives each time."""
    if annotation is UNSET:
        return Any
    if origin not in (*_SYNC_STREAMS, abc.Iterable):
        raise TypeError(f"{declaration.name}(): a stream returns Iterator[...], not {spelled(annotation)}")
    return next(iter(get_args(annotation)), Any)


def _count_values(annotation: Any) -> int:
    if get_origin(annotation) is Annotated:
        return _count_values(get_args(annotation)[0])
    values = get_args(annotation)
    return len(values) if get_origin(annotation) is tuple and values and Ellipsis not in values else 1
