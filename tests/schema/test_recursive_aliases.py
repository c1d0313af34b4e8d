"""Aliases that name themselves in text, as JSON is written before Python has `type JSON = …`."""

from dataclasses import dataclass
from typing import Any, Dict, Optional, TypeAlias, Union

import jsonschema_rs
import pytest

from enfold import CallError, OperationRegistry

Json = Union[dict[str, "Json"], list["Json"], str, int, float, bool, None]
Text: TypeAlias = "dict[str, Text] | list[Text] | int"
Tree = Dict[str, "Tree"]
Ring = list[Optional["Chain"]]
Chain = dict[str, "Ring"]


@dataclass
class Note:
    """A class with a field of such a type."""

    body: Json


def json(value: Json) -> Json:
    return value


def text(value: "Text") -> "Text":
    return value


def tree(value: Tree) -> Tree:
    return value


def ring(value: Optional[Ring] = None) -> Optional[Ring]:
    return value


def note(value: list[Note]) -> list[Note]:
    return value


DEEP: dict[Any, tuple[Any, Any]] = {
    json: ({"a": [{"b": [1, None, {"c": True}]}]}, None),
    text: ({"a": [{"b": [1, {"c": 2}]}]}, {"a": [{"b": [1, {"c": "x"}]}]}),
    tree: ({"a": {"b": {"c": {}}}}, {"a": {"b": {"c": 1}}}),
    ring: ([{"a": [None, {"b": []}]}], [{"a": [None, {"b": [5]}]}]),
    note: ([{"body": {"a": [1]}}], [{}]),
}


@pytest.mark.parametrize("function", DEEP, ids=lambda function: function.__name__)
async def test_an_alias_that_names_itself_is_read_at_every_depth(function: Any) -> None:
    ops = OperationRegistry()
    ops.query(function)
    good, bad = DEEP[function]
    schema = ops.get_spec(function.__name__).input_schema
    found = await ops.execute(function.__name__, {"value": good})
    assert (found.data, found.warnings) == (good, ())
    assert jsonschema_rs.is_valid(schema, {"value": good})
    if bad is not None:
        assert not jsonschema_rs.is_valid(schema, {"value": bad})
        with pytest.raises(CallError) as refused:
            await ops.execute(function.__name__, {"value": bad})
        assert refused.value.code == "VALIDATION_ERROR"
