"""Large results that break their own schema: repair ends after a fixed number of steps, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import pytest
from tests.serving import serve
from tests.steps import steps_of

from enfold import CallError, Context, OperationRegistry, OperationSpec, repair
from enfold.surfaces.http import to_http

Schema = dict[str, Any]

INTEGER: Final[Schema] = {"type": "integer"}
ROW: Final[Schema] = {
    "type": "object",
    "properties": {"id": INTEGER, "part": {"type": "object", "properties": {"a": INTEGER}}},
    "additionalProperties": False,
}
TREE: Final[Schema] = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"v": INTEGER, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/tree",
}
LIMIT: Final = [("repair_limit", "")]
MANY: Final = 70_000


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def variant(tag: str, **more: Any) -> Schema:
    return {"type": "object", "properties": {"kind": {"const": tag}, tag: INTEGER}, **more}


def told(schema: Schema, value: Any, **options: Any) -> tuple[Any, list[tuple[str, str]]]:
    result = repair(schema, value, **options)
    return result.data, [(warning.code, warning.path) for warning in result.warnings]


@pytest.mark.parametrize(
    ("items", "item", "expected"),
    [
        (INTEGER, "x", "x"),
        (ROW, {"id": "x", "secret": 1}, {"id": "x"}),
        (ROW, {"id": "x", "part": {"a": "x", "secret": 1}}, {"id": "x", "part": {"a": "x"}}),
        (TREE, {"v": "x", "below": [{"v": "x", "secret": 1}]}, {"v": "x", "below": [{"v": "x"}]}),
        ({**ROW, "additionalProperties": True}, {"id": "x", "other": 1}, {"id": "x", "other": 1}),
        ({**ROW, "additionalProperties": INTEGER}, {"id": "x", "other": 1}, {"id": "x", "other": 1}),
        ({**ROW, "patternProperties": {"^x-": INTEGER}}, {"id": "x", "x-a": 1, "y": 1}, {"id": "x", "x-a": 1}),
        (
            {"anyOf": [variant("a"), variant("b")]},
            {"kind": "c", "a": "x", "b": "x", "s": 1},
            {"kind": "c", "a": "x", "b": "x"},
        ),
        ({"oneOf": [variant("a"), {"type": "null"}]}, {"kind": "b", "a": "x", "s": 1}, {"kind": "b", "a": "x"}),
        (
            {"anyOf": [variant("a"), variant("b", additionalProperties=True)]},
            {"kind": "c", "a": "x", "s": 1},
            {"kind": "c", "a": "x", "s": 1},
        ),
        ({"allOf": [variant("a"), variant("b")]}, {"a": "x", "b": "x", "s": 1}, {"a": "x", "b": "x"}),
    ],
    ids=[
        "scalars",
        "rows",
        "inside",
        "trees",
        "open",
        "a schema for others",
        "names",
        "union",
        "or null",
        "one is open",
        "both",
    ],
)
def test_beyond_the_limit_only_what_is_not_declared_is_removed(items: Schema, item: Any, expected: Any) -> None:
    value = [item] * MANY if "$defs" not in items else {"v": 1, "below": [item] * MANY}
    schema = listed(items) if "$defs" not in items else items
    data, warnings = told(schema, value)
    assert warnings == LIMIT
    rows = data if isinstance(data, list) else data["below"]
    assert (len(rows), rows[0], rows[-1]) == (MANY, expected, expected)


def test_extras_that_are_to_be_kept_stay_beyond_the_limit() -> None:
    value = [{"id": "x", "other": 1}] * MANY
    assert told(listed(ROW), value, extras="keep") == (value, LIMIT)


def test_below_the_limit_every_fault_is_repaired_and_reported() -> None:
    data, warnings = told(listed(ROW), [{"id": "7", "secret": 1}] * 1_000)
    assert data == [{"id": 7}] * 1_000
    assert warnings == [("strip", "/*/secret"), ("convert", "/*/id")]


def test_a_value_with_few_faults_is_repaired_however_large_it_is() -> None:
    value = [{"id": number} for number in range(MANY)]
    data, warnings = told(listed(ROW), [*value, {"id": "7"}])
    assert (data[-1], warnings) == ({"id": 7}, [("convert", f"/{MANY}/id")])


def test_more_faults_than_the_limit_take_no_more_work() -> None:
    some, more = (steps_of(partial(told, listed(INTEGER), ["x"] * count)) for count in (MANY, 3 * MANY))
    assert more < 1.2 * some


# --- calls ----------------------------------------------------------------------------------------------------------


class Shop:
    """Operations that give a large misfit, and say when they are about to."""

    def __init__(self) -> None:
        self.ops = OperationRegistry("shop")
        self.begun = asyncio.Event()
        schema: dict[str, Any] = {"input_schema": {"type": "object"}, "output_schema": listed(INTEGER)}
        self.ops.register_spec(OperationSpec(name="rows", namespace="shop", type="query", **schema))
        self.ops.register_handler("shop.rows", self._rows)
        self.ops.register_spec(OperationSpec(name="stream", namespace="shop", type="subscription", **schema))
        self.ops.register_handler("shop.stream", self._stream)

    async def _rows(self, _input: Any, _context: Context) -> Any:
        self.begun.set()
        return ["x"] * MANY

    async def _stream(self, _input: Any, _context: Context) -> AsyncIterator[Any]:
        self.begun.set()
        yield ["x"] * MANY

    async def followed(self) -> Any:
        return await anext(self.ops.subscribe("shop.stream", {}))


@pytest.mark.parametrize("way", ["call", "selection", "stream"])
async def test_the_event_loop_continues_while_a_large_misfit_is_repaired(way: str) -> None:
    shop, selecting = Shop(), Context()
    selecting.select = "*"
    ways = {
        "call": lambda: shop.ops.execute("shop.rows", {}),
        "selection": lambda: shop.ops.execute("shop.rows", {}, selecting),
        "stream": shop.followed,
    }
    call = asyncio.ensure_future(ways[way]())
    await shop.begun.wait()
    await asyncio.sleep(0)
    assert not call.done()
    envelope = await call
    assert [(warning.code, warning.path) for warning in envelope.warnings] == LIMIT
    assert envelope.data == ["x"] * MANY


def test_without_an_event_loop_it_is_repaired_in_place() -> None:
    ops = OperationRegistry("shop")

    @ops.query
    def rows() -> list[int]:
        return ["x"] * MANY  # type: ignore[list-item]  # that is what is wrong about it

    assert [warning.code for warning in ops.execute_now("shop.rows", {}).warnings] == ["repair_limit"]


async def test_a_strict_operation_fails_with_what_is_wrong() -> None:
    ops = OperationRegistry("shop", strict_output=True)

    @ops.query
    async def rows() -> list[int]:
        return ["x"] * MANY  # type: ignore[list-item]  # as above

    with pytest.raises(CallError, match="does not match its output schema") as refused:
        await ops.execute("shop.rows", {})
    assert refused.value.code == "EXECUTION_ERROR"


def test_http_says_that_the_limit_was_reached() -> None:
    with serve(to_http(Shop().ops)) as client:
        answer = client.post("/functions/shop.rows", {})
        assert answer.headers["enfold-warnings"] == '1; first="repair_limit"'
        assert answer.json == {"result": ["x"] * MANY}
