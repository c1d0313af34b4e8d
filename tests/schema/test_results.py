"""Results of declared types: the engine that knows the type gives what the steps of `to_plain` give, only faster."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import enum
import ipaddress
import json
import types
import uuid
from collections import ChainMap, Counter, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, make_dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import NotRequired, TypedDict

from enfold import CallError, Context, OperationRegistry, OperationSpec, ResponseEnvelope, TextContent, local_envelope
from enfold.operations import Policy
from enfold.operations.outcomes import envelope_of
from enfold.provenance import Recorder, options_from_meta
from enfold.runtime.pipeline import build_pipeline, build_writing_pipeline
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


@dataclass
class Counted:
    counts: Counter[str]
    groups: defaultdict[str, list[Row]]


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

CASES |= {
    "counts": (Counter[str], [Counter("aab"), {"a": 1}, Counter({"a": "1"}), Counter({1: 2}), None]),
    "groups": (defaultdict[int, list[Row]], [defaultdict(list, {1: [ROW]}), {2: [ROW]}, {"x": [ROW]}, {1: ROW}]),
    "layers": (ChainMap[str, int], [ChainMap({"a": 1}, {"b": 2})]),
    "a custom mapping": (list[UserDict[str, int]], [[UserDict(a=1)], [{}]]),
    "counts in a class": (list[Counted], [[Counted(Counter("ab"), defaultdict(list, a=[ROW]))]]),
}

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
        text = b"an unpaired surrogate"
    return text, envelope.meta.source, [warning.to_wire() for warning in envelope.warnings]


def ways(annotation: Any, value: Any, policy: Policy) -> dict[str, Any]:
    signature = giving(annotation)
    spec = OperationSpec(name="give", output_schema=signature.output_schema, values=signature.values)
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


class Selective(pydantic.BaseModel):
    never: int = pydantic.Field(default=1, exclude=True)
    sometimes: int | None = pydantic.Field(default=2, exclude_if=lambda value: value is None)
    stamp: dt.datetime = WHEN
    label: int = pydantic.Field(default=1, serialization_alias="theLabel")

    @pydantic.field_serializer("stamp")
    def _seconds(self, stamp: dt.datetime):  # type: ignore[no-untyped-def]  # noqa: ANN202  # it does not say what it gives
        return int(stamp.timestamp())


class Added(pydantic.BaseModel):
    a: int

    @pydantic.model_serializer(mode="wrap")
    def _add(self, write: Any):  # type: ignore[no-untyped-def]  # noqa: ANN202  # as above
        return {**write(self), "more": 1}


class Carrier(pydantic.BaseModel):
    whole: pydantic.SerializeAsAny[Model]


@pydantic.dataclasses.dataclass
class Tagged:
    tag: int = pydantic.Field(alias="theTag")


Numbered = Annotated[int, pydantic.PlainSerializer(lambda number: f"#{number}", return_type=str)]


@dataclass
class Mixed:
    tagged: Tagged
    number: Numbered = 5


WIDER = {
    "id": 1,
    "fullName": "x",
    "when": "PT1H",
    "picture": "",
    "secret": "**********",
    "price": 1e22,
    "more": 1,
    "size": 0,
}


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Selective, Selective(sometimes=None), {"stamp": 1704164645, "theLabel": 1}),
        (list[Added], [Added(a=1)], [{"a": 1, "more": 1}]),
        (Carrier, Carrier(whole=WiderModel(id=1)), {"whole": WIDER}),
        (list[pydantic.SerializeAsAny[Model]], [WiderModel(id=1)], [WIDER]),
        (list[Tagged], [Tagged(theTag=1)], [{"theTag": 1}]),
        (list[Mixed], [Mixed(Tagged(theTag=1))], [{"tagged": {"theTag": 1}, "number": "#5"}]),
        (Numbered, 5, "#5"),
        (pydantic.AnyUrl, pydantic.AnyUrl("http://x"), "http://x/"),
    ],
    ids=["excluded", "wrapped", "as any", "list of any", "pydantic dataclass", "mixed", "annotated", "url"],
)
def test_pydantic_decides_for_its_own_types(annotation: Any, value: Any, expected: Any) -> None:
    signature = giving(annotation)
    spec = OperationSpec(name="give", output_schema=signature.output_schema)
    for build in (build_pipeline, build_writing_pipeline):
        envelope = build(spec, Policy(), signature)(value)
        assert (json.loads(encode(envelope.data)), envelope.warnings) == (expected, ())


# --- any type, any value ------------------------------------------------------------------------------------------


LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-3, 3) | st.just(10**25),
    float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3),
    str: st.text(max_size=3) | st.sampled_from(["e+1", 'é\u2028"\\', "NaN"]),
    bool: st.booleans(),
    type(None): st.none(),
    bytes: st.binary(max_size=3),
    dt.date: st.dates(),
    dt.datetime: st.datetimes(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False, places=2),
    uuid.UUID: st.just(ID),
    Word: st.just(Word.A),
    Level: st.just(Level.LOW),
    PurePosixPath: st.just(PurePosixPath("a/b")),
    Any: st.sampled_from([1, "x", ROW, {"a": WHEN}, [b"x"]]),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    Slotted: st.builds(Slotted, st.integers(), st.text(max_size=2)),
    Lean: st.builds(Lean, st.text(max_size=2), st.integers(3, 5)),
    Kitten: st.builds(Kitten, row=st.none() | st.just(ROW)),
    Puppy: st.builds(Puppy, age=st.integers(0, 3)),
    Pair: st.builds(Pair, st.integers(), st.binary(max_size=2)),
}  # fmt: skip
STRANGE: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1, 1.5, "1", float("nan"), float("inf"), ROW, Wider(1, "a", 1, []), {}, {1: 2}, [], (1,), {"a"}, b"x", WHEN,
     Model(id=1), TextContent(text="t"), Name("n"), Colour.PAIR, object()]
)  # fmt: skip

Typed = tuple[Any, st.SearchStrategy[Any]]


def seldom_strange(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda chance: STRANGE if chance == 0 else values)


def containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    any_list, any_dict, any_tuple = (
        cast("Any", list),
        cast("Any", dict),
        cast("Any", tuple),
    )  # with what is known only later
    return st.one_of(
        inner.map(lambda typed: (any_list[typed[0]], st.lists(typed[1], max_size=3))),
        inner.map(
            lambda typed: (any_dict[str, typed[0]], st.dictionaries(st.sampled_from("abc"), typed[1], max_size=2))
        ),
        inner.map(lambda typed: (typed[0] | None, typed[1] | st.none())),
        inner.map(lambda typed: (any_tuple[typed[0], ...], st.lists(typed[1], max_size=2).map(tuple))),
        st.tuples(inner, inner).map(lambda two: (two[0][0] | two[1][0], two[0][1] | two[1][1])),
        st.lists(inner, min_size=1, max_size=3).flatmap(records),
    )


def records(parts: list[Typed]) -> st.SearchStrategy[Typed]:
    names = [f"f{number}" for number in range(len(parts))]
    fields = [(name, annotation) for name, (annotation, _) in zip(names, parts, strict=True)]
    values = {name: seldom_strange(strategy) for name, (_, strategy) in zip(names, parts, strict=True)}
    made: list[tuple[Any, Any]] = [
        (cls := make_dataclass("D", fields), cls),
        (struct := msgspec.defstruct("S", fields, rename={"f0": "first"}), struct),
        (cast("Any", TypedDict)("T", dict(fields)), dict),
    ]
    with contextlib.suppress(pydantic.PydanticSchemaGenerationError):  # it does not know Structs
        model = cast("Any", pydantic.create_model)("M", **{name: (annotation, ...) for name, annotation in fields})
        made.append((model, model.model_construct))
    return st.sampled_from(made).map(lambda pair: (pair[0], st.builds(pair[1], **values)))


TYPES: st.SearchStrategy[Typed] = st.recursive(st.sampled_from(list(LEAVES.items())), containers, max_leaves=5)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=400)
@given(TYPES.flatmap(lambda typed: st.tuples(st.just(typed[0]), typed[1])), st.sampled_from(list(POLICIES.values())))
def test_every_way_gives_the_same_for_any_type_and_value(case: tuple[Any, Any], policy: dict[str, Any]) -> None:
    annotation, value = case
    try:
        giving(annotation)
    except TypeError:
        return  # a union that neither engine can read
    found = ways(annotation, value, Policy(**policy))
    assert found["by its engine"] == found["step by step"]
    assert found["written"] == found["by its engine"]


async def test_a_result_that_is_recorded_is_plain_although_its_caller_only_writes() -> None:
    ops = OperationRegistry()

    @ops.query
    async def give() -> list[Row]:
        return [ROW]

    options = options_from_meta({"capture_provenance": True, "provenance_mode": "full"})
    context = Context()
    context.recording = Recorder().begin(options, adapter="http", identity="", writer=None)
    envelope = envelope_of(await ops.prepared("give", for_writing=True).execute({}, context))
    assert envelope.warnings == ()
    assert envelope.provenance is not None
