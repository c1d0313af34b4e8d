"""Results of declared types: the engine that knows the type gives what the steps of `to_plain` give, only faster."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
from typing_extensions import NotRequired, TypedDict

from enfold import CallError, OperationSpec, ResponseEnvelope, TextContent, local_envelope
from enfold.operation import Policy
from enfold.pipeline import build_pipeline, build_writing_pipeline
from enfold.schema.signature import Signature, read_signature
from enfold.schema.structs import encode

T = TypeVar("T")

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
WHEN = dt.datetime(2024, 1, 2, 3, 4, 5, 600, tzinfo=dt.UTC)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Word(str, enum.Enum):
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Name(str):
    __slots__ = ()


@dataclass
class Row:
    id: int
    name: str
    price: float
    tags: list[str]


@dataclass
class Wider(Row):
    secret: str = "s"


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: str = "x"


@dataclass
class Loose:
    a: int
    b: str = "x"
    wrong: int = None  # type: ignore[assignment]  # as people write


@dataclass
class Odd:
    a: int
    given: InitVar[int] = 1
    unit: ClassVar[str] = "m"
    late: int = field(init=False)
    held: int = field(init=False, default=5)
    made: list[int] = field(init=False, default_factory=list)
    _hidden: int = 3

    def __post_init__(self, given: int) -> None:
        self.late = given
        self.surplus = "not a field"

    @cached_property
    def cached(self) -> int:
        return 1


@dataclass
class Unset:
    a: int
    late: int = field(init=False)


@dataclass
class Texts:
    when: dt.datetime
    day: dt.date
    time: dt.time
    lasting: dt.timedelta
    id: uuid.UUID
    price: Decimal
    raw: bytes
    path: Path
    address: ipaddress.IPv4Address
    colour: Colour
    word: Word
    level: Level
    right: Right


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass
class OpenTree:
    value: Any
    children: list[OpenTree] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    item: T
    more: list[T] = field(default_factory=list)


@dataclass
class Holder:
    held: Any
    table: dict[str, int] = field(default_factory=dict)


@dataclass
class Numbers:
    some: float | None
    pair: tuple[int, float]
    one: Literal[1, "one"] | None
    names: frozenset[str] = frozenset()


class Pair(NamedTuple):
    left: int
    right: bytes


class Point(TypedDict):
    x: int
    when: NotRequired[dt.date]


@attrs.define
class Parcel:
    weight: Decimal
    _code: str = "none"


@attrs.define(slots=False)
class OpenParcel:
    weight: int
    note: str = "x"


class Struct(msgspec.Struct, rename="camel"):
    full_name: str
    birth_day: dt.date | msgspec.UnsetType = msgspec.UNSET


class Lean(msgspec.Struct, omit_defaults=True):
    name: str
    legs: int = 4
    tags: list[str] = []


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    age: int


class Rgb(msgspec.Struct, array_like=True, tag=True):
    red: int
    green: int = 0


class Model(pydantic.BaseModel):
    id: int
    name: str = pydantic.Field(alias="fullName", default="x")
    when: dt.timedelta = dt.timedelta(hours=1)
    picture: bytes = b""
    secret: pydantic.SecretStr = pydantic.SecretStr("x")
    price: float = 1e22

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic says to write it
    @property
    def size(self) -> int:
        return len(self.picture)


class WiderModel(Model):
    more: int = 1


class Shy(pydantic.BaseModel):
    name: str
    hidden: int = pydantic.Field(default=1, exclude=True)

    @pydantic.field_serializer("name")
    def _refuse(self, name: str) -> str:
        if name == "bad":
            raise ValueError("not telling")
        return name.upper()


class Anyway(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


class Root(pydantic.RootModel[list[int]]):
    pass


class Whole(pydantic.BaseModel):
    a: int

    @pydantic.model_serializer
    def _write(self) -> dict[str, int]:
        return {"twice": self.a * 2}


class Kitten(pydantic.BaseModel):
    kind: Literal["kitten"] = "kitten"
    row: Row | None = None


class Puppy(pydantic.BaseModel):
    kind: Literal["puppy"] = "puppy"
    age: int


Pet = Annotated[Kitten | Puppy, pydantic.Field(discriminator="kind")]


class GenericModel(pydantic.BaseModel, Generic[T]):
    item: T


@dataclass
class WithModel:
    model: Model
    pets: list[Kitten | Puppy] = field(default_factory=list)


ROW = Row(1, "a", 1.5, ["x"])
TEXTS = Texts(
    WHEN, WHEN.date(), WHEN.time(), dt.timedelta(hours=1.5), ID, Decimal("1.50"), b"\xfb\xff", Path("a/b"),
    ipaddress.IPv4Address("1.2.3.4"), Colour.RED, Word.A, Level.LOW, Right.READ | Right.WRITE,
)  # fmt: skip


def endless() -> Any:
    tree = Tree(1)
    tree.children = [tree, tree]
    return tree


def endless_and_open() -> Any:
    tree = OpenTree(1)
    tree.children = [tree, tree]
    return tree


def numbers() -> Iterator[int]:
    yield 1


# Values that each type is tried with: right ones, and ones that a handler may return although it should not.
CASES: dict[str, tuple[Any, list[Any]]] = {
    "dataclasses": (
        list[Row],
        [
            [ROW, Row(2, "b", 2, [])],
            [],
            (ROW,),
            [ROW, Wider(1, "a", 1.5, [])],
            [ROW, {"id": 1, "name": "a", "price": 1, "tags": []}],
            [ROW, {"price": 1, "name": "a", "id": 1, "tags": []}, None],
            [*[ROW] * 999, Row("1", "a", 1.5, ["x"])],  # type: ignore[arg-type]  # that is the point
            [Row(1, Name("a"), 1.5, [])],
            [Row(1, "a", float("nan"), [])],
            [ROW, Row(1, "a", float("inf"), [])],
            [Row(1, "a", 10**400, ["\ud800"])],
            [Row(1, None, 1.5, [object()])],  # type: ignore[arg-type, list-item]  # as above
            [Row(True, "a", True, ("x",))],  # type: ignore[arg-type]  # as above
            [ROW, 1],
            "text",
            None,
            numbers(),
            [numbers()],
            [TextContent(text="hi")],
            TextContent(text="hi"),
            [ROW, TextContent(text="hi")],
            local_envelope([ROW], "other"),
            {"data": [ROW], "meta": {"source": "local"}},
            types.MappingProxyType({"data": [], "meta": {"source": "local"}}),
            Model(id=1),
            collections.deque([ROW]),
        ],
    ),
    "one dataclass": (Row, [ROW, Wider(1, "a", 1, []), Slotted(1), ROW.__dict__, {}, None, local_envelope(ROW, "x")]),
    "a slotted one": (Slotted | None, [Slotted(1), None, Slotted("1"), 5]),  # type: ignore[arg-type]  # as above
    "class-held defaults": (list[Loose], [[Loose(1)], [msgspec.convert({"a": 1}, Loose)], [Loose(1, wrong=2)]]),
    "fields of its own": (Odd, [Odd(1), Odd(1, given=7)]),
    "a field that is not set": (Unset, [Unset(1)]),
    "texts": (list[Texts], [[TEXTS], [TEXTS, {**TEXTS.__dict__}]]),
    "a tree": (Tree, [Tree(1, [Tree(2), Tree(3, [Tree(4)])]), endless(), Tree(1, [1])]),  # type: ignore[list-item]
    "an open tree": (OpenTree, [OpenTree(1, [OpenTree({"a": Row})]), OpenTree(b"x", [OpenTree(ROW)]), endless_and_open()]),
    "a generic one": (Box[Row], [Box(ROW, [ROW]), Box(1), Box([ROW])]),
    "anything": (
        list[Holder],
        [
            [Holder(value, {"a": 1})]
            for value in (1, ROW, Model(id=1), [{"a": (1, {2})}], local_envelope(1, "x"), TextContent(text="t"), object())
        ]
        + [[Holder(1, {1: 1})], [Holder(1, TextContent(text="t"))], [Holder(float("nan"))], [Holder({1: 2, "1": 3})]],  # type: ignore[dict-item, arg-type]
    ),
    "numbers": (
        list[Numbers],
        [
            [Numbers(1.5, (1, 2.0), "one", frozenset({"a"})), Numbers(None, (1, 2), None)],
            [Numbers(float("nan"), (1, 1.0), 1)],
            [Numbers(None, (1, float("nan")), 1)],
            [Numbers(1, (1,), 2, ["a", "a"])],  # type: ignore[arg-type]
            [Numbers(None, [1, 2], True, {"a"})],  # type: ignore[arg-type]
        ],
    ),
    "a named tuple": (list[Pair], [[Pair(1, b"hi")], [(1, b"hi")], [Pair("x", b"")], [[1, "aGk="]]]),  # type: ignore[arg-type]
    "a pair": (tuple[Row, int], [(ROW, 1), [ROW, 1], (ROW,), (ROW, "1")]),
    "a typed dict": (list[Point], [[{"x": 1, "when": WHEN.date()}, {"x": 2}], [{"x": 1, "y": 2}], [{"x": "1"}]]),
    "attrs": (list[Parcel], [[Parcel(Decimal(1))]]),
    "open attrs": (list[OpenParcel], [[OpenParcel(1)], [msgspec.convert({"weight": 1}, OpenParcel)]]),
    "structs": (list[Struct], [[Struct("a"), Struct("b", WHEN.date())], [Struct(1)], [Cat("x")]]),  # type: ignore[arg-type]
    "lean structs": (list[Lean], [[Lean("a"), Lean("b", 3, ["x"])]]),
    "tagged structs": (list[Cat | Dog], [[Cat("a"), Dog(1)], [Cat("a"), Dog("1")], [Row]]),  # type: ignore[arg-type]
    "structs as arrays": (list[Rgb], [[Rgb(1), Rgb(1, 2)], [Rgb("x")]]),  # type: ignore[arg-type]
    "a union": (Row | Slotted | str, [ROW, Slotted(1), "x", Wider(1, "a", 1, []), 5]),
    "a table": (dict[str, Row], [{"a": ROW, "b": ROW}, {"a": 1}, {}, {1: ROW}, {"meta": ROW}, collections.OrderedDict(a=ROW)]),
    "numbered": (dict[int, Row], [{1: ROW}, {"1": ROW}, {1: ROW, "1": ROW}, {True: ROW}, {None: ROW}]),
    "by enum": (dict[Word, int], [{Word.A: 1}, {"a": 1}, {Colour.PAIR: 1}]),
    "sets": (set[Word], [{Word.A}, ["a", "a"], frozenset({"a"})]),
    "sequences": (Sequence[Row], [[ROW], (ROW,), collections.deque([ROW]), range(3)]),
    "mappings": (Mapping[str, Slotted], [{"a": Slotted(1)}, types.MappingProxyType({"a": Slotted(1)})]),
    "a date": (dt.datetime, [WHEN, "2024", WHEN.date()]),
    "bytes": (bytes, [b"hi", bytearray(b"hi"), memoryview(b"hi"), "aGk="]),
    "an enum": (Colour, [Colour.RED, Colour.PAIR, "red", "blue"]),
    "flags": (Right, [Right.READ, Right.READ | Right.WRITE, 3]),
    "a path": (PurePosixPath, [PurePosixPath("a/b"), "a"]),
    "models": (
        list[Model],
        [
            [Model(id=1), Model(id=2, fullName="b", picture=b"\xfb\xff")],
            [],
            [Model(id=1), WiderModel(id=1, more=2)],
            [Model(id=1), {"id": 1}],
            [*[Model(id=1)] * 999, Model.model_construct(id="many")],
            [Model.model_construct(id=1, price=float("nan"))],
            [Model.model_construct(id=1, name=None, when=5)],
            [Kitten()],
            (Model(id=1),),
            None,
            [TextContent(text="hi")],
            local_envelope([Model(id=1)], "x"),
        ],
    ),
    "a model": (Model | None, [Model(id=1), None, WiderModel(id=1), 5]),
    "models by name": (dict[str, Model], [{"a": Model(id=1)}, {1: Model(id=1)}, {"meta": Model(id=1), "data": Model(id=1)}]),
    "a shy model": (list[Shy], [[Shy(name="a")], [Shy(name="a"), Shy(name="bad")]]),
    "a model with extras": (list[Anyway], [[Anyway(a=1, b=2), Anyway(a=1, c=WHEN)]]),  # type: ignore[call-arg]
    "a root model": (list[Root], [[Root([1, 2])]]),
    "a model that writes itself": (list[Whole], [[Whole(a=2)]]),
    "a choice of models": (list[Kitten | Puppy], [[Kitten(), Puppy(age=1)], [Kitten(row=ROW)], [Model(id=1)]]),
    "a told choice of models": (list[Pet], [[Kitten(), Puppy(age=1)], [Kitten(row=Wider(1, "a", 1, []))]]),
    "a generic model": (GenericModel[Row], [GenericModel[Row](item=ROW), GenericModel[int](item=1)]),
    "models in a dataclass": (
        list[WithModel],
        [[WithModel(Model(id=1), [Kitten(), Puppy(age=1)])], [WithModel(WiderModel(id=1))], [WithModel(ROW)]],  # type: ignore[arg-type]
    ),
}  # fmt: skip

POLICIES: dict[str, dict[str, Any]] = {
    "repair": {},
    "keep": {"extras": "keep"},
    "off": {"normalize": "off"},
    "typebox": {"normalize": "typebox"},
    "strict": {"strict_output": True},
}


def giving(annotation: Any) -> Signature:
    def give() -> Any: ...

    give.__annotations__["return"] = annotation
    return read_signature(give)


def outcome(finish: Callable[[Any], ResponseEnvelope[Any]], value: Any) -> Any:
    """What comes of a result, as the text that a writer would send."""
    try:
        envelope = finish(value)
    except CallError as error:
        return error.code, error.message
    try:
        text = encode(envelope.data)
    except ValueError:
        text = b"half a character"
    return text, envelope.meta.source, [warning.to_wire() for warning in envelope.warnings]


def ways(annotation: Any, value: Any, policy: Policy) -> dict[str, Any]:
    signature = giving(annotation)
    spec = OperationSpec(name="give", output_schema=signature.output_schema, values=signature.several or 1)
    return {
        "step by step": outcome(build_pipeline(spec, policy), value),
        "by its engine": outcome(build_pipeline(spec, policy, signature), value),
        "written": outcome(build_writing_pipeline(spec, policy, signature), value),
    }


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@pytest.mark.parametrize(("annotation", "values"), CASES.values(), ids=CASES.keys())
def test_every_way_gives_the_same_text_and_warnings(annotation: Any, values: list[Any], policy: dict[str, Any]) -> None:
    for value in values:
        found = ways(annotation, value, Policy(**policy))
        assert found["by its engine"] == found["step by step"], value
        assert found["written"] == found["step by step"], value


RIGHT = sorted(CASES.keys() - {"class-held defaults", "an open tree"})


@pytest.mark.parametrize("case", RIGHT)
def test_a_result_of_its_declared_type_fits_its_schema(case: str) -> None:
    annotation, values = CASES[case]
    signature = giving(annotation)
    spec = OperationSpec(name="give", output_schema=signature.output_schema)
    envelope = build_pipeline(spec, Policy(), signature)(values[0])
    assert envelope.warnings == ()
    assert jsonschema_rs.is_valid(spec.output_schema, envelope.data)
