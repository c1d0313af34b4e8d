"""Which engine reads a type, and what both leave to us: defaults that a `Field` holds, and 1.0 taken for an integer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from enfold.errors import DecodeError
from enfold.schema.types import engine_msgspec
from enfold.schema.types.annotations import TypeReader, spelled
from enfold.schema.types.decoding import MakeSchema, Read, rewritten, whole_number
from enfold.schema.types.function_parameters import Arguments
from enfold.schema.types.shapes import Definitions, Part, Shape, has_pattern

if TYPE_CHECKING:
    from enfold.schema.check import Schema

Engine = Literal["msgspec", "pydantic"]
Decode = Callable[[dict[str, Any]], dict[str, Any]]
T = TypeVar("T")


def choose_engine(arguments: Arguments, first: Engine, schema: MakeSchema) -> tuple[Engine, Decode, Decode]:
    """The engine that reads the arguments: pydantic where msgspec cannot, or where it comes first; and two readers.

    The second reader is the first at its fastest: what it refuses may still be right.
    """
    engine, read = _choose_reader(arguments, first, schema)
    read = _matching(read, arguments.record, arguments.definitions, schema)
    decode = _decoder(read, arguments)
    return engine, decode, decode if arguments.defaults else read


def _choose_reader(arguments: Arguments, first: Engine, schema: MakeSchema) -> tuple[Engine, Decode]:
    beyond = arguments.beyond_msgspec
    if first == "msgspec" and beyond is None:
        try:
            return "msgspec", engine_msgspec.argument_reader(arguments.record, arguments.definitions, schema)
        except (TypeError, NameError):
            beyond = _at_fault(arguments, engine_msgspec.argument_reader)
    return "pydantic", _pydantic_reader(arguments, schema, beyond or "")


def _pydantic_reader(arguments: Arguments, schema: MakeSchema, beyond_msgspec: str) -> Decode:
    engine = _pydantic(_place(arguments, beyond_msgspec))
    try:
        read: Decode = engine.value_reader(arguments.record, arguments.definitions, schema)
    except (TypeError, ImportError) as error:
        why = f"{arguments.unknown} has no form in JSON" if arguments.unknown else error
        raise TypeError(f"{_place(arguments, _at_fault(arguments, engine.value_reader))}: {why}") from error
    return read


def _place(arguments: Arguments, parameter: str) -> str:
    return f"{arguments.record.name}(): parameter {parameter!r}"


def _pydantic(where: str) -> Any:
    try:
        from enfold.schema.types import engine_pydantic
    except ImportError as error:
        raise TypeError(f"{where} has to be read by pydantic: pip install pydantic") from error
    return engine_pydantic


def _at_fault(arguments: Arguments, make_reader: Callable[..., Any]) -> str:
    """The first parameter that an engine refuses when it is alone."""
    for field in arguments.record.fields:
        try:
            make_reader(msgspec.structs.replace(arguments.record, fields=(field,)), arguments.definitions, dict)
        except (TypeError, NameError, ImportError):
            return field.keyword
    return ""


def _decoder(read: Decode, arguments: Arguments) -> Decode:
    defaults = arguments.defaults
    decode = _taking_whole_numbers(read, arguments.record, arguments.definitions)
    if not defaults:
        return decode

    def decode_and_fill(data: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = decode(data)
        return {name: make() for name, make in defaults.items() if name not in given} | given

    return decode_and_fill


def _taking_whole_numbers(read: Read, part: Part, definitions: Definitions) -> Read:
    """JSON has one kind of number, so 1.0 is an integer; both engines tell them apart, so what they refuse is read again."""

    def decode(data: Any) -> Any:
        try:
            return read(data)
        except DecodeError as refused:
            return again(data, refused)
        except RecursionError:
            raise _too_deep() from None

    def again(data: Any, refused: DecodeError) -> Any:
        try:
            whole = rewritten(part, data, definitions, whole_number) if _may_hold_fractions(data) else data
            if whole is data:
                raise refused
            return read(whole)
        except RecursionError:
            raise _too_deep() from None
        finally:
            del refused  # it knows this frame: together they would keep the input until the collector comes

    return decode


def _matching(read: Read, part: Part, definitions: Definitions, schema: MakeSchema) -> Read:
    """The reader, which for types with patterns leaves these to our own matcher: `re` could take hours for a short text."""
    if not has_pattern(part, definitions):
        return read
    from enfold.schema.check import compile_schema  # few types have a pattern

    @functools.cache
    def compiled() -> Schema:
        return compile_schema(schema())

    def read_matching(data: Any) -> Any:
        value = read(data)
        if compiled().check(data):
            return value
        from enfold.schema.arguments import faults  # with the first fault

        fault = faults(schema(), data)[0]
        raise DecodeError(fault.argument, fault.expected or "", fault.reason)

    return read_matching


_PLAIN: Final = frozenset({str, int, bool, type(None), dict, list})
_DEEP: Final = 200


def _may_hold_fractions(data: Any) -> bool:
    """Whether a value has a float anywhere, or is not plain JSON: a quick look, since strangers send large values."""
    level = [[data]]
    for _ in range(_DEEP):
        inner: list[Any] = []
        for items in level:
            kinds = set(map(type, items))
            if not kinds <= _PLAIN:
                return True
            if dict in kinds or list in kinds:
                inner += [each.values() if type(each) is dict else each for each in items if type(each) in (dict, list)]
        if not inner:
            return False
        level = inner
    return True


def _too_deep() -> DecodeError:
    return DecodeError("", "it is nested too deeply", "constraint")


def as_type(data: Any, annotation: type[T]) -> T:
    """JSON data as a value of a type: a dataclass, a TypedDict, a model, a Struct or anything a parameter may be.

    Data that does not fit is a DecodeError (a ValueError) that says where and what was expected.
    """
    key: Any = annotation
    value: T = _value_reader(key)(data)
    return value


@functools.lru_cache(maxsize=1024)
def _value_reader(annotation: Any) -> Read:
    from enfold.schema.types.describe import describe  # operations have their own

    reader = TypeReader()
    shape = reader.read(annotation)
    schema = functools.cache(functools.partial(describe, shape, reader.definitions, "input"))
    read = _matching(_read_by_either(annotation, reader, shape, schema), shape, reader.definitions, schema)
    return _taking_whole_numbers(read, shape, reader.definitions)


def _read_by_either(annotation: Any, reader: TypeReader, shape: Shape, schema: MakeSchema) -> Read:
    if not reader.needs_pydantic:
        try:
            return engine_msgspec.value_reader(shape, reader.definitions, schema)
        except (TypeError, NameError):
            pass  # the other engine may know better
    read: Read = _pydantic(spelled(annotation)).value_reader(shape, reader.definitions, schema)
    return read
