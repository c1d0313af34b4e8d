"""Suggestions for a wrong name: the nearest valid one, at low cost for any number of names."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.serving import serve
from tests.steps import steps_of

from enfold import CallError, OperationRegistry, OperationSpec
from enfold.errors import nearest, nearest_id
from enfold.surfaces.http import to_http

VERBS = ("list", "get", "create", "update", "delete", "search", "archive", "export", "import", "merge")
NAMES = [f"shop.{verb}_{noun}_{number}" for verb in VERBS for noun in ("orders", "users") for number in range(125)]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("shop.lst_orders_77", "shop.list_orders_77"),
        ("SHOP.Merge_Users_124", "shop.merge_users_124"),
        ("serch_users_3", "shop.search_users_3"),
        ("export_orders_9", "shop.export_orders_9"),
        ("zzzz", None),
        ("x" * 10_000, None),
    ],
)
def test_the_nearest_of_thousands_of_names_is_found(wrong: str, right: str | None) -> None:
    assert nearest_id(wrong, NAMES) == right


@pytest.mark.parametrize("wrong", ["shop.lst_orders_77", "x" * 100, "shop.list_orders_" * 5])
def test_names_beyond_the_likeliest_are_not_compared_character_by_character(wrong: str) -> None:
    few, many = (steps_of(partial(nearest_id, wrong, known)) for known in (NAMES[:16], NAMES))
    assert many < 20_000 + 3 * few + 100 * len(NAMES)


def test_a_right_name_of_any_length_costs_nothing() -> None:
    assert nearest("name", ["x" * 1_000_000, "nmae"]) == "nmae"
    assert steps_of(lambda: nearest("x" * 100, [f"{'x' * 1_000_000}{number}" for number in range(5)])) < 5_000


def test_an_unknown_operation_argument_and_path_are_reported_with_the_nearest_over_http() -> None:
    ops = OperationRegistry()
    fields: dict[str, Any] = {f"field_{number}": {"type": "integer"} for number in range(2_500)}
    schema = {"type": "object", "properties": fields, "additionalProperties": False}

    async def handle(_input: Any, _context: Any) -> Any:
        return {}

    for name in NAMES:
        namespace, _, short = name.partition(".")
        spec = OperationSpec(name=short, namespace=namespace, type="query", input_schema=schema, output_schema=schema)
        ops.register_spec(spec)
        ops.register_handler(name, handle)
    with serve(to_http(ops)) as client:
        assert "shop.list_orders_77" in client.post("/functions/shop.lst_orders_77", {}).json["error"]
        assert 'did you mean "field_1234"?' in client.post(f"/functions/{NAMES[0]}", {"fild_1234": 1}).json["error"]
        select = client.post(f"/functions/{NAMES[0]}", {}, Enfold_Select="feild_2345")
        assert "did you mean field_2345?" in select.json["error"]


async def test_several_unknown_arguments_are_reported_together() -> None:
    ops = OperationRegistry("shop")

    @ops.query
    def add(first: int = 0, second: int = 0) -> int:
        return first + second

    with pytest.raises(CallError, match=r'"frist": did you mean "first".*"secnd": did you mean "second"'):
        await ops.execute("shop.add", {"frist": 1, "secnd": 2})
