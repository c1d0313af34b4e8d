"""Casts of random types and values, compared with those of the real TypeBox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import not_run

from enfold.schema.cast import CastError, cast

Spec = dict[str, Any]

PROGRAM = Path(__file__).parent / "data" / "typebox_cast.mjs"
MODULES = Path(__file__).parents[2] / ".parts" / "node_modules"

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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cast_gives_what_typebox_gives(seed: int) -> None:
    types = Types(seed)
    questions = [types.question(values=8) for _ in range(150)]
    for question, reply in zip(questions, ask_typebox(questions), strict=True):
        for value, expected in zip(question["values"], reply["answers"], strict=True):
            assert as_json(answer(reply["schema"], value)) == as_json(comparable(expected)), (reply["schema"], value)


def answer(schema: Any, value: Any) -> Any:
    try:
        return {"cast": cast(schema, value)}
    except CastError as error:
        return comparable({"error": {"type": error.kind, "message": error.message}})


def comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply without what depends on JavaScript's own messages, and on whose limit an endless type meets first."""
    error = reply.get("error", {})
    if error.get("message", "").startswith("Cannot create recursive type"):
        return {"error": {"type": "RangeError"}}
    return {"error": {"type": error["type"]}} if error.get("type") in {"TypeError", "RangeError"} else reply


def as_json(value: Any) -> str:
    """A text that is the same for equal JSON: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_with_floats(value), sort_keys=True)


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return float(value) if type(value) is int else value


def ask_typebox(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
