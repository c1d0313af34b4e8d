"""What a function declares is what an operation takes and gives."""

from __future__ import annotations

import datetime as dt
import functools
import subprocess
import sys
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional

import msgspec
import pydantic
import pytest

from enfold.errors import DecodeError
from enfold.schema.signature import Signature, read_signature

if TYPE_CHECKING:
    import somewhere  # type: ignore[import-not-found]  # known to the type checker only, as contexts often are

INTEGER = {"type": "integer"}


class Context:
    """Stands for the class that operations inject."""


class Size(NamedTuple):
    width: int
    height: int


@pytest.fixture(params=["msgspec", "pydantic"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


def add(x: int, y: int = 1) -> int:
    """Add two numbers.

    The sum is exact.

    Args:
        x: First addend.
        y: Second addend.
    """
    return x + y


def test_a_function_becomes_schemas_and_descriptions() -> None:
    signature = read_signature(add)
    assert signature.input_schema == {
        "type": "object",
        "properties": {
            "x": {"description": "First addend.", "type": "integer"},
            "y": {"description": "Second addend.", "type": "integer", "default": 1},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    assert signature.output_schema == INTEGER
    assert (signature.name, signature.kind, signature.engine) == ("add", "def", "msgspec")
    assert signature.description == "Add two numbers.\n\nThe sum is exact."
    assert signature.returns is int


def test_schemas_are_made_once() -> None:
    signature = read_signature(add)
    assert signature.input_schema is signature.input_schema
    assert signature.output_schema is signature.output_schema


def test_arguments_are_read_and_what_is_absent_is_not_passed(engine: Any) -> None:
    signature = read_signature(add, engine=engine)
    assert signature.decode({"x": 1, "y": 2}) == {"x": 1, "y": 2}
    assert signature.decode({"x": 1}) == {"x": 1}


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "missing": ({}, "x", "missing"),
    "unknown": ({"x": 1, "z": 1}, "z", "unknown"),
    "text": ({"x": "5"}, "x", "type"),
    "a fraction": ({"x": 1.5}, "x", "type"),
    "a truth value": ({"x": 1, "y": True}, "y", "type"),
}


@pytest.mark.parametrize(("given", "path", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_arguments_are_reported_by_name(given: dict[str, Any], path: str, reason: str, engine: Any) -> None:
    with pytest.raises(DecodeError) as refused:
        read_signature(add, engine=engine).decode(given)
    assert refused.value.path == path
    assert reason in {refused.value.reason, "type"}


def no_arguments() -> None: ...


def unannotated(x, y=2): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - users write it


def test_a_function_without_arguments_takes_an_empty_object(engine: Any) -> None:
    signature = read_signature(no_arguments, engine=engine)
    assert signature.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert signature.decode({}) == {}
    with pytest.raises(DecodeError, match="z: unknown"):
        signature.decode({"z": 1})


def test_an_unannotated_parameter_accepts_anything() -> None:
    signature = read_signature(unannotated)
    assert signature.input_schema["properties"] == {"x": {}, "y": {"default": 2}}
    assert signature.output_schema == {}
    assert signature.decode({"x": [None]}) == {"x": [None]}


def odd_names(
    self: float,
    cls: int,
    _x: int,
    __y: int,
    from_: int,
    *,
    type: str = "a",
    __init__: int = 3,
    encode: Size | None = None,
) -> None: ...


def test_any_name_may_be_a_parameter(engine: Any) -> None:
    signature = read_signature(odd_names, engine=engine)
    given = {"self": 1, "cls": 2, "_x": 3, "__y": 4, "from_": 5}
    assert signature.decode(given) == given
    assert signature.decode({**given, "__init__": 6, "encode": [3, 4]}) == {
        **given,
        "__init__": 6,
        "encode": Size(3, 4),
    }


MARK = object()


def with_defaults(
    items: list[int] = [1],  # noqa: B006 - users write it
    sentinel: Any = MARK,
    nothing: int = None,  # type: ignore[assignment]  # noqa: RUF013 - users write it
    day: dt.date = dt.date(2024, 1, 2),
) -> list[int]:
    return items


def test_defaults_are_shown_where_json_can_hold_them(engine: Any) -> None:
    signature = read_signature(with_defaults, engine=engine)
    assert signature.input_schema["properties"] == {
        "items": {"type": "array", "items": INTEGER, "default": [1]},
        "sentinel": {},
        "nothing": {"anyOf": [INTEGER, {"type": "null"}], "default": None},
        "day": {"type": "string", "format": "date", "default": "2024-01-02"},
    }
    assert "required" not in signature.input_schema
    assert signature.decode({}) == {}
    assert signature.decode({"nothing": None}) == {"nothing": None}


def with_fields(
    size: int = pydantic.Field(ge=1, description="How many."),
    kind: str = pydantic.Field("plain"),
    *,
    tags: Annotated[list[str], pydantic.Field(default_factory=list)],
    unit: Annotated[str, pydantic.Field(alias="theUnit")] = "m",
) -> None: ...


def test_a_field_of_pydantic_gives_limits_defaults_and_names() -> None:
    signature = read_signature(with_fields)
    assert signature.engine == "pydantic"
    assert signature.input_schema["properties"] == {
        "size": {"type": "integer", "minimum": 1, "description": "How many."},
        "kind": {"type": "string", "default": "plain"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "theUnit": {"type": "string", "default": "m"},
    }
    assert signature.decode({"size": 1}) == {"size": 1, "kind": "plain", "tags": []}
    assert signature.decode({"size": 1, "theUnit": "km"}) == {"size": 1, "kind": "plain", "tags": [], "unit": "km"}
    assert signature.decode({"size": 1})["tags"] is not signature.decode({"size": 1})["tags"]


def several() -> tuple[int, str]:
    return 1, "a"


def several_noted() -> Annotated[tuple[int, str, None], "three"]:
    return 1, "a", None


def many() -> tuple[int, ...]:
    return (1,)


def named() -> Size:
    return Size(1, 2)


def one() -> tuple[int]:
    return (1,)


def maybe() -> int | None:
    return None


SEVERAL: dict[str, tuple[Callable[[], Any], int]] = {
    "a pair": (several, 2),
    "three, with a note": (several_noted, 3),
    "a tuple of any length": (many, 1),
    "a named tuple": (named, 1),
    "a tuple of one": (one, 1),
    "no value": (no_arguments, 0),
    "perhaps a value": (maybe, 1),
    "one value": (lambda: 1, 1),
}


@pytest.mark.parametrize(("function", "values"), SEVERAL.values(), ids=SEVERAL.keys())
def test_only_a_tuple_of_fixed_length_is_several_values(function: Any, values: int) -> None:
    assert read_signature(function).values == values


def test_several_values_are_an_array_of_fixed_length() -> None:
    assert read_signature(several).output_schema == {
        "type": "array",
        "prefixItems": [INTEGER, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    }
    assert read_signature(no_arguments).output_schema == {"type": "null"}


async def waits(x: int) -> int:
    return x


async def ticks(every: float) -> AsyncIterator[int]:
    yield 1


async def generates() -> AsyncGenerator[tuple[int, str], None]:
    yield 1, "a"


async def yields():  # type: ignore[no-untyped-def]  # noqa: ANN201 - users write it
    yield 1


def hands_on() -> AsyncIterator[int]:
    return ticks(1)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


KINDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "def": (add, "def", INTEGER),
    "async def": (waits, "async", INTEGER),
    "async generator": (ticks, "stream", INTEGER),
    "async generator of pairs": (generates, "stream", read_signature(several).output_schema),
    "async generator without annotation": (yields, "stream", {}),
    "def that hands on a stream": (hands_on, "stream", INTEGER),
    "wrapped async def": (wrapped(waits), "async", INTEGER),
    "wrapped async generator": (wrapped(ticks), "stream", INTEGER),
}


@pytest.mark.parametrize(("function", "kind", "schema"), KINDS.values(), ids=KINDS.keys())
def test_how_a_function_runs_is_seen(function: Any, kind: str, schema: dict[str, Any]) -> None:
    signature = read_signature(function)
    assert (signature.kind, signature.output_schema) == (kind, schema)
    assert signature.values == 1


class Shop:
    """Has methods."""

    def sell(self, count: int) -> int:
        """Sell some."""
        return count

    @classmethod
    def open(cls, count: int) -> int:
        return count

    @staticmethod
    def close(count: int) -> int:
        return count

    async def __call__(self, count: int) -> int:
        return count


CALLABLES: dict[str, tuple[Any, str]] = {
    "bound method": (Shop().sell, "sell"),
    "class method": (Shop.open, "open"),
    "static method": (Shop.close, "close"),
    "object": (Shop(), "Shop"),
    "decorated": (wrapped(Shop.close), "close"),
    "decorated bound method": (wrapped(Shop().sell), "sell"),
    "partial": (functools.partial(Shop.sell, Shop()), "sell"),
}


@pytest.mark.parametrize(("function", "name"), CALLABLES.values(), ids=CALLABLES.keys())
def test_anything_that_can_be_called_is_read(function: Any, name: str) -> None:
    signature = read_signature(function)
    assert signature.name == name
    assert list(signature.input_schema["properties"]) == ["count"]


def test_a_partial_keeps_what_it_was_given_as_a_default() -> None:
    signature = read_signature(functools.partial(add, y=5))
    assert signature.input_schema["properties"]["y"]["default"] == 5
    assert signature.input_schema["required"] == ["x"]
    assert signature.description.startswith("Add two numbers.")


def plain_context(context: Context, x: int) -> int:
    return x


def optional_context(x: int, context: Optional[Context] = None) -> int:
    return x


def union_context(x: int, *, context: Context | None = None) -> int:
    return x


def unresolvable_context(x: int, context: somewhere.Context | None = None) -> int:
    return x


@pytest.mark.parametrize("function", [plain_context, optional_context, union_context, unresolvable_context])
def test_a_context_is_injected_and_not_part_of_the_schema(function: Any) -> None:
    signature = read_signature(function, context_type=Context)
    assert signature.context_parameter == "context"
    assert list(signature.input_schema["properties"]) == ["x"]
    assert signature.decode({"x": 1}) == {"x": 1}


def positional(*numbers: int) -> None: ...
def keywords(**numbers: int) -> None: ...
def positional_only(x: int, /) -> None: ...
def unknown_name(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point
def unknown_part(x: list[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point
def unknown_result(x: int) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point
def function_argument(x: Callable[[int], int]) -> None: ...
def foreign_argument(x: Shop) -> None: ...
def foreign_result() -> Shop:
    return Shop()


def iterator() -> Iterator[int]:
    return iter([1])


async def returns_stream() -> AsyncIterator[int]:
    return ticks(1)


async def stream_of_wrong_type() -> int:  # type: ignore[misc]  # that is the point
    yield 1


def not_json(x: Literal[Shop]) -> None: ...  # type: ignore[valid-type]  # that is the point
def number(x: 3) -> None: ...  # type: ignore[valid-type]  # that is the point


def keys_that_are_no_text(x: dict[tuple[int, int], str]) -> None: ...
def keys_of_truth() -> list[dict[bool, str]]:
    return []


UNUSABLE: dict[str, tuple[Any, str]] = {
    "keys that are no text": (
        keys_that_are_no_text,
        r"parameter 'x': dict\[tuple\[int, int\], str\] is not JSON serializable",
    ),
    "keys that are true or false": (keys_of_truth, r"return type: dict\[bool, str\] is not JSON serializable"),
    "*args": (positional, r"positional\(\): \*numbers cannot be passed by name"),
    "**kwargs": (keywords, r"keywords\(\): \*\*numbers has no schema"),
    "positional-only": (positional_only, r"parameter 'x' is positional-only"),
    "an unknown name": (unknown_name, r"parameter 'x': the name 'Nowhere'"),
    "an unknown name inside": (unknown_part, r"parameter 'x': the name 'Nowhere'"),
    "an unknown name as result": (unknown_result, r"return type: the name 'Nowhere'"),
    "a function": (function_argument, r"parameter 'x': .*Callable.* is not JSON serializable"),
    "a foreign class": (foreign_argument, r"parameter 'x': Shop is not JSON serializable"),
    "a foreign result": (foreign_result, r"return type Shop is not JSON serializable"),
    "an iterator": (iterator, r"to stream, use `yield`"),
    "an async def that returns a stream": (returns_stream, r"to stream, use `async def` with `yield`"),
    "a stream of the wrong type": (stream_of_wrong_type, r"annotate a stream as AsyncIterator\[\.\.\.\], not int"),
    "a literal that is not JSON": (not_json, r"parameter 'x': .*Shop.* is not a JSON value"),
    "no type at all": (number, r"parameter 'x': "),
    "nothing to call": (3, r"3 is not callable"),
    "a partial of *args": (functools.partial(positional), r"\*numbers cannot be passed by name"),
    "a builtin without a signature": (dict, r"dict\(\): "),
}


@pytest.mark.parametrize(("function", "sentence"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_function_that_cannot_be_served_is_a_clear_error_at_registration(function: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        read_signature(function)


FUTURE = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
GENERIC = """
class Box{params}:
    item: T
    more: list[Box[T]] | None = None

class Shelf{params}:
    def put(self, box: Box[int], other: T) -> list[T]: ...
"""
OLDER = f"from typing import Generic, TypeVar\nT = TypeVar('T')\n{GENERIC.format(params='(Generic[T])')}\ndel T"
NEWER = f"{GENERIC.format(params='[T]')}\ndef first[T: int](boxes: list[Box[T]], other: T) -> T: ..."


@pytest.mark.parametrize(
    "text",
    [
        OLDER,
        pytest.param(NEWER, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has them first")),
    ],
    ids=["variables", "type parameters"],
)
def test_type_parameters_are_found_where_annotations_are_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("shelves")
    monkeypatch.setitem(sys.modules, "shelves", module)
    exec(FUTURE + text.replace("class Box", "@dataclass\nclass Box"), vars(module))  # noqa: S102  # our own text
    put = read_signature(module.Shelf().put)
    assert put.decode({"box": {"item": 1, "more": [{"item": 2}]}, "other": "x"})["box"].more[0].item == 2
    with pytest.raises(DecodeError):
        put.decode({"box": {"item": 1, "more": [{"item": "x"}]}, "other": "x"})
    if hasattr(module, "first"):
        with pytest.raises(DecodeError):
            read_signature(module.first).decode({"boxes": [], "other": "x"})


@dataclass
class Lost:
    home: Nowhere  # type: ignore[name-defined]  # noqa: F821 - that is the point


def test_a_name_that_a_class_cannot_find_is_reported() -> None:
    def visit(lost: Lost) -> None: ...

    with pytest.raises(TypeError, match=r"visit\(\): parameter 'lost': the name 'Nowhere' in Lost is not defined"):
        read_signature(visit)


def test_classes_made_beside_a_local_function_are_found() -> None:
    @dataclass
    class Leaf:
        size: int

    @dataclass
    class Branch:
        leaves: list[Leaf]

    def grow(branch: Branch) -> list[Leaf]:
        return branch.leaves

    signature = read_signature(grow)
    assert signature.decode({"branch": {"leaves": [{"size": 1}]}}) == {"branch": Branch([Leaf(1)])}
    assert signature.output_schema["items"] == {"$ref": "#/$defs/Leaf"}


def test_a_result_is_made_plain_by_the_engine_that_knows_its_type() -> None:
    converter = read_signature(several).make_converter()
    assert converter is not None
    assert converter.convert((1, dt.date(2024, 1, 2))) == [1, "2024-01-02"]
    assert read_signature(add).make_converter() is None


def test_a_signature_cannot_be_changed() -> None:
    signature: Signature = read_signature(add)
    with pytest.raises(AttributeError):
        signature.name = "other"  # type: ignore[misc]  # that is the point


def test_a_plain_function_is_registered_without_slow_modules() -> None:
    program = """
import sys, msgspec
before = set(sys.modules)
from enfold.schema.signature import read_signature
def add(x: int, y: int) -> int:
    return x + y
assert read_signature(add).decode({"x": 1, "y": 2}) == {"x": 1, "y": 2}
new = set(sys.modules) - before
print(sorted(new & {"inspect", "dataclasses", "asyncio", "logging", "pydantic", "pathlib", "attr", "typing_extensions"}))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_struct_is_read_as_it_is_written() -> None:
    class Query(msgspec.Struct, frozen=True):
        text: str
        limit: Annotated[int, msgspec.Meta(le=10, description="At most.")] = 5

    def search(query: Query) -> None: ...

    schema = read_signature(search).input_schema
    assert schema["$defs"]["Query"]["properties"]["limit"] == {
        "type": "integer",
        "maximum": 10,
        "description": "At most.",
        "default": 5,
    }


def test_two_parameters_for_the_context_are_one_too_many() -> None:
    def greedy(first: Context, second: Context | None = None) -> None: ...

    with pytest.raises(TypeError, match=r"greedy\(\): 'first' and 'second' both request the context"):
        read_signature(greedy, context_type=Context)


class Measured(pydantic.BaseModel):
    x: float


@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan")], ids=["too large", "infinity", "NaN"])
def test_a_number_that_json_cannot_hold_is_refused(engine: Any, number: float) -> None:
    def measure(x: float) -> None: ...

    with pytest.raises(DecodeError):
        read_signature(measure, engine=engine).decode({"x": number})


def test_a_number_that_json_cannot_hold_is_refused_inside_a_model() -> None:
    def measure(m: Measured) -> None: ...

    with pytest.raises(DecodeError):
        read_signature(measure).decode({"m": {"x": float("inf")}})


def test_a_type_that_reads_base64_itself_is_left_to_do_so() -> None:
    def take(data: pydantic.Base64Bytes, word: pydantic.Base64Str) -> None: ...

    assert read_signature(take).decode({"data": "aGVsbG8=", "word": "aGk="}) == {"data": b"hello", "word": "hi"}
