"""An input with half a million faults costs little: the work ends at a bound, and so does what is told."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest

from enfold import CallError, OperationRegistry
from enfold.schema.inputs.coercion import Coercion
from enfold.schema.inputs.faults import TooMuchWorkError, Walk
from enfold.schema.nodes.node import read_nodes

MANY = 500_000

ops = OperationRegistry("shop")


@ops.query
async def total(items: list[int]) -> int:
    return sum(items)


@ops.query
async def rows(table: dict[str, int]) -> int:
    return len(table)


@ops.query
async def mixed(items: list[int | list[int] | dict[str, int]]) -> int:
    return len(items)


INPUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a list of texts": ("shop.total", {"items": ["x"] * MANY}),
    "a table of texts": ("shop.rows", {"table": {str(number): "x" for number in range(MANY)}}),
    "a list of objects": ("shop.mixed", {"items": [{"a": "x"}] * MANY}),
    "unknown arguments": ("shop.total", {"items": [1], **{f"x{number}": 1 for number in range(MANY)}}),
}


@pytest.mark.parametrize(("operation", "given"), INPUTS.values(), ids=INPUTS)
async def test_a_few_of_many_faults_are_told(operation: str, given: dict[str, Any]) -> None:
    with pytest.raises(CallError) as caught:
        await ops.execute(operation, given)
    assert caught.value.code == "VALIDATION_ERROR"
    assert len(caught.value.details["more"]) <= 20
    assert len(caught.value.message) < 1_000


def test_texts_that_stand_for_nothing_are_given_up_after_some() -> None:
    [root, *_] = read_nodes({"type": "array", "items": {"type": "integer"}})
    walk = Walk(1_000_000)
    with pytest.raises(TooMuchWorkError):
        Coercion(walk).convert(root, ["x"] * MANY)
    assert 1_000_000 - walk._left < 10_000


async def test_whole_numbers_are_still_taken_where_a_float_stands_deep_inside() -> None:
    assert (await ops.execute("shop.mixed", {"items": [1, [2.0], {"a": 3.0}, 4.0]})).data == 4


async def test_a_refused_input_is_let_go_at_once() -> None:
    class Watched(dict[str, Any]):
        """An input of which one can see whether it is still there."""

    given = Watched(items=["x"] * 10)
    still_there = weakref.ref(given)
    gc.disable()
    try:
        with contextlib.suppress(CallError):
            await ops.execute("shop.total", given)
        del given
        assert still_there() is None
    finally:
        gc.enable()
