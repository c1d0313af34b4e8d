"""Several faults of one input are reported together; half a million cost little, because work and report are bounded."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import UUID

import pydantic
import pytest

from enfold import CallError, OperationRegistry
from enfold.schema.arguments import Coercion, TooMuchWorkError, Walk
from enfold.schema.compiled import compile_schema

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
    "a table of strings": ("shop.rows", {"table": {str(number): "x" for number in range(MANY)}}),
    "a list of objects": ("shop.mixed", {"items": [{"a": "x"}] * MANY}),
    "unknown arguments": ("shop.total", {"items": [1], **{f"x{number}": 1 for number in range(MANY)}}),
}


@pytest.mark.parametrize(("operation", "given"), INPUTS.values(), ids=INPUTS)
async def test_a_few_of_many_faults_are_reported(operation: str, given: dict[str, Any]) -> None:
    with pytest.raises(CallError) as caught:
        await ops.execute(operation, given)
    assert caught.value.code == "VALIDATION_ERROR"
    assert len(caught.value.details["more"]) <= 20
    assert len(caught.value.message) < 1_000


class Even(pydantic.BaseModel):
    """What pydantic reads, and a validator of the user's own."""

    n: int

    @pydantic.field_validator("n")
    @classmethod
    def is_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n


async def plan(start: date, end: date, id: UUID, file: bytes = b"", count: int = 0) -> None:
    """Types that msgspec reads."""


async def plan_of_similar_names(to: date, tokens: int) -> None:
    """Two arguments, of which one begins like the other."""


async def plan_with_a_model(start: date, even: Even, other: Even | None, count: int = 0) -> None:
    """Types that pydantic reads."""


@pytest.mark.parametrize(
    ("function", "given", "told"),
    [
        (
            plan,
            {"start": "soon", "end": "2020-13-01", "id": "x", "file": "é"},
            {"start": "date", "end": "date", "id": "uuid", "file": "base64"},
        ),
        (
            plan,
            {"start": "soon", "end": "later", "count": "x"},
            {"id": "string", "count": "integer", "start": "date", "end": "date"},
        ),
        (plan_of_similar_names, {"to": "soon"}, {"to": "date", "tokens": "integer"}),
        (
            plan_with_a_model,
            {"start": "soon", "even": {"n": 1}, "other": {"n": 3}},
            {"start": "date", "even.n": "odd", "other.n": "odd"},
        ),
        (
            plan_with_a_model,
            {"even": {"n": 1}, "other": {"n": "x"}, "count": 1.5},
            {"start": "string", "even.n": "odd", "other.n": "integer", "count": "integer"},
        ),
    ],
)
async def test_errors_of_types_and_of_the_schema_are_reported_together(
    function: Callable[..., Any], given: dict[str, Any], told: dict[str, str]
) -> None:
    own = OperationRegistry("t")
    own.query(function)
    with pytest.raises(CallError) as caught:
        await own.execute(f"t.{function.__name__}", given)
    first = caught.value.details
    assert {each["argument"]: each["expected"] for each in (first, *first["more"])} == told
    assert all(f'"{argument}"' in caught.value.message for argument in told)


def test_conversion_of_invalid_texts_ends_after_a_few() -> None:
    schema = compile_schema({"type": "array", "items": {"type": "integer"}})
    walk = Walk(schema, 10_000)
    with pytest.raises(TooMuchWorkError):
        Coercion(walk).convert(schema.bundles.alone(schema.root), ["x"] * MANY)
    walk.spend()  # raises if the steps were used up, and not the attempts


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
