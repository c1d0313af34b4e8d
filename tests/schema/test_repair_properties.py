"""What repair promises for every schema and every value, tried with generated ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from enfold.envelope import ResultWarning
from enfold.schema.compiled import compile_schema, repair
from enfold.schema.nodes import mark_cyclic, read_nodes
from enfold.schema.nodes.traits import decides_by_value, spans_whole_value
from enfold.schema.nodes.values import same

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)

# Few names and few values, so that schemas and values meet.
NAMES = st.sampled_from(["a", "b", "c", "kind"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([0.5, 1.0, 2.5, -0.0, 1e300, 10**25]),
    st.sampled_from(["", "a", "b", "7", "2.5", "true", "héé", "aaaa", "x y", "07"]),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.sampled_from(["extra", "x/~y"]), inner, max_size=4)
    ),
    max_leaves=12,
)
COUNTS = st.integers(0, 3)
BOUNDS = st.integers(-2, 10) | st.sampled_from([0.5, 2.5])
PATTERNS = st.sampled_from(["^a", "b$", "^[0-9]+$", "^.{2}$", "^(a|b)+$"])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def schemas(depth: int = 3) -> st.SearchStrategy[Any]:
    """Schemas of all keywords, with references into `$defs` that `documents` puts beside them."""
    if depth == 0:
        return leaves()
    inner = schemas(depth - 1)
    return st.one_of(leaves(), objects(inner), objects(inner), arrays(inner), combined(inner), references())


def references() -> st.SearchStrategy[Any]:
    return st.sampled_from([{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}, {"$ref": "#two"}])


def leaves() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.booleans(),
        st.just({}),
        _keywords({"type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True)}, {"default": SCALARS}),
        _keywords({}, {"enum": st.lists(SCALARS, min_size=1, max_size=3), "const": SCALARS}),
        _keywords({"type": st.just("string")}, {"minLength": COUNTS, "maxLength": COUNTS, "pattern": PATTERNS}),
        _keywords(
            {"type": st.sampled_from(["integer", "number"])},
            {
                "minimum": BOUNDS,
                "maximum": BOUNDS,
                "exclusiveMinimum": BOUNDS,
                "exclusiveMaximum": BOUNDS,
                "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 3]),
                "default": st.integers(0, 3),
            },
        ),
    )


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _keywords(
        {"properties": st.dictionaries(NAMES, inner, max_size=3)},
        {
            "type": st.just("object"),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner | st.booleans(),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "propertyNames": st.just({"maxLength": 4}) | st.just({"pattern": "^[a-z]"}),
            "minProperties": COUNTS,
            "maxProperties": COUNTS,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
            "unevaluatedProperties": inner | st.booleans(),
            "default": st.just({}),
        },
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _keywords(
        {"type": st.just("array")},
        {
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "minContains": COUNTS,
            "maxContains": COUNTS,
            "minItems": COUNTS,
            "maxItems": COUNTS,
            "uniqueItems": st.booleans(),
            "unevaluatedItems": inner | st.booleans(),
        },
    )


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return _keywords(
        {},
        {
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "required": st.lists(NAMES, max_size=1),
            "unevaluatedProperties": st.just(False),
        },
    )


def _keywords(always: dict[str, Any], sometimes: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(always, optional=sometimes)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    root = draw(schemas())
    one, two = draw(schemas(2)), draw(schemas(1))
    document = dict(root) if isinstance(root, dict) else {"allOf": [root]}
    anchored = {**two, "$anchor": "two"} if isinstance(two, dict) else {"$anchor": "two"}
    document["$defs"] = {"one": one, "two": anchored}
    # What a schema that applies itself to the same value means is not defined.
    assume(not mark_cyclic(read_nodes(document)))
    return document


@relaxed
@given(documents(), VALUES)
def test_check_agrees_with_an_independent_validator(schema: dict[str, Any], value: Any) -> None:
    assert compile_schema(schema).check(value) == jsonschema_rs.Draft202012Validator(schema).is_valid(value)


@relaxed
@given(documents(), VALUES)
def test_differences_are_in_the_report_and_the_input_is_unchanged(schema: dict[str, Any], value: Any) -> None:
    before = copy.deepcopy(value)
    repaired = repair(schema, value)
    assert same(value, before)
    for path in differing(value, repaired.data):
        assert any(covers(warning, path) for warning in repaired.warnings), (path, repaired)


@relaxed
@given(documents(), VALUES)
def test_a_valid_value_is_only_stripped_and_filled(schema: dict[str, Any], value: Any) -> None:
    compiled = compile_schema(schema)
    assume(compiled.check(value))
    repaired = repair(schema, value)
    assert compiled.check(repaired.data)
    assert {warning.code for warning in repaired.warnings} <= {"strip", "default", "unrepairable", "more"}


@relaxed
@given(documents(), VALUES)
def test_clean_means_that_repair_has_nothing_to_do(schema: dict[str, Any], value: Any) -> None:
    repaired = repair(schema, value)
    is_left_alone = repaired.data is value and not repaired.warnings
    # Where several schemas apply to one value, or which do depends on it, repair has to decide.
    is_decided = not any(
        node.all_of or decides_by_value(node) or spans_whole_value(node) for node in read_nodes(schema)
    )
    is_clean = compile_schema(schema).is_clean(value)
    assert is_clean == is_left_alone if is_decided else is_clean <= is_left_alone


@relaxed
@given(documents(), VALUES, st.sampled_from(["strip", "keep"]))
def test_a_value_that_fails_an_independent_validator_is_in_the_report(
    schema: dict[str, Any], value: Any, extras: Any
) -> None:
    repaired = repair(schema, value, extras=extras)
    for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(repaired.data):
        path = list(error.instance_path)
        assert any(touches(warning, path) for warning in repaired.warnings), (path, error.message, repaired)


# Where stripping, defaults, conversions without loss and dropped nulls suffice, the result is valid.


@st.composite
def damaged(draw: st.DrawFn) -> tuple[dict[str, Any], Any, Any]:
    """An object schema, a valid value, and the same value with damage that can be undone."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    valid: dict[str, Any] = {}
    broken: dict[str, Any] = {}
    for name in draw(st.lists(NAMES, min_size=1, unique=True)):
        schema, good, bad, may_be_missing = draw(damaged_member())
        properties[name] = schema
        if not may_be_missing or draw(st.booleans()):
            required.append(name)
        valid[name] = good
        broken[name] = bad
    # One required property stays as it is, or the whole would look like something else.
    anchor = {"type": "object", "properties": {**properties, "id": {"type": "integer"}}, "required": [*required, "id"]}
    for name in list(broken):
        if broken[name] is GONE:
            del broken[name]
        elif broken[name] is None and name not in required:
            del valid[name]
        elif broken[name] is None:
            broken[name] = valid[name]
    extras = draw(st.dictionaries(st.sampled_from(["x", "y/z"]), VALUES, max_size=2))
    return anchor, {**valid, "id": 1}, {**extras, **broken, "id": 1}


GONE = object()


def damaged_member() -> st.SearchStrategy[tuple[Any, Any, Any, bool]]:
    """A property: its schema, a valid value, that value damaged, and whether a default stands in for it."""
    integer: dict[str, Any] = {"type": "integer"}
    text: dict[str, Any] = {"type": "string"}
    numbers = {"type": "array", "items": {"type": "number"}}
    tagged = {"anyOf": [_tagged("one", integer), _tagged("two", text)]}
    return st.sampled_from(
        [
            (integer, 5, "5", False),
            (integer, 5, None, False),
            ({**integer, "minimum": 3, "maximum": 7}, 5, "5", False),
            ({"type": "number"}, 2.5, "2.5", False),
            ({"type": "boolean"}, True, "true", False),
            (text, "7", 7, False),
            ({"anyOf": [integer, {"type": "null"}]}, 5, "5", False),
            ({**integer, "default": 3}, 3, GONE, True),
            (numbers, [1, 2.5], [1, "2.5"], False),
            (numbers, [1], "1", False),
            ({"type": "object", "properties": {"n": integer}, "required": ["n"]}, {"n": 1}, {"n": "1", "m": 2}, False),
            (tagged, {"kind": "two", "v": "1"}, {"kind": "two", "v": 1, "more": 2}, False),
            ({"allOf": [{"type": "object", "properties": {"n": integer}}]}, {"n": 1}, {"n": "1", "m": 2}, False),
        ]
    )


def _tagged(tag: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": tag}, "v": value}, "required": ["kind", "v"]}


@relaxed
@given(damaged())
def test_damage_that_can_be_undone_without_loss_is_undone(case: tuple[dict[str, Any], Any, Any]) -> None:
    schema, valid, broken = case
    repaired = repair(schema, broken)
    assert same(repaired.data, valid), repaired
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(repaired.data)


def differing(old: Any, new: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of the leaves that are not the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if key in old and key in new:
                yield from differing(old[key], new[key], (*path, key))
            else:
                yield (*path, key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for position, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differing(one, other, (*path, position))
    elif not same(old, new):
        yield path


def covers(warning: ResultWarning, path: tuple[Any, ...]) -> bool:
    """Whether a warning stands at a place or above it."""
    steps = place(warning)
    return warning.code == "more" or (len(steps) <= len(path) and meets(steps, path))


def touches(warning: ResultWarning, path: list[Any]) -> bool:
    """Whether a warning stands at a place, above it or below it."""
    return warning.code == "more" or meets(place(warning), path)


def place(warning: ResultWarning) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in warning.path.split("/")[1:]]


def meets(steps: list[str], path: Any) -> bool:
    return all(mine in ("*", str(theirs)) for mine, theirs in zip(steps, path, strict=False))
