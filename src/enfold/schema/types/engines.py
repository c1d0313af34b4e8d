"""Which engine reads a type, and what both leave to us: defaults that a `Field` holds, and 1.0 taken for an integer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import msgspec

from enfold.errors import DecodeError
from enfold.schema.types import engine_msgspec
from enfold.schema.types.annotations import TypeReader, spelled
from enfold.schema.types.decoding import whole_numbers, whole_numbers_of_fields
from enfold.schema.types.function_parameters import Arguments
from enfold.schema.types.shapes import Shape

Engine = Literal["msgspec", "pydantic"]
EngineChoice = Literal["auto", "msgspec", "pydantic"]
Decode = Callable[[dict[str, Any]], dict[str, Any]]
MakeSchema = Callable[[], dict[str, Any]]
T = TypeVar("T")


def choose_engine(arguments: Arguments, choice: EngineChoice, schema: MakeSchema) -> tuple[Engine, Decode, Decode]:
    """msgspec reads what it can; pydantic what only it can, or what it was chosen for.

    The second reader is the first at its fastest: what it refuses may still be right.
    """
    engine, read = _choose_reader(arguments, choice, schema)
    decode = _decoder(read, arguments)
    return engine, decode, decode if arguments.defaults else read


def _choose_reader(arguments: Arguments, choice: EngineChoice, schema: MakeSchema) -> tuple[Engine, Decode]:
    beyond = arguments.beyond_msgspec
    if choice != "pydantic" and beyond is None:
        try:
            return "msgspec", engine_msgspec.argument_reader(arguments.record, arguments.definitions, schema)
        except (TypeError, NameError) as error:
            beyond = (_at_fault(arguments, engine_msgspec.argument_reader), str(error))
    where = f"{arguments.record.name}()" if beyond is None else f"{arguments.record.name}(): parameter {beyond[0]!r}"
    if choice == "msgspec" and beyond is not None:
        raise TypeError(f"{where} needs pydantic, which was not chosen: {beyond[1]}")
    return "pydantic", _pydantic_reader(arguments, schema, where)


def _pydantic_reader(arguments: Arguments, schema: MakeSchema, where: str) -> Decode:
    engine = _pydantic(where)
    try:
        read: Decode = engine.argument_reader(arguments.record, arguments.definitions, schema)
    except (TypeError, ImportError) as error:
        name = _at_fault(arguments, engine.argument_reader)
        why = f"{arguments.unknown} has no form in JSON" if arguments.unknown else error
        raise TypeError(f"{arguments.record.name}(): parameter {name!r}: {why}") from error
    return read


def _pydantic(where: str) -> Any:
    try:
        from enfold.schema.types import engine_pydantic
    except ImportError as error:
        raise TypeError(f"{where} has to be read by pydantic: pip install pydantic") from error
    return engine_pydantic


def _at_fault(arguments: Arguments, argument_reader: Callable[..., Any]) -> str:
    """The first parameter that an engine refuses when it is alone."""
    for field in arguments.record.fields:
        try:
            argument_reader(msgspec.structs.replace(arguments.record, fields=(field,)), arguments.definitions, dict)
        except (TypeError, NameError, ImportError):
            return field.keyword
    return ""


def _decoder(read: Decode, arguments: Arguments) -> Decode:
    record, definitions, defaults = arguments.record, arguments.definitions, arguments.defaults
    decode = _taking_whole_numbers(read, lambda data: whole_numbers_of_fields(record, data, definitions))
    if not defaults:
        return decode

    def decode_and_fill(data: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = decode(data)
        return {name: make() for name, make in defaults.items() if name not in given} | given

    return decode_and_fill


def _taking_whole_numbers(read: Callable[[Any], Any], made_whole: Callable[[Any], Any]) -> Callable[[Any], Any]:
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
            whole = made_whole(data) if _may_hold_fractions(data) else data
            if whole is data:
                raise refused
            return read(whole)
        except RecursionError:
            raise _too_deep() from None
        finally:
            del refused  # it knows this frame: together they would keep the input until the collector comes

    return decode


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
def _value_reader(annotation: Any) -> Callable[[Any], Any]:
    from enfold.schema.types.describe import describe_shape  # operations have their own

    reader = TypeReader()
    shape = reader.read(annotation)
    schema = make_once(describe_shape, shape, reader.definitions, "input")
    read = _read_by_either(annotation, reader, shape, schema)
    return _taking_whole_numbers(read, lambda data: whole_numbers(shape, data, reader.definitions))


def _read_by_either(annotation: Any, reader: TypeReader, shape: Shape, schema: MakeSchema) -> Callable[[Any], Any]:
    if reader.beyond_msgspec is None:
        try:
            return engine_msgspec.value_reader(shape, reader.definitions, schema)
        except (TypeError, NameError):
            pass  # the other engine may know better
    read: Callable[[Any], Any] = _pydantic(spelled(annotation)).value_reader(shape, reader.definitions, schema)
    return read


def make_once(describe: Callable[..., dict[str, Any]], *facts: Any) -> MakeSchema:
    """A schema that is made when it is first asked for."""
    made: dict[str, Any] | None = None

    def make() -> dict[str, Any]:
        nonlocal made
        if made is None:
            made = describe(*facts)
        return made

    return make
