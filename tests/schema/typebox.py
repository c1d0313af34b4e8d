"""Casts of TypeBox: types and values made from a seed, TypeBox's answers, and the recording of them.

`python -m tests.schema.typebox` runs TypeBox again and writes `data/casts.jsonl.gz`, so that a checkout without
Node.js compares with TypeBox too. It needs node and `@sinclair/typebox` below `.parts` (`make setup`).
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from tests.conftest import not_run

from enfold.schema.cast import CastError, cast

Spec = dict[str, Any]

DATA: Final = Path(__file__).parent / "data"
PROGRAM: Final = DATA / "typebox_cast.mjs"
RECORDED: Final = DATA / "casts.jsonl.gz"
MODULES: Final = Path(__file__).parents[2] / ".parts" / "node_modules"
SHARED: Final = Path(__file__).parents[3] / "shared" / "data" / "cast"
SEED: Final = 34
RANDOM_TYPES: Final = 420
VALUES: Final = 8

# No name looks like a number: JavaScript moves such properties to the front, and another one is then the first fault.
NAMES = ["a", "b", "c", "kind", "length"]
TEXTS = ["", "a", "b", "cat", "k1", "a long text", "x42", "é", "😀", "line\nbreak"]
PATTERNS = ["^a", "^k", "t$", "^[a-c]+$", "\\d"]
JUNK: list[Any] = [None, True, False, 0, 1, -1, 2.5, 7, 100, "", "a", "cat", "é", [], [1, "2", None], {}, {"a": 1}]

LEAVES = {
    "String": 6,
    "Number": 5,
    "Integer": 5,
    "Boolean": 3,
    "Null": 3,
    "Literal": 5,
    "Unknown": 2,
    "Any": 1,
    "Never": 1,
}
BRANCHES = {
    "Object": 9,
    "Array": 5,
    "Tuple": 3,
    "Record": 3,
    "Union": 6,
    "Intersect": 4,
    "Not": 1,
    "Recursive": 2,
    "Module": 1,
}


class Case(NamedTuple):
    """A schema, a value, and what TypeBox answers: `{"cast": …}` or `{"error": {"type": …, "message": …}}`."""

    id: str
    schema: Any
    value: Any
    answer: dict[str, Any]


# --- reading ------------------------------------------------------------------------------------------------------


def corpora() -> list[str]:
    """The names of the sets of cases: the recorded one, and those in `../shared/data` where it is present."""
    return ["recorded", *(sorted(path.stem for path in SHARED.glob("*.jsonl")))]


def cases(corpus: str) -> Iterator[Case]:
    """The cases of a corpus."""
    return _recorded_cases() if corpus == "recorded" else _shared_cases(SHARED / f"{corpus}.jsonl")


def _recorded_cases() -> Iterator[Case]:
    for line in gzip.decompress(RECORDED.read_bytes()).splitlines():
        group = json.loads(line)
        for number, (value, answer) in enumerate(group["cases"]):
            yield Case(f"{group['id']}-{number}", group["schema"], value, answer)


def _shared_cases(path: Path) -> Iterator[Case]:
    for line in path.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["category"] == "quirk-format-unregistered":
            continue  # TypeBox rejects values of every format it does not know; Enfold treats formats as annotations.
        found = case.get("fixed", case)
        answer = {"cast": found["cast"]} if "cast" in found else {"error": found["error"]}
        yield Case(case["id"], case["schema"], case["value"], answer)


# --- comparing ----------------------------------------------------------------------------------------------------


def our_answer(schema: Any, value: Any) -> dict[str, Any]:
    """What `cast` answers, in TypeBox's form."""
    try:
        return {"cast": cast(schema, value)}
    except CastError as error:
        return {"error": {"type": error.kind, "message": error.message}}


def as_json(value: Any) -> str:
    """The value as text: equal for equal JSON, where 1 equals 1.0 but not true."""
    return json.dumps(_with_floats(value), sort_keys=True)


def without_engine_messages(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without JavaScript's own messages, and without which limit an infinite type reaches first."""
    error = answer.get("error", {})
    if error.get("message", "").startswith("Cannot create recursive type"):
        return {"error": {"type": "RangeError"}}
    return {"error": {"type": error["type"]}} if error.get("type") in {"TypeError", "RangeError"} else answer


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return float(value) if type(value) is int else value


# --- asking TypeBox -----------------------------------------------------------------------------------------------


def ask_typebox(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each `{spec, values}` the schema that TypeBox builds and its answer for each value."""
    node = shutil.which("node", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if node is None:
        not_run("node")
    if not (MODULES / "@sinclair" / "typebox").is_dir():
        not_run("@sinclair/typebox")
    lines = "\n".join(map(json.dumps, questions))
    done = subprocess.run(
        [node, PROGRAM, MODULES], input=lines, capture_output=True, text=True, encoding="utf-8", check=True, timeout=120
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_questions(seed: int, count: int) -> list[dict[str, Any]]:
    """Random types with values that nearly fit them, the same for the same seed."""
    types = Types(seed)
    return [types.question(VALUES) for _ in range(count)]


class Types:
    """Random types, written as small specifications, and values that nearly fit them, all from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  Repeatable, not secret.
        self._recursive = 0

    def question(self, values: int) -> dict[str, Any]:
        spec = self.spec()
        return {"spec": spec, "values": [self.value(spec) for _ in range(values)]}

    def spec(self, depth: int = 3, inside: str | None = None, refs: tuple[str, ...] = ()) -> Spec:
        """A type of at most this depth; `inside` is the recursive type around it, `refs` the names of its module."""
        if inside and self._random.random() < 0.15:
            return {"kind": "This", "name": inside}
        if refs and self._random.random() < 0.25:
            return {"kind": "Ref", "name": self._random.choice(refs), "options": self._default(0.1)}
        if depth == 0 or self._random.random() < 0.25:
            return self._leaf()
        kind = self._one_of(BRANCHES)
        nested = (inside or refs) and kind in {"Recursive", "Module"}
        return self._branch("Object" if nested else kind, depth - 1, inside, refs)

    def _leaf(self) -> Spec:
        kind = self._one_of(LEAVES)
        options = self._default(0.2)
        if kind == "String":
            options |= self._some(minLength=[0, 1, 3], maxLength=[2, 4, 20], pattern=PATTERNS)
        if kind in {"Number", "Integer"}:
            options |= self._some(minimum=[-1, 0, 1, 2.5], maximum=[0, 5, 99], multipleOf=[1, 2, 0.5])
            options |= self._some(exclusiveMinimum=[0, 1], exclusiveMaximum=[5, 100])
        value = {"value": self._random.choice(["a", "b", "cat", 1, 2.5, True])} if kind == "Literal" else {}
        return {"kind": kind, "options": options} | value

    def _branch(self, kind: str, depth: int, inside: str | None, refs: tuple[str, ...]) -> Spec:
        def part() -> Spec:
            return self.spec(depth, inside, refs)

        def parts(least: int, most: int) -> list[Spec]:
            return [part() for _ in range(self._random.randint(least, most))]

        options = self._default(0.1)
        sizes = {"minProperties": [1, 2], "maxProperties": [1, 3]}
        match kind:
            case "Object":
                names = self._random.sample(NAMES, self._random.randint(0, 4))
                optional = [name for name in names if self._random.random() < 0.35]
                options |= self._some(additionalProperties=[False, False, True, part()], **sizes)
                properties = {name: part() for name in names}
                return {"kind": kind, "properties": properties, "optional": optional, "options": options}
            case "Array":
                options |= self._some(minItems=[0, 1, 2], maxItems=[1, 2, 3], uniqueItems=[True])
                options |= self._some(contains=[part()], minContains=[1, 2], maxContains=[1])
                return {"kind": kind, "items": part(), "options": options}
            case "Tuple":
                return {"kind": kind, "items": parts(0, 3), "options": options}
            case "Record":
                options |= self._some(additionalProperties=[False, True, part()], **sizes)
                pattern = self._random.choice([None, None, *PATTERNS])
                return {"kind": kind, "pattern": pattern, "values": part(), "options": options}
            case "Union":
                return {"kind": kind, "variants": parts(2, 4), "options": options}
            case "Intersect":
                # Mostly of objects, as people write them.
                objects = [self._branch("Object", depth, inside, refs) for _ in range(self._random.randint(1, 2))]
                options |= self._some(unevaluatedProperties=[False, part()])
                return {"kind": kind, "members": [*objects, *parts(1, 1)], "options": options}
            case "Not":
                inner = part()
                # Not(Unknown) is written as Never is, so a reader cannot tell them apart.
                return (
                    inner if inner["kind"] in {"Unknown", "Any"} else {"kind": kind, "inner": inner, "options": options}
                )
            case "Module":
                names = ["A", "B"]
                modules = {name: self._branch("Object", depth, None, ("A", "B")) for name in names}
                return {"kind": kind, "name": "A", "parts": modules}
            case _:
                self._recursive += 1
                name = f"R{self._recursive}"
                shape = self._random.choice(["Object", "Object", "Array", "Tuple"])
                return {"kind": kind, "name": name, "inner": self._branch(shape, depth, name, refs)}

    def value(self, spec: Spec | None, depth: int = 6, around: dict[str, Spec] | None = None) -> Any:
        """A value that mostly fits the type; `around` is what its references mean."""
        around = around or {}
        if spec is None or depth == 0 or self._random.random() < 0.12:
            return self._random.choice(JUNK)
        match spec["kind"]:
            case "String":
                return self._random.choice(TEXTS)
            case "Number" | "Integer":
                return self._random.choice([0, 1, 2, 3, 50, 2.5, 1.0, -1])
            case "Boolean":
                return self._random.choice([True, False])
            case "Null":
                return None
            case "Literal":
                return spec["value"]
            case "Object":
                return self._object(spec, depth - 1, around)
            case "Record":
                names = self._random.sample(TEXTS + NAMES, self._random.randint(0, 3))
                return {name: self.value(spec["values"], depth - 1, around) for name in names}
            case "Array":
                return [self.value(spec["items"], depth - 1, around) for _ in range(self._random.randint(0, 4))]
            case "Tuple":
                return [self.value(part, depth - 1, around) for part in spec["items"]]
            case "Union":
                return self.value(self._random.choice(spec["variants"]), depth, around)
            case "Intersect":
                return self._merged([self.value(member, depth, around) for member in spec["members"]])
            case "Recursive":
                return self.value(spec["inner"], depth, around | {spec["name"]: spec["inner"]})
            case "Module":
                return self.value(spec["parts"][spec["name"]], depth, around | spec["parts"])
            case "This" | "Ref":
                return self.value(around.get(spec["name"]), depth - 1, around)
            case _:
                return self._random.choice(JUNK)

    def _object(self, spec: Spec, depth: int, around: dict[str, Spec]) -> dict[str, Any]:
        parts = [(name, part) for name, part in spec["properties"].items() if self._random.random() < 0.88]
        value = {name: self.value(part, depth, around) for name, part in parts}
        if self._random.random() < 0.2:
            value[self._random.choice(NAMES)] = self._random.choice(JUNK)
        return value

    def _merged(self, values: list[Any]) -> Any:
        if all(isinstance(value, dict) for value in values):
            return {name: item for value in values for name, item in value.items()}
        return self._random.choice(values)

    def _one_of(self, weights: dict[str, int]) -> str:
        return self._random.choices([*weights], [*weights.values()])[0]

    def _default(self, chance: float) -> Spec:
        return {"default": self._random.choice(JUNK)} if self._random.random() < chance else {}

    def _some(self, **choices: list[Any]) -> Spec:
        return {name: self._random.choice(values) for name, values in choices.items() if self._random.random() < 0.12}


# --- types written by hand: what a random type seldom is -----------------------------------------------------------


def _string(**options: Any) -> Spec:
    return {"kind": "String", "options": options}


def _integer(**options: Any) -> Spec:
    return {"kind": "Integer", "options": options}


def _number(**options: Any) -> Spec:
    return {"kind": "Number", "options": options}


def _array(items: Spec, **options: Any) -> Spec:
    return {"kind": "Array", "items": items, "options": options}


def _map(values: Spec) -> Spec:
    return {"kind": "Record", "pattern": None, "values": values, "options": {}}


def _union(*variants: Spec, **options: Any) -> Spec:
    return {"kind": "Union", "variants": list(variants), "options": options}


def _literals(*values: Any, **options: Any) -> Spec:
    return _union(*({"kind": "Literal", "value": value, "options": {}} for value in values), **options)


def _all_of(*members: Spec, **options: Any) -> Spec:
    return {"kind": "Intersect", "members": list(members), "options": options}


def _object(optional: str = "", /, options: Spec | None = None, **properties: Spec) -> Spec:
    """An object whose properties are required but for those that `optional` names."""
    return {"kind": "Object", "properties": properties, "optional": optional.split(), "options": options or {}}


def _recursive(name: str, inner: Spec) -> Spec:
    return {"kind": "Recursive", "name": name, "inner": inner}


NULL: Final[Spec] = {"kind": "Null", "options": {}}
BOOLEAN: Final[Spec] = {"kind": "Boolean", "options": {}}
UNKNOWN: Final[Spec] = {"kind": "Unknown", "options": {}}
CLOSED: Final = {"additionalProperties": False}

ODD_VALUES: Final[list[Any]] = [
    None, True, 0, -1, 42, 2.5, 1e21, 5e-324, 2**53, "", "42", "abc", "😀", "é" * 3, "a\nb", "2024-01-01",
    [], [1], ["a", None], [[1], [1]], {}, {"a": 1}, {"length": 1}, {"0": "a"}, {"a": {"b": []}},
]  # fmt: skip

HANDWRITTEN: Final[dict[str, Spec]] = {
    "length in UTF-16 units": _string(minLength=2, maxLength=3),
    "length of a default": _string(minLength=5, default="abc"),
    "a pattern with classes": _string(pattern="^[\\w-]+\\.\\d{1,3}$", default="a.1"),
    "a pattern that looks ahead": _string(pattern="^(?=.*\\d).+$", default="a1"),
    "a range": _number(minimum=1, exclusiveMaximum=10),
    "whole multiples": _integer(multipleOf=7, minimum=3),
    "small multiples": _number(multipleOf=0.01),
    "a list taken for an object": _object(length=_integer()),
    "a list taken for a map": _map(_integer()),
    "an enum of texts": _literals("red", "green", "blue"),
    "an enum of everything": _literals("1", 1, True, 2.5),
    "an enum with a default": _literals("red", "green", default="green"),
    "a tagged union": _union(
        _object(kind=_literals("cat"), lives=_integer(default=9)),
        _object(kind=_literals("dog"), name=_string(minLength=1)),
        _object("tags", kind=_literals("fish"), tags=_array(_string())),
    ),
    "a union of objects without a tag": _union(
        _object(a=_string(), b=_integer()), _object(a=_string(), c=_integer()), _object("d", d=_string())
    ),
    "a union of lists": _union(_array(_integer()), _array(_string()), _string()),
    "a union in a union": _union(_union(_integer(), NULL), _union(_string(maxLength=2), BOOLEAN)),
    "an intersection that overlaps": _all_of(_object(a=_integer(), b=_string()), _object("c", b=_string(), c=BOOLEAN)),
    "a closed intersection": _all_of(_object(a=_integer()), _object(b=_string()), unevaluatedProperties=False),
    "an intersection of scalars": _all_of(_number(minimum=1), _number(maximum=5), default=3),
    "a tree": _recursive("Tree", _object(name=_string(), kids=_array({"kind": "This", "name": "Tree"}))),
    "a linked list": _recursive("Link", _object("next", v=_integer(), next={"kind": "This", "name": "Link"})),
    "unique items": _array(_integer(), uniqueItems=True, default=[1, 2]),
    "items within limits": _array(_string(default="x"), minItems=2, maxItems=3),
    "items that contain": _array(UNKNOWN, contains=_integer(), minContains=2, default=[1, 2]),
    "a wide object": _object(" ".join(f"p{i}" for i in range(0, 60, 3)), **{f"p{i}": _integer() for i in range(60)}),
    "a deep object": _object(a=_object(b=_object(c=_object(d=_object(e=_array(_object(f=_string()))))))),
    "closed at every level": _object(options=CLOSED, a=_object("c", options=CLOSED, b=_integer(), c=NULL), d=_string()),
}

# Plain JSON Schema as pydantic, msgspec, MCP servers and OpenAPI documents write it, beside the TypeBox type it means.
_PERSON: Final[Spec] = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "title": "Name"},
        "email": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
    },
    "required": ["name"],
}
_PERSON_TYPE: Final = _object(
    "email tags", name=_string(), email=_union(_string(), NULL, default=None), tags=_array(_string(), default=[])
)
_NODE: Final[Spec] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["name", "kids"],
}

PLAIN: Final[dict[str, tuple[Any, Spec]]] = {
    "nothing required": ({}, UNKNOWN),
    "a list of anything": ({"type": "array"}, _array(UNKNOWN)),
    "a constant": ({"const": "only", "type": "string"}, {"kind": "Literal", "value": "only", "options": {}}),
    "an enum": ({"enum": ["red", "blue"], "type": "string", "title": "Color"}, _literals("red", "blue")),
    "an enum or null": (
        {"enum": ["red", None]},
        _union({"kind": "Literal", "value": "red", "options": {}}, NULL),
    ),
    "several types": ({"type": ["integer", "null"]}, _union(_integer(), NULL)),
    "a nullable string": ({"type": "string", "nullable": True}, _union(_string(), NULL)),
    "exactly one of two": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, _union(_string(), NULL)),
    "a map": ({"type": "object", "additionalProperties": {"type": "string"}}, _map(_string())),
    "a map of nullable integers": (
        {"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        _map(_union(_integer(), NULL)),
    ),
    "a tuple": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2, "maxItems": 2},
        {"kind": "Tuple", "items": [_string(), _integer()], "options": {}},
    ),
    "a model": (_PERSON, _PERSON_TYPE),
    "a list of references": (
        {"type": "array", "items": {"$ref": "#/$defs/Person"}, "$defs": {"Person": _PERSON}},
        _array(_PERSON_TYPE),
    ),
    "an optional reference": (
        {
            "type": "object",
            "properties": {"owner": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]}, "n": {"type": "number"}},
            "required": ["n"],
            "$defs": {"Person": _PERSON},
        },
        _object("owner", owner=_union(_PERSON_TYPE, NULL), n=_number()),
    ),
    "definitions of draft 7": (
        {
            "type": "object",
            "properties": {"owner": {"$ref": "#/definitions/Person"}},
            "required": ["owner"],
            "definitions": {"Person": _PERSON},
        },
        _object(owner=_PERSON_TYPE),
    ),
    "a recursive definition": (
        {"$ref": "#/$defs/Node", "$defs": {"Node": _NODE}},
        _recursive("Node", _object(name=_string(), kids=_array({"kind": "This", "name": "Node"}))),
    ),
    "properties beside a map": (
        {
            "type": "object",
            "properties": {"id": {"type": "string"}},
            "required": ["id"],
            "additionalProperties": {"type": "number"},
        },
        _object(options={"additionalProperties": _number()}, id=_string()),
    ),
    "properties without a type": (
        {"properties": {"id": {"type": "integer"}, "list": {"type": "array"}}, "required": ["id"]},
        _object("list", id=_integer(), list=_array(UNKNOWN)),
    ),
    "members of an OpenAPI schema": (
        {
            "allOf": [
                {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
                {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
            ]
        },
        _all_of(_object(id=_integer()), _object("tags", tags=_array(_string()))),
    ),
    "annotations": (
        {"type": "integer", "title": "N", "description": "A number.", "examples": [1], "x-order": 3, "readOnly": True},
        _integer(),
    ),
}


# --- recording ----------------------------------------------------------------------------------------------------


def record() -> None:
    """Ask TypeBox about every type and write the answers."""
    types = Types(SEED)
    questions = [
        {"id": f"handwritten: {name}", "spec": spec, "values": [*ODD_VALUES, *(types.value(spec) for _ in range(10))]}
        for name, spec in HANDWRITTEN.items()
    ]
    questions += [
        {"id": f"plain: {name}", "spec": spec, "schema": schema, "values": [types.value(spec) for _ in range(15)]}
        for name, (schema, spec) in PLAIN.items()
    ]
    questions += [
        {"id": f"random: {number}", **question}
        for number, question in enumerate(random_questions(SEED + 1, RANDOM_TYPES))
    ]
    lines = [
        json.dumps(_group(question, reply), ensure_ascii=False, separators=(",", ":"))
        for question, reply in zip(questions, ask_typebox(questions), strict=True)
    ]
    RECORDED.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def _group(question: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    pairs = list(zip(question["values"], reply["answers"], strict=True))
    return {"id": question["id"], "schema": question.get("schema", reply["schema"]), "cases": pairs}


if __name__ == "__main__":
    record()
