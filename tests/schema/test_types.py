"""Every type that a user may write: its schema, values it takes, and values it refuses, on both engines."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import sys
import typing
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import annotated_types
import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from enfold.envelope import ResponseEnvelope
from enfold.envelope.content import ImageContent, TextContent
from enfold.errors import DecodeError
from enfold.schema.arguments import faults
from enfold.schema.plain import to_plain
from enfold.schema.signature import Signature, read_signature

T = TypeVar("T")
Bounded = TypeVar("Bounded", bound=int)
UserId = NewType("UserId", int)
Pairs = typing_extensions.TypeAliasType("Pairs", list[tuple[int, int]])
Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    NAME = "name"
    HALF = 0.5
    PAIR = (1, 2)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Point:
    """A place on the plane.

    Attributes:
        x: How far right.
    """

    x: int
    y: int = 0


@dataclass
class Circle:
    centre: Point
    radius: float
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    content: T
    next: Box[T] | None = None


@dataclass
class IntBox(Box[int]):
    label: str = ""


@dataclass
class Span:
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError("the end is before the start")


class Movie(typing.TypedDict):
    title: str
    year: typing.NotRequired[int]


class Partial(typing_extensions.TypedDict, total=False):
    title: typing_extensions.Required[str]
    rating: typing_extensions.ReadOnly[float]


class Pair(NamedTuple):
    left: int
    right: str = "r"


@attrs.define
class Parcel:
    weight: float = attrs.field(validator=attrs.validators.gt(0))
    _code: str = "none"


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    good_boy: bool = msgspec.field(default=True, name="goodBoy")


class Closed(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    first_name: str
    nick: str | msgspec.UnsetType = msgspec.UNSET


class Rgb(msgspec.Struct, array_like=True):
    red: int
    green: int = 0


class User(pydantic.BaseModel):
    id: int
    email: str = pydantic.Field(alias="eMail")
    picture: bytes = b""


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def _is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("it is odd")
        return number


class Case(msgspec.Struct, frozen=True):
    """One row of the table: a type, its schema, JSON it takes with the value that becomes of it, JSON it refuses."""

    id: str
    annotation: Any
    schema: dict[str, Any]
    good: list[tuple[Any, Any]]
    bad: list[Any]
    defs: dict[str, Any] = {}
    only: str | None = None


POINT = {
    "title": "Point",
    "description": "A place on the plane.",
    "type": "object",
    "properties": {"x": {"description": "How far right.", "type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
}
NULL = {"type": "null"}
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def _text(format: str) -> dict[str, Any]:
    return {"type": "string", "format": format}


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

CASES = [
    Case("int", int, INTEGER, [(1, 1), (1.0, 1), (2**70, 2**70)], ["5", True, 1.5, None, [1]]),
    Case("float", float, {"type": "number"}, [(1.5, 1.5), (1, 1.0)], ["1.5", True, None]),
    Case("str", str, STRING, [("a", "a"), ("", "")], [1, None, ["a"]]),
    Case("bool", bool, {"type": "boolean"}, [(True, True)], [1, 0, "true", None]),
    Case("none", None, NULL, [(None, None)], [0, "", False]),
    Case("any", Any, {}, [(1, 1), ({"a": [None]}, {"a": [None]})], []),
    Case("object", object, {}, [("x", "x")], []),
    Case("literal string", typing.LiteralString, STRING, [("a", "a")], [1]),
    Case("bytes", bytes, {**STRING, "contentEncoding": "base64"}, [("aGk=", b"hi")], ["aGk", "_-8=", "*", 1]),
    Case("date-time", dt.datetime, _text("date-time"),
         [("2024-01-02T03:04:05Z", dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC))],
         ["2024-13-01T00:00:00Z", "1700000000", 1700000000, "2024-01-02"]),
    Case("date", dt.date, _text("date"), [("2024-02-29", dt.date(2024, 2, 29))], ["2023-02-29", "today", 1]),
    Case("time", dt.time, _text("time"), [("10:30:00", dt.time(10, 30))], ["25:00:00", 10]),
    Case("duration", dt.timedelta, _text("duration"), [("PT1H30M", dt.timedelta(minutes=90))], ["1:30:00", 90]),
    Case("uuid", uuid.UUID, _text("uuid"), [(str(ID), ID)], ["x", 1]),
    Case("decimal", Decimal, {"anyOf": [_text("decimal"), {"type": "number"}]},
         [("1.50", Decimal("1.50")), (0.1, Decimal("0.1")), (2, Decimal(2))], ["abc", True, None]),
    Case("path", Path, _text("path"), [("a/b", Path("a/b"))], [1, None]),
    Case("pure path", PurePosixPath, _text("path"), [("a/b", PurePosixPath("a/b"))], [1]),
    Case("ipv4", ipaddress.IPv4Address, _text("ipv4"), [("1.2.3.4", ipaddress.IPv4Address("1.2.3.4"))], ["1.2.3", 1]),
    Case("list", list[int], {"type": "array", "items": INTEGER}, [([1, 2.0], [1, 2]), ([], [])], [["a"], "ab", {}]),
    Case("bare list", list, {"type": "array"}, [([1, "a"], [1, "a"])], ["ab", 1]),
    Case("bare tuple", typing.Tuple, {"type": "array"}, [([1, "a"], (1, "a"))], [1]),
    Case("no elements", tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}, [([], ())], [[1]]),
    Case("sequence", Sequence[str], {"type": "array", "items": STRING}, [(["a"], ["a"])], ["a"]),
    Case("set", set[int], {"type": "array", "items": INTEGER}, [([1, 2, 2], {1, 2})], [["a"], 1]),
    Case("frozenset", frozenset[str], {"type": "array", "items": STRING}, [(["a"], frozenset("a"))], [[1]]),
    Case("deque", collections.deque[int], {"type": "array", "items": INTEGER},
         [([1, 2], collections.deque([1, 2]))], [["a"]], only="pydantic"),
    Case("tuple", tuple[int, str],
         {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
         [([1, "a"], (1, "a")), ([1.0, "a"], (1, "a"))], [[1], [1, "a", 2], ["a", 1]]),
    Case("tuple of any length", tuple[int, ...], {"type": "array", "items": INTEGER}, [([1], (1,)), ([], ())], [["a"]]),
    Case("dict", dict[str, int], {"type": "object", "additionalProperties": INTEGER},
         [({"a": 1.0}, {"a": 1})], [{"a": "1"}, [1]]),
    Case("bare dict", dict, {"type": "object", "additionalProperties": True}, [({"a": 1}, {"a": 1})], [[1]]),
    Case("mapping", Mapping[str, Any], {"type": "object", "additionalProperties": True}, [({"a": 1}, {"a": 1})], ["a"]),
    Case("dict of int keys", dict[int, str],
         {"type": "object", "additionalProperties": STRING, "propertyNames": {**STRING, "pattern": "^-?[0-9]+$"}},
         [({"1": "a"}, {1: "a"})], [{"a": "a"}, {"1": 1}]),
    Case("dict of enum keys", dict[Colour, int],
         {"type": "object", "additionalProperties": INTEGER, "propertyNames": {**STRING, "enum": ["red", "blue"]}},
         [({"red": 1}, {Colour.RED: 1})], [{"green": 1}]),
    Case("optional", Optional[int], {"anyOf": [INTEGER, NULL]}, [(1, 1), (None, None), (1.0, 1)], ["1", 1.5]),
    Case("union", int | str, {"anyOf": [INTEGER, STRING]}, [(1, 1), ("1", "1"), (1.0, 1)], [None, 1.5, True]),
    Case("int or float", Union[int, float], {"anyOf": [INTEGER, {"type": "number"}]}, [(1, 1), (1.5, 1.5)], ["1", True]),
    Case("date or date-time", dt.date | dt.datetime, {"anyOf": [_text("date"), _text("date-time")]},
         [("2024-01-02", dt.date(2024, 1, 2)), ("2024-01-02T03:04:05", dt.datetime(2024, 1, 2, 3, 4, 5))],  # noqa: DTZ001 - a naive time is what was sent
         ["x", 1], only="pydantic"),
    Case("text or uuid", str | uuid.UUID, {"anyOf": [STRING, _text("uuid")]}, [(str(ID), ID), ("x", "x")], [1],
         only="pydantic"),
    Case("text or path", str | Path, {"anyOf": [STRING, _text("path")]}, [("x", "x")], [1], only="pydantic"),
    Case("list or set", list[int] | set[str],
         {"anyOf": [{"type": "array", "items": INTEGER}, {"type": "array", "items": STRING}]},
         [([1], [1]), (["a"], {"a"})], [[None], "a"], only="pydantic"),
    Case("two dataclasses", Point | Span, {"anyOf": [{"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/Span"}]},
         [({"x": 1}, Point(1)), ({"start": 1, "end": 2}, Span(1, 2))], [{"z": 1}, 1], only="pydantic",
         defs={"Point": POINT, "Span": {"title": "Span", "type": "object",
                                        "properties": {"start": INTEGER, "end": INTEGER},
                                        "required": ["start", "end"]}}),
    Case("literal", Literal["low", "high"], {**STRING, "enum": ["low", "high"]}, [("low", "low")], ["mid", 1, None]),
    Case("literal of one", Literal["a"], {**STRING, "const": "a"}, [("a", "a")], ["b"]),
    Case("literal of kinds", Literal["a", 1, None],  # noqa: PYI061 - users write it
         {"enum": ["a", 1, None]}, [(1, 1), (None, None), (1.0, 1)],
         [True, "b", 2]),
    Case("literal of a member", Literal[Colour.RED], {**STRING, "const": "red"}, [("red", Colour.RED)], ["blue"],
         only="pydantic"),
    Case("enum", Colour, {**STRING, "enum": ["red", "blue"]}, [("red", Colour.RED)], ["RED", "green", 1]),
    Case("int enum", Level, {**INTEGER, "enum": [1, 2]}, [(1, Level.LOW), (2.0, Level.HIGH)], [3, "1", True]),
    Case("mixed enum", Mixed, {"enum": ["name", 0.5, [1, 2]]}, [(0.5, Mixed.HALF), ([1, 2], Mixed.PAIR)], ["x", 1],
         only="pydantic"),
    Case("flag", Rights, INTEGER, [(3, Rights.READ | Rights.WRITE)], ["1", True]),
    Case("new type", UserId, INTEGER, [(1, 1)], ["1"]),
    Case("type variable", T, {}, [(1, 1)], []),
    Case("bound type variable", Bounded, INTEGER, [(1, 1)], ["a"]),
    Case("type alias", Pairs,
         {"type": "array", "items": {"type": "array", "prefixItems": [INTEGER, INTEGER], "minItems": 2, "maxItems": 2}},
         [([[1, 2]], [(1, 2)])], [[[1]]]),
    Case("alias that refers to itself", Json, {"$ref": "#/$defs/Json"},
         [({"a": [1, None, {"b": "c"}]}, {"a": [1, None, {"b": "c"}]})], [True, [1.5]], only="pydantic",
         defs={"Json": {"anyOf": [
             {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}},
             {"type": "array", "items": {"$ref": "#/$defs/Json"}}, STRING, INTEGER, NULL]}}),
    Case("dataclass", Point, {"$ref": "#/$defs/Point"}, [({"x": 1}, Point(1)), ({"x": 1.0, "y": 2, "more": 3}, Point(1, 2))],
         [{}, {"x": "1"}, 1, [1]], defs={"Point": POINT}),
    Case("nested dataclass", Circle, {"$ref": "#/$defs/Circle"},
         [({"centre": {"x": 1}, "radius": 2}, Circle(Point(1), 2.0))], [{"centre": {}, "radius": 1}, {"radius": 1}],
         defs={"Circle": {"title": "Circle", "type": "object", "properties": {
             "centre": {"$ref": "#/$defs/Point"}, "radius": {"type": "number"},
             "tags": {"type": "array", "items": STRING, "default": []}}, "required": ["centre", "radius"]},
             "Point": POINT}),
    Case("recursive dataclass", Tree, {"$ref": "#/$defs/Tree"},
         [({"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)]))], [{"value": 1, "children": [{}]}],
         defs={"Tree": {"title": "Tree", "type": "object", "properties": {
             "value": INTEGER, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []}},
             "required": ["value"]}}),
    Case("generic dataclass", Box[int], {"$ref": "#/$defs/Box_int"},
         [({"content": 1, "next": {"content": 2}}, Box(1, Box(2)))], [{"content": "1"}, {"content": 1, "next": {"content": ""}}],
         defs={"Box_int": {"title": "Box_int", "type": "object", "properties": {
             "content": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/Box_int"}, NULL], "default": None}},
             "required": ["content"]}}),
    Case("heir of a generic", IntBox, {"$ref": "#/$defs/IntBox"}, [({"content": 1}, IntBox(1))], [{"content": "a"}],
         defs={"IntBox": {"title": "IntBox", "type": "object", "properties": {
             "content": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/Box_int"}, NULL], "default": None},
             "label": {**STRING, "default": ""}}, "required": ["content"]},
             "Box_int": {"title": "Box_int", "type": "object", "properties": {
                 "content": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/Box_int"}, NULL], "default": None}},
                 "required": ["content"]}}),
    Case("typed dict", Movie, {"$ref": "#/$defs/Movie"},
         [({"title": "a"}, {"title": "a"}), ({"title": "a", "year": 1999.0, "more": 1}, {"title": "a", "year": 1999})],
         [{}, {"title": 1}, {"title": "a", "year": None}],
         defs={"Movie": {"title": "Movie", "type": "object", "properties": {"title": STRING, "year": INTEGER},
                         "required": ["title"]}}),
    Case("typed dict of typing_extensions", Partial, {"$ref": "#/$defs/Partial"},
         [({"title": "a"}, {"title": "a"}), ({"title": "a", "rating": 1}, {"title": "a", "rating": 1.0})],
         [{}, {"rating": 1}], only="pydantic",
         defs={"Partial": {"title": "Partial", "type": "object",
                           "properties": {"title": STRING, "rating": {"type": "number"}}, "required": ["title"]}}),
    Case("named tuple", Pair, {"$ref": "#/$defs/Pair"}, [([1], Pair(1)), ([1, "a"], Pair(1, "a"))],
         [[], ["a"], [1, "a", 2], {"left": 1}],
         defs={"Pair": {"title": "Pair", "type": "array", "prefixItems": [INTEGER, {**STRING, "default": "r"}],
                        "minItems": 1, "maxItems": 2}}),
    Case("attrs", Parcel, {"$ref": "#/$defs/Parcel"}, [({"weight": 1, "_code": "x"}, Parcel(1, "x"))], [{}, {"weight": "1"}],
         defs={"Parcel": {"title": "Parcel", "type": "object", "properties": {
             "weight": {"type": "number"}, "_code": {**STRING, "default": "none"}}, "required": ["weight"]}}),
    Case("struct", Closed, {"$ref": "#/$defs/Closed"},
         [({"firstName": "a"}, Closed("a")), ({"firstName": "a", "nick": "b"}, Closed("a", "b"))],
         [{"first_name": "a"}, {"firstName": "a", "more": 1}, {"firstName": "a", "nick": None}],
         defs={"Closed": {"title": "Closed", "type": "object", "properties": {"firstName": STRING, "nick": STRING},
                          "required": ["firstName"], "additionalProperties": False}}),
    Case("struct as array", Rgb, {"$ref": "#/$defs/Rgb"}, [([1], Rgb(1)), ([1, 2], Rgb(1, 2))], [[], {"red": 1}],
         defs={"Rgb": {"title": "Rgb", "type": "array", "prefixItems": [INTEGER, {**INTEGER, "default": 0}],
                       "minItems": 1, "maxItems": 2}}),
    Case("tagged structs", Cat | Dog,
         {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
          "discriminator": {"propertyName": "type", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}}},
         [({"type": "cat", "lives": 9}, Cat(9)), ({"type": "dog", "goodBoy": False}, Dog(good_boy=False))],
         [{"lives": 9}, {"type": "cow"}, {"type": "cat"}, None],
         defs={"Cat": {"title": "Cat", "type": "object",
                       "properties": {"type": {**STRING, "const": "cat"}, "lives": INTEGER}, "required": ["type", "lives"]},
               "Dog": {"title": "Dog", "type": "object",
                       "properties": {"type": {**STRING, "const": "dog"}, "goodBoy": {"type": "boolean", "default": True}},
                       "required": ["type"]}}),
    Case("pydantic model", User, {"$ref": "#/$defs/User"},
         [({"id": 1, "eMail": "a", "picture": "aGk="}, User(id=1, eMail="a", picture=b"hi")),
          ({"id": 1.0, "eMail": "a"}, User(id=1, eMail="a"))],
         [{"id": "1", "eMail": "a"}, {"id": True, "eMail": "a"}, {"id": 1}, 1], only="pydantic",
         defs={"User": {"title": "User", "type": "object", "properties": {
             "id": INTEGER, "eMail": STRING, "picture": {**STRING, "contentEncoding": "base64", "default": ""}},
             "required": ["id", "eMail"]}}),
    Case("model in a list", list[User] | None,
         {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/User"}}, NULL]},
         [([{"id": 1, "eMail": "a"}], [User(id=1, eMail="a")]), (None, None)], [[{"id": "1", "eMail": "a"}], 1],
         only="pydantic",
         defs={"User": {"title": "User", "type": "object", "properties": {
             "id": INTEGER, "eMail": STRING, "picture": {**STRING, "contentEncoding": "base64", "default": ""}},
             "required": ["id", "eMail"]}}),
    Case("meta on a number", Annotated[int, Meta(ge=1, lt=10)], {**INTEGER, "minimum": 1, "exclusiveMaximum": 10},
         [(1, 1), (9.0, 9)], [0, 10, "5"]),
    Case("annotated_types on a number", Annotated[float, annotated_types.Interval(gt=0, le=1)],
         {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [(1, 1.0)], [0, 1.5]),
    Case("field on a number", Annotated[int, pydantic.Field(ge=1, multiple_of=2)],
         {**INTEGER, "minimum": 1, "multipleOf": 2}, [(2, 2)], [0, 3], only="pydantic"),
    Case("meta on text", Annotated[str, Meta(min_length=1, max_length=3, pattern="^a")],
         {**STRING, "minLength": 1, "maxLength": 3, "pattern": "^a"}, [("abc", "abc")], ["", "abcd", "b"]),
    Case("field on text", Annotated[str, pydantic.Field(pattern="^a(?=b)")], {**STRING, "pattern": "^a(?=b)"},
         [("ab", "ab")], ["ac"], only="pydantic"),
    Case("length of a list", Annotated[list[int], annotated_types.Len(1, 2)],
         {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2}, [([1], [1])], [[], [1, 2, 3]]),
    Case("length of a dict", Annotated[dict[str, int], Meta(min_length=1)],
         {"type": "object", "additionalProperties": INTEGER, "minProperties": 1}, [({"a": 1}, {"a": 1})], [{}]),
    Case("items with limits", list[Annotated[int, annotated_types.Ge(0)]],
         {"type": "array", "items": {**INTEGER, "minimum": 0}}, [([0], [0])], [[-1]]),
    Case("limits on an optional", Annotated[Optional[int], annotated_types.Ge(1)],
         {"anyOf": [{**INTEGER, "minimum": 1}, NULL]}, [(None, None), (1, 1)], [0]),
    Case("limits on a decimal", Annotated[Decimal, annotated_types.Gt(0)],
         {"anyOf": [_text("decimal"), {"type": "number", "exclusiveMinimum": 0}]}, [("1", Decimal(1))], ["0", -1],
         only="pydantic"),
    Case("validator of pydantic", Annotated[int, pydantic.AfterValidator(lambda number: number + 1)], INTEGER, [(1, 2)],
         ["1", True], only="pydantic"),
]  # fmt: skip


@pytest.fixture(params=["msgspec", "pydantic"])
def engine(request: pytest.FixtureRequest) -> Literal["msgspec", "pydantic"]:
    return request.param  # type: ignore[no-any-return]  # pytest does not say what a parameter is


def takes(annotation: Any, engine: Literal["msgspec", "pydantic"] = "msgspec") -> Signature:
    def function(value: Any) -> Any: ...

    function.__annotations__ = {"value": annotation}
    return read_signature(function, engine=engine)


ON_BOTH_ENGINES = [
    pytest.param(case, engine, id=f"{case.id}-{engine}")
    for case in CASES
    for engine in ("msgspec", "pydantic")
    if case.only in (None, engine)
]


@pytest.mark.parametrize(("case", "engine"), ON_BOTH_ENGINES)
def test_a_type_has_its_schema(case: Case, engine: Any) -> None:
    schema = takes(case.annotation, engine).input_schema
    assert schema["properties"]["value"] == case.schema
    assert schema.get("$defs", {}) == case.defs
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


@pytest.mark.parametrize(("case", "engine"), ON_BOTH_ENGINES)
def test_a_type_takes_the_values_it_stands_for(case: Case, engine: Any) -> None:
    signature = takes(case.annotation, engine)
    for value, expected in case.good:
        found = signature.decode({"value": value})["value"]
        assert (type(found), found) == (type(expected), expected)
        assert jsonschema_rs.is_valid(signature.input_schema, {"value": value})


@pytest.mark.parametrize(("case", "engine"), ON_BOTH_ENGINES)
def test_a_type_refuses_other_values_at_their_argument(case: Case, engine: Any) -> None:
    signature = takes(case.annotation, engine)
    for value in case.bad:
        with pytest.raises(DecodeError) as refused:
            signature.decode({"value": value})
        assert refused.value.path.startswith("value"), value
        assert refused.value.expected or refused.value.reason in {"missing", "unknown"}, value


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_the_engine_is_msgspec_unless_the_type_needs_pydantic(case: Case) -> None:
    assert takes(case.annotation).engine == (case.only or "msgspec")


ANY_ENGINE = [pytest.param(case, id=case.id) for case in CASES if case.only is None]

ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 2.0, 1.5, 2**70, 1e300, "", "a", "1", "1.0", "true", "null", "red", "aGk=", "+/8=",
    "2024-01-02", "2024-01-02T03:04:05Z", "2024-01-02T03:04:05", "10:30:00", "PT5S", "P1D", str(ID), ID.hex, "1.2.3.4",
    "NaN", "\x00", "\U0001f600", [], [1], [1.0], ["a"], [1, "a"], [[1, 2]], [None], {}, {"a": 1}, {"1": "a"}, {"x": 1},
    {"x": 1.0, "y": 2}, {"x": 1, "z": 0}, {"title": "a"}, {"value": 1, "children": [{"value": 1.0}]}, {"content": 1},
    {"weight": 1}, {"weight": -1}, {"weight": 0, "_code": 1}, {"firstName": "a"}, {"type": "cat", "lives": 9},
    {"start": 1, "end": 0}, {"red": 1},
]  # fmt: skip


def outcome(signature: Signature, value: Any) -> Any:
    """The argument that a value becomes, or the details of its error."""
    try:
        found = signature.decode({"value": value})["value"]
    except DecodeError as refused:
        told = [fault.to_wire() for fault in faults(signature.input_schema, {"value": value})]
        return told or (refused.path, refused.reason, refused.expected)
    return type(found), repr(found)


@pytest.mark.parametrize("case", ANY_ENGINE)
def test_both_engines_agree_on_any_value(case: Case) -> None:
    by_msgspec, by_pydantic = takes(case.annotation, "msgspec"), takes(case.annotation, "pydantic")
    assert by_msgspec.input_schema == by_pydantic.input_schema
    for value in [*ODD_VALUES, *(value for value, _ in case.good), *case.bad]:
        assert outcome(by_msgspec, value) == outcome(by_pydantic, value), value


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_accepted_values_match_the_schema(case: Case) -> None:
    signature = takes(case.annotation)
    for value in ODD_VALUES:
        is_accepted = isinstance(outcome(signature, value), tuple) and isinstance(outcome(signature, value)[0], type)
        assert jsonschema_rs.is_valid(signature.input_schema, {"value": value}) or not is_accepted, value


@pytest.mark.parametrize("leaf", [1, 1.0, "x"])
def test_data_nested_too_deeply_is_refused(leaf: Any, engine: Literal["msgspec", "pydantic"]) -> None:
    data = {"value": leaf}
    for _ in range(5_000):
        data = {"value": 1, "children": [data]}
    with pytest.raises(DecodeError, match="it is nested too deeply"):
        takes(Tree, engine).decode({"value": data})


PARTS: list[Any] = [
    int, float, str, bool, None, Any, bytes, dt.datetime, uuid.UUID, Decimal, Colour, Level, Literal["red", "z"], Point,
    Movie, Pair, Annotated[int, Meta(ge=0)], Annotated[str, Meta(min_length=2)],
]  # fmt: skip


def of(container: Any, part: Any) -> Any:
    return container[part]


ANNOTATIONS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(PARTS),
    lambda inner: st.one_of(
        inner.map(lambda part: of(list, part)),
        inner.map(lambda part: of(dict, (str, part))),
        inner.map(lambda part: of(dict, (int, part))),
        inner.map(lambda part: of(tuple, (part, ...))),
        inner.map(lambda part: of(Optional, part)),
        st.tuples(inner, inner).map(lambda parts: of(tuple, parts)),
        st.tuples(inner, inner).map(lambda parts: of(Union, parts)),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.sampled_from([value for value in ODD_VALUES if not isinstance(value, dict | list)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "title", "1", "2"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(annotation=ANNOTATIONS, values=st.lists(VALUES, min_size=5, max_size=20))
@example(annotation=dict[str, Union[Decimal, float, None]], values=[{"x": 0}, {"x": 1.5}, {"x": "1.5"}, {"x": 10**20}])
@example(annotation=list[Union[Decimal, float, int]], values=[[0, 1.5, "2", 10**20]])
def test_both_engines_agree_on_any_type(annotation: Any, values: list[Any]) -> None:
    chosen, by_pydantic = takes(annotation), takes(annotation, "pydantic")
    assert chosen.input_schema == by_pydantic.input_schema
    for value in values:
        assert outcome(chosen, value) == outcome(by_pydantic, value)


REFUSED = [
    pytest.param(dt.datetime, "tomorrow", ("value", "type", "date-time"), id="an invalid date"),
    pytest.param(Optional[uuid.UUID], "x", ("value", "type", "uuid"), id="an invalid optional id"),
    pytest.param(bytes, "*", ("value", "type", "base64"), id="text that is not base64"),
    pytest.param(Decimal, "abc", ("value", "type", "decimal"), id="an invalid decimal"),
    pytest.param(ipaddress.IPv4Address, "1.2.3", ("value", "type", "ipv4"), id="an invalid address"),
    pytest.param(list[dt.date], ["2024-01-02", "x"], ("value[1]", "type", "date"), id="in a list"),
    pytest.param(dict[str, dt.date], {"a": "2024-01-02", "b": "x"}, ("value.b", "type", "date"), id="in a dict"),
    pytest.param(dict[str, list[dict[str, dt.date]]], {"a": [], "b": [{"c": "x"}]}, ("value.b[0].c", "type", "date"), id="deep"),
    pytest.param(dict[dt.date, int], {"x": 1}, ("value", "type", "date"), id="a key"),
    pytest.param(Span, {"start": 2, "end": 1}, ("value", "constraint", "the end is before the start"), id="a validator"),
    pytest.param(list[Span], [{"start": 2, "end": 1}], ("value[0]", "constraint", "the end is before the start"), id="a validator in a list"),
    pytest.param(Parcel, {"weight": -1}, ("value", "constraint", "'weight' must be > 0: -1.0"), id="a validator of attrs"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "expected"), REFUSED)
def test_errors_of_a_type_are_reported_alike_by_both_engines(
    annotation: Any, value: Any, expected: Any, engine: Literal["msgspec", "pydantic"]
) -> None:
    assert outcome(takes(annotation, engine), value) == expected


MODELS_REFUSED = [
    pytest.param(Even, {"number": 3}, ("value.number", "constraint", "it is odd"), id="a validator"),
    pytest.param(list[Even] | None, [{"number": 2}, {"number": 3}], ("value[1].number", "constraint", "it is odd"), id="in a union"),
    pytest.param(User, {"id": 1, "eMail": "a", "picture": "*"}, ("value.picture", "type", "base64"), id="bytes"),
    pytest.param(Annotated[dt.date, annotated_types.Ge(dt.date(2024, 1, 1))], "2023-01-01",
                 ("value", "constraint", "must be at least 2024-01-01"), id="a limit on a date"),
    pytest.param(Annotated[bytes, annotated_types.Len(1, 2)], "aGlo",
                 ("value", "constraint", "must have a length of at most 2"), id="a limit on bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "expected"), MODELS_REFUSED)
def test_errors_of_pydantic_are_reported_with_their_location(annotation: Any, value: Any, expected: Any) -> None:
    assert outcome(takes(annotation, "pydantic"), value) == expected


def test_a_validator_of_a_model_may_take_more_than_its_schema_says() -> None:
    class Tags(pydantic.BaseModel):
        names: list[str]

        @pydantic.model_validator(mode="before")
        @classmethod
        def _split(cls, data: Any) -> Any:
            return {"names": data.split(",")} if isinstance(data, str) else data

    assert takes(Tags).decode({"value": "a,b"}) == {"value": Tags(names=["a", "b"])}


@dataclass
class Limited:
    size: Annotated[int, annotated_types.Ge(1)]


def test_a_constraint_inside_a_class_is_enforced() -> None:
    signature = takes(Limited)
    assert signature.input_schema["$defs"]["Limited"]["properties"]["size"] == {"type": "integer", "minimum": 1}
    with pytest.raises(DecodeError):
        signature.decode({"value": {"size": 0}})


def test_a_constraint_that_does_not_fit_the_type_is_an_error_at_registration() -> None:
    with pytest.raises(TypeError, match=r"parameter 'value': the constraint ge=1 does not apply to this type"):
        takes(Annotated[str, Meta(ge=1)])


NOTES = [
    pytest.param(Annotated[int, "How many."], {"type": "integer", "description": "How many."}, id="text"),
    pytest.param(Annotated[int, typing_extensions.Doc("How many.")], {"type": "integer", "description": "How many."}, id="doc"),
    pytest.param(Annotated[int, Meta(title="N", examples=[1], extra_json_schema={"x-unit": "m"})],
                 {"type": "integer", "title": "N", "examples": [1], "x-unit": "m"}, id="meta"),
    pytest.param(Annotated[int, pydantic.Field(description="How many.", examples=[1], json_schema_extra={"x-unit": "m"})],
                 {"type": "integer", "description": "How many.", "examples": [1], "x-unit": "m"}, id="field"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "expected"), NOTES)
def test_notes_of_an_annotation_are_shown(annotation: Any, expected: Any) -> None:
    assert takes(annotation).input_schema["properties"]["value"] == expected


def gives(annotation: Any) -> dict[str, Any]:
    def function() -> Any: ...

    function.__annotations__ = {"return": annotation}
    return read_signature(function).output_schema


OUTPUTS = [
    pytest.param(set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}, id="a set has no element twice"),
    pytest.param(Decimal, _text("decimal"), id="a decimal is text"),
    pytest.param(Point, POINT, id="a class at the root is written there"),
    pytest.param(Parcel, {"title": "Parcel", "type": "object", "properties": {"weight": {"type": "number"}},
                          "required": ["weight"]}, id="a private field is not written"),
    pytest.param(Even, {"title": "Even", "type": "object", "properties": {"number": INTEGER}, "required": ["number"]},
                 id="so is a model"),
    pytest.param(list[Point], {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": POINT}}, id="a list"),
    pytest.param(Any, {}, id="anything"),
    pytest.param(ResponseEnvelope, {}, id="an envelope"),
    pytest.param(ResponseEnvelope[int], INTEGER, id="an envelope of something"),
    pytest.param(TextContent | ImageContent, {}, id="content"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "expected"), OUTPUTS)
def test_a_result_has_its_schema(annotation: Any, expected: Any) -> None:
    assert gives(annotation) == expected


def test_a_class_at_the_root_that_refers_to_itself_is_referred_to() -> None:
    schema = gives(Tree)
    assert schema["$ref"] == "#/$defs/Tree"
    assert jsonschema_rs.is_valid(schema, {"value": 1, "children": [{"value": 2}]})
    assert not jsonschema_rs.is_valid(schema, {"value": 1, "children": [{"value": "2"}]})


def test_the_output_of_a_model_is_what_it_writes() -> None:
    class Sum(pydantic.BaseModel):
        numbers: list[int] = pydantic.Field(serialization_alias="parts")

        @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic says to write it
        @property
        def total(self) -> int:
            return sum(self.numbers)

    schema = gives(Sum)
    assert list(schema["properties"]) == ["parts", "total"]
    assert jsonschema_rs.is_valid(schema, to_plain(Sum(numbers=[1, 2])))


def test_classes_of_the_same_name_are_distinguished() -> None:
    dataclass_of_same_name: Any = dataclass(type("Point", (), {"__annotations__": {"z": str}}))
    model_of_same_name: Any = pydantic.create_model("Point", w=(bool, ...))
    schema = takes(tuple[Point, dataclass_of_same_name, model_of_same_name, list[model_of_same_name]]).input_schema
    items = schema["properties"]["value"]["prefixItems"]
    assert [item.get("$ref") or item["items"]["$ref"] for item in items] == [
        "#/$defs/Point",
        "#/$defs/Point2",
        "#/$defs/Point3",
        "#/$defs/Point3",
    ]
    assert jsonschema_rs.is_valid(schema, {"value": [{"x": 1}, {"z": ""}, {"w": True}, []]})
    assert not jsonschema_rs.is_valid(schema, {"value": [{"x": 1}, {"z": ""}, {"z": ""}, []]})


def test_data_that_is_not_of_a_type_is_an_error_that_says_where() -> None:
    with pytest.raises(ValueError, match=r"^value\[1\]\.children\[0\]\.value: missing$"):
        takes(list[Tree]).decode({"value": [{"value": 1}, {"value": 1, "children": [{}]}]})


class Mark(msgspec.Struct, array_like=True, tag="mark"):
    place: int
    weight: Decimal


def test_the_fields_of_a_tagged_array_come_after_its_tag(engine: Literal["msgspec", "pydantic"]) -> None:
    signature = takes(Mark, engine)
    assert signature.decode({"value": ["mark", 1.0, "2.5"]}) == {"value": Mark(1, Decimal("2.5"))}
    with pytest.raises(DecodeError) as refused:
        signature.decode({"value": ["mark", 1, "Infinity"]})
    assert (refused.value.path, refused.value.expected) == ("value[2]", "decimal")


@pytest.mark.parametrize("annotation", [User, Point | Span, dt.date | dt.datetime])
def test_without_pydantic_the_error_says_what_to_install(annotation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("engine_pydantic", "foreign"):
        monkeypatch.delitem(sys.modules, f"enfold.schema.types.{module}", raising=False)
    monkeypatch.delattr("enfold.schema.types.engine_pydantic", raising=False)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(TypeError, match=r"function\(\): parameter 'value' .* pip install pydantic"):
        takes(annotation)


@pytest.mark.parametrize("annotation", [int, dt.date, bytes, list[int], dict[str, dt.date], Optional[uuid.UUID]])
def test_an_unpaired_surrogate_is_refused_like_any_other_text(
    annotation: Any, engine: Literal["msgspec", "pydantic"]
) -> None:
    """A program can hold it, and a file name often does; JSON text cannot."""
    for value in ("\ud800", ["\ud800"], {"a": "\ud800"}, {"\ud800": 1}):
        found = outcome(takes(annotation, engine), value)
        # pydantic reads it as text of JSON, which as a whole is none.
        assert isinstance(found, list) or found[0] in ("value", "value.a", "value[0]", "")[: 3 + (engine == "pydantic")]
