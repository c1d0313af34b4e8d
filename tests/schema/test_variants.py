"""Which variant of a union a value was meant for: the reported faults and the repair, in one table."""

from __future__ import annotations

from typing import Any

import pytest

from enfold.schema.arguments import coerce, faults
from enfold.schema.compiled import compile_schema, repair

INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def either(one: Any, other: Any, **beside: Any) -> dict[str, Any]:
    return {"oneOf": [one, other], **beside}


BASE = {"Base": record(kind={"enum": ["a", "b"]})}
REF = {"$ref": "#/$defs/Base"}
A, B = record(kind={"const": "a"}, n=INTEGER), record(kind={"const": "b"}, s=STRING)
OWN_A, OWN_B = {"properties": {"kind": {"const": "a"}, "n": INTEGER}}, {"properties": {"kind": {"const": "b"}}}
PETS = {"Cat": record(kind=STRING, lives=INTEGER), "Dog": record(kind=STRING, bark=STRING)}
CAT, DOG = {"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}


def pets(**mapping: str) -> dict[str, Any]:
    hint = {"propertyName": "kind", **({"mapping": mapping} if mapping else {})}
    return either(CAT, DOG, discriminator=hint, **{"$defs": PETS})


MAPPED = pets(kitty="#/$defs/Cat", doggy="#/$defs/Dog")
MOVED = pets(kitty="#/components/schemas/Cat", doggy="other.json#/components/schemas/Dog")
HINTED_CONSTANTS = either(A, B, discriminator={"propertyName": "kind"})
UNNAMED = either(PETS["Cat"], PETS["Dog"], discriminator={"propertyName": "kind"})
NUMBERS = either(record(v={"const": 1}, n=INTEGER), record(v={"const": 2}, s=STRING))
ALIKE = either(record(v={"const": 1}, n=INTEGER), record(v={"const": "1"}, s=STRING))
FLAGS = {"anyOf": [record(ok={"const": True}, n=INTEGER), record(ok={"const": False}, why=STRING), {"type": "null"}]}
LISTS = either(record(v={"const": [1]}, n=INTEGER), record(v={"const": {"a": 1}}, s=STRING))
OVERLAP = either(record(v={"enum": ["a", "b"]}, n=INTEGER), record(v={"enum": ["b", "c"]}, s=STRING))
TWO_TAGS = either(
    record(a={"enum": [1, 2]}, b={"const": "x"}, n=INTEGER), record(a={"enum": [2, 3]}, b={"const": "y"}, s=STRING)
)

Told = list[tuple[str, str, str | None]]
Warned = list[tuple[str, str]]

# The schema, the value, the reported faults, the data after repair (None: unchanged), and its warnings.
CASES: dict[str, tuple[Any, Any, Told, Any, Warned]] = {
    "a constant": (
        either(A, B),
        {"kind": "a", "n": "x", "s": "y"},
        [("n", "type", "integer")],
        {"kind": "a", "n": "x"},
        [("strip", "/s"), ("type_mismatch", "/n")],
    ),
    "no such constant": (
        either(A, B),
        {"kind": "c", "n": "1"},
        [("kind", "constraint", 'one of "a", "b"')],
        None,
        [("constraint", "/kind")],
    ),
    "no constant": (either(A, B), {"n": 1}, [("kind", "missing", 'one of "a", "b"')], None, [("missing", "/kind")]),
    "null for a constant": (
        either(A, B),
        {"kind": None, "n": 1},
        [("kind", "constraint", 'one of "a", "b"')],
        None,
        [("constraint", "/kind")],
    ),
    "a list for a constant": (
        either(A, B),
        {"kind": ["a"], "n": 1},
        [("kind", "constraint", 'one of "a", "b"')],
        None,
        [("constraint", "/kind")],
    ),
    "a base that lists all, beside the variant's own": (
        either({**REF, **OWN_A}, {**REF, **OWN_B}, **{"$defs": BASE}),
        {"kind": "a", "n": "x"},
        [("n", "type", "integer")],
        None,
        [("type_mismatch", "/n")],
    ),
    "a base that lists all, before the variant's own": (
        either({"allOf": [REF, OWN_A]}, {"allOf": [REF, OWN_B]}, **{"$defs": BASE}),
        {"kind": "c"},
        [("kind", "constraint", 'one of "a", "b"')],
        None,
        [("constraint", "/kind")],
    ),
    "a constant within a reference": (
        either(
            record(kind={"$ref": "#/$defs/a"}, n=INTEGER),
            record(kind={"$ref": "#/$defs/b"}, s=STRING),
            **{"$defs": {"a": {"const": "a"}, "b": {"const": "b"}}},
        ),
        {"kind": "b", "s": 1},
        [("s", "type", "string")],
        {"kind": "b", "s": "1"},
        [("convert", "/s")],
    ),
    "the name of a schema": (
        pets(),
        {"kind": "Dog", "bark": 1},
        [("bark", "type", "string")],
        {"kind": "Dog", "bark": "1"},
        [("convert", "/bark")],
    ),
    # Many documents have no mapping and other words than the names of their schemas: repair goes by likeness.
    "no name of a schema": (
        pets(),
        {"kind": "dog", "bark": 1},
        [("kind", "constraint", 'one of "Cat", "Dog"')],
        {"kind": "dog", "bark": "1"},
        [("convert", "/bark")],
    ),
    "a word of the mapping": (
        MAPPED,
        {"kind": "doggy", "bark": 1},
        [("bark", "type", "string")],
        {"kind": "doggy", "bark": "1"},
        [("convert", "/bark")],
    ),
    "a name that the mapping leaves": (
        MAPPED,
        {"kind": "Dog", "bark": 1},
        [("bark", "type", "string")],
        {"kind": "Dog", "bark": "1"},
        [("convert", "/bark")],
    ),
    "no word of the mapping": (
        MAPPED,
        {"kind": "cow", "bark": 1, "more": 1},
        [("kind", "constraint", 'one of "kitty", "doggy"')],
        None,
        [("constraint", "/kind")],
    ),
    "no word of the mapping, and valid": (MAPPED, {"kind": "cow", "bark": "moo", "more": 1}, [], None, []),
    "a number for a word": (
        MAPPED,
        {"kind": 5, "bark": "x"},
        [("kind", "constraint", 'one of "kitty", "doggy"')],
        {"kind": "5", "bark": "x"},
        [("convert", "/kind")],
    ),
    "a mapping of a document that was moved": (
        MOVED,
        {"kind": "doggy", "bark": 1},
        [("bark", "type", "string")],
        {"kind": "doggy", "bark": "1"},
        [("convert", "/bark")],
    ),
    "constants beside a discriminator": (
        HINTED_CONSTANTS,
        {"kind": "c", "n": 1, "more": 1},
        [("kind", "constraint", 'one of "a", "b"')],
        None,
        [("constraint", "/kind")],
    ),
    "an empty word for variants without names": (
        UNNAMED,
        {"kind": "", "bark": 1},
        [("bark", "type", "string")],
        {"kind": "", "bark": "1"},
        [("convert", "/bark")],
    ),
    "numbers": (NUMBERS, {"v": 2.0, "s": 1}, [("s", "type", "string")], {"v": 2.0, "s": "1"}, [("convert", "/s")]),
    "true is no 1": (
        NUMBERS,
        {"v": True, "n": 1},
        [("v", "constraint", "one of 1, 2")],
        None,
        [("constraint", "/v")],
    ),
    "a number as text": (
        NUMBERS,
        {"v": "2", "s": "x", "n": 1},
        [("v", "constraint", "one of 1, 2")],
        {"v": 2, "s": "x"},
        [("strip", "/n"), ("convert", "/v")],
    ),
    "a text that is both": (
        ALIKE,
        {"v": "1", "s": 1},
        [("s", "type", "string")],
        {"v": "1", "s": "1"},
        [("convert", "/s")],
    ),
    "a flag": (
        FLAGS,
        {"ok": False, "why": 1},
        [("why", "type", "string")],
        {"ok": False, "why": "1"},
        [("convert", "/why")],
    ),
    "a flag as text": (
        FLAGS,
        {"ok": "true", "n": "1"},
        [("ok", "constraint", "one of true, false")],
        {"ok": True, "n": 1},
        [("convert", "/ok"), ("convert", "/n")],
    ),
    "0 is no false": (
        FLAGS,
        {"ok": 0, "why": "x"},
        [("ok", "constraint", "one of true, false")],
        None,
        [("constraint", "/ok")],
    ),
    "constants that are lists and objects": (
        LISTS,
        {"v": {"a": 1.0}, "s": 1},
        [("s", "type", "string")],
        {"v": {"a": 1.0}, "s": "1"},
        [("convert", "/s")],
    ),
    "constants that overlap tell nothing apart": (
        OVERLAP,
        {"v": "b", "s": 1},
        [("s", "type", "string")],
        {"v": "b", "s": "1"},
        [("convert", "/s")],
    ),
    "the second property tells them apart": (
        TWO_TAGS,
        {"a": 2, "b": "y", "s": 1},
        [("s", "type", "string")],
        {"a": 2, "b": "y", "s": "1"},
        [("convert", "/s")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_reported_and_repaired_as_the_variant_it_was_meant_for(name: str) -> None:
    schema, value, told, data, warned = CASES[name]
    assert [(fault.argument, fault.reason, fault.expected) for fault in faults(schema, value)] == told
    repaired = repair(schema, value)
    assert (repaired.data, [(each.code, each.path) for each in repaired.warnings]) == (data or value, warned)
    assert compile_schema(schema).check(value) is (not told)


@pytest.mark.parametrize(
    ("schema", "value", "converted"),
    [
        (either(A, B), {"kind": "a", "n": "1", "s": 1}, {"kind": "a", "n": 1, "s": 1}),
        (NUMBERS, {"v": "1", "n": "7"}, {"v": 1, "n": 7}),
        (MAPPED, {"kind": "kitty", "lives": "9"}, {"kind": "kitty", "lives": 9}),
        (FLAGS, {"ok": "true", "n": "1"}, {"ok": True, "n": 1}),
        # Nothing is a fault of the variant that was meant but what cannot be converted.
        (either(A, B), {"kind": "a", "n": "1", "m": "x"}, {"kind": "a", "n": 1, "m": "x"}),
        (pets(), {"kind": "Cat", "lives": "nine"}, {"kind": "Cat", "lives": "nine"}),
    ],
    ids=["constant", "constant-as-text", "mapping", "flag", "unknown-beside", "hopeless"],
)
def test_texts_are_converted_for_the_variant_that_was_meant(schema: Any, value: Any, converted: Any) -> None:
    assert coerce(schema, value) == converted


@pytest.mark.parametrize("names", ["ab", "ba", "bca", "acb"])
@pytest.mark.parametrize("odd", [(), (1, float("nan"))], ids=["plain", "not plain"])
def test_faults_and_defaults_come_in_the_order_of_this_schema(names: str, odd: tuple[float, ...]) -> None:
    schema = {"properties": {name: {**INTEGER, "examples": list(odd)} for name in names}}
    assert [fault.argument for fault in faults(schema, dict.fromkeys("abc", "x"))] == list(names)
    schema = {"properties": {name: {"default": name, "examples": list(odd)} for name in names}}
    assert list(repair(schema, {}).data) == list(names)


def test_many_variants_that_share_a_large_part_are_distinguished_once() -> None:
    shared = record(**{f"p{i}": {"enum": ["x", "y"]} for i in range(100)})
    variants = [{"allOf": [{"$ref": "#/$defs/Shared"}, {"properties": {"tag": {"const": i}}}]} for i in range(100)]
    schema = {"anyOf": variants, "$defs": {"Shared": shared}}
    value = {**{f"p{i}": "x" for i in range(100)}, "tag": 99, "p7": "z"}
    assert [fault.argument for fault in faults(schema, value)] == ["p7"]
    root, known = compile_schema(schema).root, compile_schema(schema).bundles.variants
    assert known.tags(root, root.any_of) is known.tags(root, root.any_of)
