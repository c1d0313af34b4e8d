"""How resources, prompts and completions are registered."""

from __future__ import annotations

import pytest

from enfold import OperationRegistry
from enfold.mcp import completion
from enfold.operations.mcp_kind import facts_of, kind_of


def test_each_is_an_operation_that_says_what_it_is() -> None:
    ops = OperationRegistry("shop")
    ops.resource("shop://items/{sku}", mime_type="text/plain", name="item", tags=["a"])(lambda sku: sku)
    ops.prompt(name="review")(lambda: "Review")
    completion(ops, "review", "code", name="codes")(lambda: ["a"])
    ops.query(name="add")(lambda: 1)
    assert [kind_of(spec) for spec in ops.list()] == ["resource", "prompt", "completion", "tool"]
    assert facts_of(ops.get_spec("shop.item")) == {
        "kind": "resource",
        "uri": "shop://items/{sku}",
        "mimeType": "text/plain",
    }
    assert ops.get_spec("shop.item").tags == ("a",)


def test_other_facts_about_an_operation_are_kept() -> None:
    ops = OperationRegistry()
    ops.prompt(name="review", meta={"team": "red"})(lambda: "Review")
    assert ops.get_spec("review").meta == {"team": "red", "mcp": {"kind": "prompt"}}


def test_a_name_the_function_does_not_take_is_reported_at_once() -> None:
    ops = OperationRegistry()
    with pytest.raises(ValueError, match="has no argument 'id'"):
        ops.resource("shop://items/{id}", name="item")(lambda number: number)
    assert len(ops) == 0


def test_a_template_that_cannot_be_read_is_reported_at_once() -> None:
    ops = OperationRegistry()
    with pytest.raises(ValueError, match="is not supported: use"):
        ops.resource("shop://items/{;sku}", name="item")(lambda sku: sku)


async def test_a_view_shows_them_under_its_own_names() -> None:
    ops = OperationRegistry("shop")
    ops.prompt(name="review")(lambda: "Review")
    view = ops.mount("eu")
    assert kind_of(view.get_spec("eu.shop.review")) == "prompt"
