"""Results become plain JSON data, or an error that says where they cannot."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import json
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, ClassVar, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold.envelope import ResponseEnvelope, ResultWarning, http_envelope, local_envelope
from enfold.envelope.content import TextContent
from enfold.errors import CallError
from enfold.schema.plain import DEEPEST, to_plain, unwritable
from enfold.schema.structs import encode

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


class Pair(NamedTuple):
    left: int
    right: bytes


@dataclass
class Point:
    x: int
    y: float = 0.0
    unit: ClassVar[str] = "m"


@dataclass
class Nested:
    points: list[Point]
    by_name: dict[str, Point] = field(default_factory=dict)


@dataclass
class Holder:
    held: Any
    _hidden: int = 1


@attrs.define
class Parcel:
    weight: Decimal
    _code: str = "none"


class Animal(msgspec.Struct, tag="animal", rename="camel", omit_defaults=True):
    full_name: str
    legs: int = 4
    tags: list[str] = []
    nick: str | msgspec.UnsetType = msgspec.UNSET
    home: Any = None


class Rgb(msgspec.Struct, array_like=True, tag=True):
    red: int
    paint: Any = None


class User(pydantic.BaseModel):
    full_name: str = pydantic.Field(alias="fullName")
    picture: bytes = b""
    secret: pydantic.SecretStr = pydantic.SecretStr("x")

    @pydantic.field_serializer("full_name", when_used="json")
    def _shout(self, name: str) -> str:
        return name.upper()

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic says to write it
    @property
    def size(self) -> int:
        return len(self.picture)


class Hex(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="hex")
    picture: bytes


@pydantic.dataclasses.dataclass
class Tagged:
    tag: int = pydantic.Field(alias="theTag")


CASES: dict[str, tuple[Any, Any]] = {
    "text": ("a", "a"),
    "text of a subclass": (Name("a"), "a"),
    "bytes": (b"\xfb\xff", "+/8="),
    "bytearray": (bytearray(b"hi"), "aGk="),
    "enum": (Colour.RED, "red"),
    "enum of a pair": (Colour.PAIR, [1, 2]),
    "int enum": (Level.LOW, 1),
    "date-time": (dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2024-01-02T03:04:05Z"),
    "date": (dt.date(2024, 1, 2), "2024-01-02"),
    "time": (dt.time(3, 4), "03:04:00"),
    "duration": (dt.timedelta(hours=1, minutes=30), "PT5400S"),
    "uuid": (ID, str(ID)),
    "decimal": (Decimal("1.50"), "1.50"),
    "path": (PurePosixPath("a/b"), "a/b"),
    "address": (ipaddress.ip_address("1.2.3.4"), "1.2.3.4"),
    "tuple": ((1, (2,)), [1, [2]]),
    "set": ({1}, [1]),
    "frozenset": (frozenset({"a"}), ["a"]),
    "deque": (collections.deque([1, Colour.RED]), [1, "red"]),
    "range": (range(3), [0, 1, 2]),
    "named tuple": (Pair(1, b"hi"), [1, "aGk="]),
    "mapping": (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
    "ordered dict": (collections.OrderedDict(a=1), {"a": 1}),
    "keys that are no text": ({1: "a", 1.5: "b", Colour.RED: "c", ID: "d"}, {"1": "a", "1.5": "b", "red": "c", str(ID): "d"}),
    "dataclass": (Point(1, 2), {"x": 1, "y": 2}),
    "nested dataclass": (Nested([Point(1)], {"a": Point(2)}), {"points": [{"x": 1, "y": 0.0}], "by_name": {"a": {"x": 2, "y": 0.0}}}),
    "attrs, with a private field": (Parcel(Decimal(1)), {"weight": "1"}),
    "struct": (Animal("Rex", 3), {"type": "animal", "fullName": "Rex", "legs": 3}),
    "struct that needs a walk": (Animal("Rex", home=PurePosixPath("a")), {"type": "animal", "fullName": "Rex", "home": "a"}),
    "struct as array": (Rgb(1), ["Rgb", 1, None]),
    "struct as array that needs a walk": (Rgb(1, (2,)), ["Rgb", 1, [2]]),
    "model": (User(fullName="ann", picture=b"\xff"), {"fullName": "ANN", "picture": "/w==", "secret": "**********", "size": 1}),
    "model that says how bytes are written": (Hex(picture=b"hi"), {"picture": "6869"}),
    "model inside a dataclass": (Holder(User(fullName="b")), {"held": {"fullName": "B", "picture": "", "secret": "**********", "size": 0}}),
}  # fmt: skip


@pytest.fixture(params=["by msgspec where it can", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of conversion: with pydantic's dataclasses about, msgspec is not trusted with dataclasses."""
    if request.param == "by msgspec where it can":
        monkeypatch.delitem(sys.modules, "pydantic.dataclasses")
    assert ("pydantic.dataclasses" in sys.modules) == (request.param == "step by step")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("value", "expected"), CASES.values(), ids=CASES.keys())
def test_a_value_has_its_form_in_json(value: Any, expected: Any) -> None:
    plain = to_plain(value)
    assert plain == expected
    assert json.loads(json.dumps(plain)) == plain


def test_a_dataclass_of_pydantic_is_written_as_its_schema_says() -> None:
    assert to_plain([Tagged(theTag=1)]) == [{"theTag": 1}]


def test_plain_data_is_returned_as_the_same_object() -> None:
    data = {"a": [1, 2.5, "x", None, True, {"b": []}]}
    assert to_plain(data) is data


def endless() -> list[Any]:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    return loop


def deep() -> list[Any]:
    value: list[Any] = [()]
    for _ in range(DEEPEST + 1):
        value = [value]
    return value


def numbers() -> Iterator[int]:
    yield 1


UNFIT: dict[str, tuple[Any, str]] = {
    "root": (object(), "/"),
    "nan": ({"a": [1, float("nan")]}, "/a/1"),
    "decimal that is no number": ({"a": [Decimal(1), Decimal("NaN")]}, "/a/1"),
    "decimal without end": ({"a": Decimal("-Infinity")}, "/a"),
    "infinity": ([float("-inf")], "/0"),
    "object in a dataclass": (Nested([Point(1), object()]), "/points/1"),  # type: ignore[list-item]  # that is the point
    "object below odd keys": ({"a/b": {"c~d": object()}}, "/a~1b/c~0d"),
    "object in a struct": (Animal("Rex", home={1, 2, object}), "/home"),
    "key": ({"a": {None: 1}}, "/a"),
    "key that is a pair": ({"a": {(1, 2): 1}}, "/a"),
    "cycle": (endless(), "/1/again"),
    "generator": ({"items": numbers()}, "/items"),
    "function": ([len], "/0"),
    "class": ([int], "/0"),
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("value", "path"), UNFIT.values(), ids=UNFIT.keys())
def test_a_value_without_a_json_form_is_an_error_with_its_location(value: Any, path: str) -> None:
    with pytest.raises(CallError) as failed:
        to_plain(value)
    assert failed.value.code == "EXECUTION_ERROR"
    assert failed.value.message.startswith(f"failed to marshal response: {path}")
    assert failed.value.details["reason"]


def test_a_value_nested_too_deeply_is_an_error() -> None:
    with pytest.raises(CallError, match="failed to marshal response: /0/0/0"):
        to_plain(deep())


def test_a_model_that_fails_to_write_itself_is_an_error_that_says_where() -> None:
    class Shy(pydantic.BaseModel):
        name: str

        @pydantic.field_serializer("name")
        def _refuse(self, _name: str) -> str:
            raise ValueError("not telling")

    with pytest.raises(CallError, match="failed to marshal response: /people/0"):
        to_plain({"people": [Shy(name="a")]})


def test_the_path_starts_where_the_caller_says() -> None:
    with pytest.raises(CallError, match="failed to marshal response: /data/a"):
        to_plain({"a": object()}, "/data")


def test_the_same_object_twice_is_not_a_cycle() -> None:
    point = Point(1)
    assert to_plain((point, point)) == [{"x": 1, "y": 0.0}, {"x": 1, "y": 0.0}]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
)


@given(json_values)
def test_any_data_is_equal_to_its_plain_form_but_for_tuples(value: Any) -> None:
    plain = to_plain(value)
    assert json.dumps(plain) == json.dumps(value)
    assert to_plain(plain) is plain


def test_plain_data_is_made_without_pydantic() -> None:
    program = (
        "import sys; from enfold.schema.plain import to_plain; to_plain((1, {2})); print('pydantic' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


SECRETIVE = ResponseEnvelope(
    {"when": dt.date(2026, 1, 2)},
    http_envelope(None, headers={"Set-Cookie": "sid=secret", "X-Page": "2"}).meta,
    warnings=(ResultWarning("strip", "/password", "hunter2"),),
)
PUBLIC_META = {"source": "http", "statusCode": 200, "headers": {"x-page": "2"}, "contentType": ""}


@dataclass
class Page:
    inner: Any
    size: int = 10


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [SECRETIVE]}, {"a": [{"data": {"when": "2026-01-02"}, "meta": PUBLIC_META}]}),
        (Page(SECRETIVE), {"inner": {"data": {"when": "2026-01-02"}, "meta": PUBLIC_META}, "size": 10}),
        ([SECRETIVE.meta], [PUBLIC_META]),
        (list(SECRETIVE.warnings), [{"code": "strip", "path": "/password", "type": "null", "size": 0}]),
        ({"a": TextContent(text="hi", extra={"new": 1})}, {"a": {"type": "text", "text": "hi", "new": 1}}),
    ],
    ids=["an envelope", "an envelope in a dataclass", "the meta of one", "warnings", "a content block"],
)
def test_private_fields_are_not_written_inside_a_result(value: Any, plain: Any) -> None:
    assert to_plain(value) == plain


def test_an_envelope_inside_another_is_written_as_its_wire_form() -> None:
    inner = local_envelope(1, "in")
    assert to_plain({"e": local_envelope(inner, "out")})["e"]["data"] == inner.to_wire()


@attrs.define(slots=False)
class Open:
    a: int
    b: str = "x"


@dataclass(slots=True)
class Slotted:
    a: int
    b: str = "x"


@dataclass
class Loose:
    a: int
    b: str = "x"


@pytest.mark.parametrize("kind", [Loose, Slotted, Open], ids=["dataclass", "with slots", "attrs"])
def test_a_default_of_the_class_is_written(kind: Any) -> None:
    assert to_plain({"v": msgspec.convert({"a": 1}, kind)}) == {"v": {"a": 1, "b": "x"}}


def test_two_keys_with_the_same_text_are_an_error_that_names_them() -> None:
    with pytest.raises(CallError) as caught:
        to_plain({"in": {1: 2, "1": 3}})
    assert (caught.value.code, caught.value.details["path"]) == ("EXECUTION_ERROR", "/in/1")


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ("\ud800", ""),
        ({"rows": [{"name": "whole"}, {"name": "half \udcff"}]}, "/rows/1/name"),
        ({"a/b": ["x", "\ud800"]}, "/a~1b/1"),
        ({"\ud800": 1}, ""),
        ({"\ud800": {"b": "\ud800"}}, ""),
    ],
)
def test_an_unpaired_surrogate_is_reported_with_its_path(data: Any, path: str) -> None:
    with pytest.raises(UnicodeEncodeError) as refused:
        encode(data)
    told = unwritable(data, refused.value)
    assert told.message == f"failed to marshal response: {path or '/'}: the text contains an unpaired surrogate"
    assert told.details["path"] == path
