"""Only what is asked for: the grammar, values, narrowed schemas, and calls on every surface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from tests.search.generated import CASES, Case
from tests.serving import serve
from tests.steps import steps_of

from enfold import CallError, Context, OperationRegistry, TextContent, mcp_envelope
from enfold.search.fields import check_fields, narrowed_schema, read_fields
from enfold.search.selection import select_fields
from enfold.surfaces.http import to_http
from enfold.surfaces.openapi import to_openapi

# --- the grammar --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("id", {"id": None}),
        ("id, title", {"id": None, "title": None}),
        ("a/b/c", {"a": {"b": {"c": None}}}),
        ("items(id,user/login),total", {"items": {"id": None, "user": {"login": None}}, "total": None}),
        ("a/b(c,d)", {"a": {"b": {"c": None, "d": None}}}),
        ("a/b,a/c", {"a": {"b": None, "c": None}}),
        ("a/b,a", {"a": None}),
        ("*/id", {"*": {"id": None}}),
        ('"a/b"(+1),größe', {"a/b": {"+1": None}, "größe": None}),
    ],
)
def test_a_selection_is_read(text: str, fields: dict[str, Any]) -> None:
    assert read_fields(text) == fields


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ",", "a,", "a(", "a()", "a(b", "a)", "a//b", "/a", "a b", '"a', "(a)", "a/(b)", "a" * 9_000),
        "/".join("a" * 40),
        ",".join(f"a{number}" for number in range(300)),
    ],
)
def test_anything_but_a_selection_is_refused(text: str) -> None:
    with pytest.raises(CallError) as refused:
        read_fields(text)
    assert refused.value.code == "VALIDATION_ERROR"
    assert refused.value.details["argument"] == "select"


# --- values -------------------------------------------------------------------------------------------------------

ISSUES = {
    "items": [
        {"id": 1, "title": "a", "user": {"login": "x", "url": "u"}},
        {"id": 2, "title": "b", "user": None, "more": {"deep": 1}},
        {"title": "c"},
        "odd",
        [{"id": 3, "x": 1}],
    ],
    "total": 5,
    "next": "p2",
}


@pytest.mark.parametrize(
    ("text", "selected", "left_out"),
    [
        ("total", {"total": 5}, 2),
        ("items(id),nothing", {"items": [{"id": 1}, {"id": 2}, {}, "odd", [{"id": 3}]]}, 9),
        ("items/user/login", {"items": [{"user": {"login": "x"}}, {"user": None}, {}, "odd", [{}]]}, 11),
        ("*", ISSUES, 0),
        ("total/deep,next", {"total": 5, "next": "p2"}, 1),
    ],
)
def test_what_is_selected_from_a_value(text: str, selected: Any, left_out: int) -> None:
    fields = read_fields(text)
    assert select_fields(ISSUES, fields) == (selected, left_out)


# --- schemas ------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES)
def test_selected_data_always_matches_the_narrowed_schema(case: Case) -> None:
    case.check()


class User(TypedDict):
    login: str
    url: str


class Issue(TypedDict):
    number: int
    title: str
    user: User | None


def issues_registry() -> OperationRegistry:
    ops = OperationRegistry("hub")

    @ops.query
    async def issues() -> list[Issue]:
        return [
            {"number": 1, "title": "a", "user": {"login": "x", "url": "u"}},
            {"number": 2, "title": "b", "user": None},
        ]

    @ops.query(select="number,user/login")
    async def short() -> list[Issue]:
        return [{"number": 1, "title": "a", "user": {"login": "x", "url": "u"}}]

    @ops.query
    async def anything() -> Any:
        return {"a": {"b": 1, "c": 2}, "d": 3}

    @ops.query
    async def own() -> dict[str, Any]:
        return {"schema_version": "x.v1", "a": 1, "b": 2}

    @ops.subscription
    async def follow() -> AsyncIterator[dict[str, int]]:
        yield {"a": 1, "b": 2}

    return ops


async def select(operation: str, text: str | None) -> Any:
    context = Context()
    context.select = text
    return await issues_registry().execute(operation, {}, context)


async def test_a_call_gives_only_what_is_asked_for_and_counts_the_rest() -> None:
    envelope = await select("hub.issues", "number,user/login")
    assert envelope.data == [{"number": 1, "user": {"login": "x"}}, {"number": 2, "user": None}]
    [warning] = envelope.warnings
    assert (warning.code, warning.count) == ("left_out", 3)
    assert (await select("hub.issues", "*")).warnings == ()


async def test_a_default_selection_applies_unless_the_caller_selects() -> None:
    assert (await select("hub.short", None)).data == [{"number": 1, "user": {"login": "x"}}]
    assert (await select("hub.short", "title")).data == [{"title": "a"}]
    with pytest.raises(ValueError, match="did you mean number"):
        issues_registry().query(name="wrong", select="numbr")(issues_registry().get_handler("hub.issues"))


def test_a_default_narrows_the_document() -> None:
    document = to_openapi(issues_registry().only(lambda spec: spec.name == "short"))
    document["components"]["schemas"].pop("Problem")  # which has a title of its own
    text = msgspec.json.encode(document).decode()
    assert "login" in text
    assert "title" not in text.replace('"title":"', "")


async def test_where_the_schema_is_unknown_any_path_will_do() -> None:
    assert (await select("hub.anything", "a/b,x/y")).data == {"a": {"b": 1}}


async def test_a_payload_with_its_own_schema_is_unchanged() -> None:
    assert (await select("hub.own", "a")).data == {"schema_version": "x.v1", "a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("titel", "title"), ("user/lgin", "user/login"), ("number/x", None), ("user/login/x", None), ("zzz", None)],
)
async def test_a_path_that_is_not_there_is_reported_with_the_nearest_before_anything_runs(
    text: str, expected: str | None
) -> None:
    ran = []
    ops = OperationRegistry()

    @ops.mutation
    async def change() -> list[Issue]:
        ran.append(1)
        return []

    context = Context()
    context.select = text
    with pytest.raises(CallError) as refused:
        await ops.execute("change", {}, context)
    assert (refused.value.code, refused.value.details["reason"], ran) == ("VALIDATION_ERROR", "unknown", [])
    if expected:
        assert refused.value.details["expected"] == expected
        assert f"did you mean {expected}?" in refused.value.message


async def test_every_item_of_a_stream_is_selected_from() -> None:
    context = Context()
    context.select = "a"
    items = [each.data async for each in issues_registry().subscribe("hub.follow", {}, context)]
    assert items == [{"a": 1}]


async def test_the_result_of_a_tool_is_selected_from_its_structure_or_its_json_and_a_failure_stays_whole() -> None:
    ops = OperationRegistry()
    whole = {"a": 1, "b": 2}
    text = msgspec.json.encode(whole).decode()
    results = {
        "structure": mcp_envelope(whole, content=[TextContent(text=text)], structured_content=whole),
        "text": mcp_envelope([{"type": "text", "text": text}], content=[TextContent(text=text)]),
        "prose": mcp_envelope([{"type": "text", "text": "no"}], content=[TextContent(text="no")]),
        "failure": mcp_envelope(whole, content=[TextContent(text=text)], is_error=True),
    }

    @ops.query
    async def give(which: str) -> Any:
        return results[which]

    made: dict[str, Any] = {}
    for which in results:
        context = Context()
        context.select = "a"
        made[which] = await ops.execute("give", {"which": which}, context)
    assert made["structure"].data == made["structure"].meta.structured_content == {"a": 1}
    assert made["structure"].text() == made["text"].text() == '{"a":1}'
    assert made["prose"].text() == "no"
    assert made["failure"].data == whole


def test_a_narrowed_schema_says_only_what_is_left() -> None:
    schema = {
        "type": "object",
        "required": ["items", "total"],
        "additionalProperties": False,
        "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Item"}}, "total": {"type": "integer"}},
        "$defs": {
            "Item": {
                "type": "object",
                "required": ["id", "title"],
                "properties": {
                    "id": {"type": "integer"},
                    "title": {"type": "string"},
                    "next": {"$ref": "#/$defs/Item"},
                },
            }
        },
    }
    narrow = narrowed_schema(schema, read_fields("items(id,next/title)"))
    assert list(narrow["properties"]) == narrow["required"] == ["items"]
    assert {name: list(each["properties"]) for name, each in narrow["$defs"].items()} == {
        "Item": ["id", "next"],
        "Item_2": ["title"],
    }
    jsonschema_rs.meta.validate(narrow)


def test_a_hostile_pattern_of_a_schema_keeps_no_caller_waiting() -> None:
    schema = {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}}
    check_fields(schema, {"aaa": None})
    with pytest.raises(CallError, match="is unknown"):
        check_fields(schema, {"a" * 60 + "!": None})


# --- work ---------------------------------------------------------------------------------------------------------


def rows_with_other_keys(count: int) -> list[Any]:
    return [{f"k{number}": {"a": 1}} for number in range(count)]


def rows_of_few_keys(count: int) -> list[Any]:
    return [{"a0": {"b": 1}, "x": 1} for _ in range(count)]


def lists_that_lack_a_name(depth: int) -> Any:
    value: Any = {"a": 1}
    for _ in range(depth):
        value = {"a": [value, {}]}
    return value


def one_deep_list_beside_many(count: int) -> list[Any]:
    value: Any = {"a": 1}
    for _ in range(count // 4):
        value = [value]
    return [value, *({"a": 1, "b": 1} for _ in range(count))]


def nested(depth: int) -> str:
    text = "z"
    for _ in range(depth):
        text = f"a({text}),z"
    return text


@pytest.mark.parametrize(
    ("text", "values", "size"),
    [
        ("*(b)", rows_with_other_keys, 200),
        ("*(a)", rows_with_other_keys, 200),
        ("*/*", rows_with_other_keys, 200),
        (",".join(f"a{number}(b)" for number in range(60)), rows_with_other_keys, 200),
        (",".join(f"a{number}(b)" for number in range(60)), rows_of_few_keys, 200),
        (nested(24), lists_that_lack_a_name, 10),
        ("a", one_deep_list_beside_many, 200),
    ],
    ids=["every, none", "every, all", "every, twice", "many names", "few keys", "a name is missing", "a deep list"],
)
def test_each_object_is_looked_at_once(text: str, values: Callable[[int], Any], size: int) -> None:
    fields = read_fields(text)
    few, many = (steps_of(partial(select_fields, values(count), fields)) for count in (size, 2 * size))
    assert many < 2.5 * few


def test_a_server_answers_while_it_selects_from_rows_with_different_keys() -> None:
    ops = OperationRegistry("shop")

    @ops.query
    def rows(count: int) -> list[dict[str, Any]]:
        return rows_with_other_keys(count)

    with serve(to_http(ops)) as client:
        answer = client.post("/functions/shop.rows", {"count": 12_000}, Enfold_Select="*(b)")
    assert answer.json == {"result": [{f"k{number}": {}} for number in range(12_000)]}
