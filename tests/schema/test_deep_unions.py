"""Recursive unions: reading a nested value takes work in proportion to its size. Work is counted, not timed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import pydantic
import pytest
from pydantic import AfterValidator, Field

from enfold import CallError, OperationRegistry
from enfold.schema.signature import DecodeError, read_signature

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
    op: Literal["minus"]
    k: Sum
    word: Word = ""


Sum = Union[Annotated[Union[Plus, Minus], Field(discriminator="op")], int]


class Not(pydantic.BaseModel):
    k: Rule
    word: Word = ""


class All(pydantic.BaseModel):
    rules: list[Rule]
    word: Word = ""


Rule = Union[Not, All, int]
Plus.model_rebuild()
Not.model_rebuild()

ops = OperationRegistry("deep")


@ops.query
def read_expr(e: Expr) -> int:
    return _depth(e)


@ops.query
def read_sum(e: Sum) -> int:
    return _depth(e)


@ops.query
def read_rule(e: Rule) -> int:
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
READINGS = 8  # strictly, again for 1.0, for text, and for each reported fault


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


async def test_the_fault_is_reported_where_it_is() -> None:
    with pytest.raises(CallError) as refused:
        await ops.execute("deep.read_expr", {"e": _nested(15, "bad", op="and")})

    assert refused.value.details["argument"] == "e" + ".k" * 15
    assert refused.value.details["reason"] == "type"


@pytest.mark.parametrize("leaf", [1, "bad", {"rules": ["bad"]}], ids=str)
async def test_members_that_nest_in_different_fields_need_no_tag(leaf: Any) -> None:
    value = _nested(DEEP, leaf)
    if leaf == 1:
        assert (await ops.execute("deep.read_rule", {"e": value})).data == DEEP
    else:
        with pytest.raises(CallError, match=r"\.k\.k"):
            await ops.execute("deep.read_rule", {"e": value})
    assert len(seen) <= READINGS * DEEP * 2


class Up(pydantic.BaseModel):
    op: Literal["up"] = "up"
    k: Way = 0


class Down(pydantic.BaseModel):
    op: Literal["down"] = "down"
    k: Way = 0


class Left(pydantic.BaseModel):
    k: Tree = 0
    left: int = 0


class Right(pydantic.BaseModel):
    k: list[Tree] = []
    right: int = 0


@dataclass
class Box:
    inside: Content
    word: Word = ""


Way = Union[Up, Down, int]
Tree = Union[Left, Right, int]
Content = Union[Box, dict[str, "Content"], int]
Up.model_rebuild()
Left.model_rebuild()


def _way(e: Way) -> None: ...
def _tree(e: Tree) -> None: ...
def _content(e: list[Content]) -> None: ...


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (_way, "use Annotated[Up | Down, Field(discriminator='op')]"),
        (
            _tree,
            "use Annotated[Left | Right, Field(discriminator='kind')], and give each of them a Literal field 'kind'",
        ),
        (_content, "a recursive union of Box and dict without a discriminator"),
    ],
    ids=["constants", "no constants", "an object of any keys"],
)
def test_a_recursive_union_that_could_take_exponential_time_is_refused_with_advice(function: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=re.escape(advice)) as refused:
        ops.query(function)

    assert "parameter 'e'" in str(refused.value)


def test_many_errors_of_pydantic_are_reported_by_the_schema() -> None:
    def add_all(sums: list[Plus]) -> None: ...

    with pytest.raises(DecodeError) as refused:
        read_signature(add_all).decode({"sums": [{"op": "plus", "k": "bad"}] * 10_000})

    assert refused.value.path == "sums[0].k"
