"""Recursive unions: what strangers nest in them costs work in proportion to its size. Work is counted, not timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import pydantic
import pytest
from pydantic import AfterValidator

from enfold import CallError, OperationRegistry
from enfold.schema.signature import DecodeError, as_type

seen: list[str] = []


def _noted(word: str) -> str:
    seen.append(word)
    return word


Word = Annotated[str, AfterValidator(_noted)]


@dataclass
class And:
    op: Literal["and"]
    k: Expr
    word: Word = ""


@dataclass
class Or:
    op: Literal["or"]
    k: Expr
    word: Word = ""


Expr = Union[And, Or, int]


class Plus(pydantic.BaseModel):
    op: Literal["plus"]
    k: Sum
    word: Word = ""


class Minus(pydantic.BaseModel):
    op: Literal["minus"] = "minus"
    k: Sum
    word: Word = ""


Sum = Union[Plus, Minus, int]


class Left(pydantic.BaseModel):
    k: Tree = 0
    word: Word = ""
    left: int = 0


class Right(pydantic.BaseModel):
    k: Tree = 0
    word: Word = ""
    right: int = 0


Tree = Union[Left, Right, int]
Plus.model_rebuild()
Left.model_rebuild()

ops = OperationRegistry("deep")


@ops.query
def read_expr(e: Expr) -> int:
    return _depth(e)


@ops.query
def read_sum(e: Sum) -> int:
    return _depth(e)


@ops.query
def read_tree(e: Tree) -> int:
    return _depth(e)


def _depth(node: Any) -> int:
    depth = 0
    while not isinstance(node, int):
        node, depth = node.k, depth + 1
    return depth


def _nested(depth: int, leaf: Any, **fields: Any) -> Any:
    for _ in range(depth):
        leaf = {**fields, "k": leaf, "word": "w"}
    return leaf


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


DEEP = 40
READINGS = 8  # strictly, again for 1.0, for text, and for each fault that is told


@pytest.mark.parametrize(("name", "op"), [("read_expr", "and"), ("read_expr", "or"), ("read_sum", "plus")])
@pytest.mark.parametrize("leaf", ["bad", None, {"op": "none"}, {"op": "and"}, 1.5], ids=str)
async def test_a_bad_leaf_of_a_tagged_union_is_found_without_trying_every_path(name: str, op: str, leaf: Any) -> None:
    with pytest.raises(CallError) as refused:
        await ops.execute(f"deep.{name}", {"e": _nested(DEEP, leaf, op=op)})

    assert refused.value.code == "VALIDATION_ERROR"
    assert len(seen) <= READINGS * DEEP


@pytest.mark.parametrize(("name", "op"), [("read_expr", "and"), ("read_sum", "plus"), ("read_sum", "minus")])
@pytest.mark.parametrize("leaf", [1, 1.0], ids=str)
async def test_a_deep_value_of_a_tagged_union_is_read(name: str, op: str, leaf: Any) -> None:
    assert (await ops.execute(f"deep.{name}", {"e": _nested(DEEP, leaf, op=op)})).data == DEEP
    assert len(seen) <= READINGS * DEEP


async def test_the_fault_is_told_where_it_is() -> None:
    with pytest.raises(CallError) as refused:
        await ops.execute("deep.read_expr", {"e": _nested(15, "bad", op="and")})

    assert refused.value.details["argument"] == "e" + ".k" * 15
    assert refused.value.details["reason"] == "type"


async def test_a_tag_with_a_default_may_be_left_out() -> None:
    assert (await ops.execute("deep.read_sum", {"e": _nested(5, 1)})).data == 5


@pytest.mark.parametrize("leaf", [1, 1.0, "bad", {"k": []}], ids=str)
async def test_a_union_that_nothing_tells_apart_is_read_as_deep_as_its_size_is_worth(leaf: Any) -> None:
    with pytest.raises(CallError) as refused:
        await ops.execute("deep.read_tree", {"e": _nested(DEEP, leaf)})

    assert refused.value.code == "VALIDATION_ERROR"
    assert not seen


async def test_a_union_that_nothing_tells_apart_is_read_where_it_is_flat() -> None:
    assert (await ops.execute("deep.read_tree", {"e": _nested(6, 1)})).data == 6


def test_many_errors_of_pydantic_are_told_by_the_schema() -> None:
    with pytest.raises(DecodeError) as refused:
        as_type([{"op": "plus", "k": "bad"}] * 10_000, list[Plus])

    assert refused.value.path == "[0].k"
