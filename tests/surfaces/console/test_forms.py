"""Forms of the console: the input of a user is what is sent, and nothing is lost. In `make console`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.surfaces.console.visiting import Visit, go, in_full, served

from enfold import Context, OperationRegistry, OperationSpec
from enfold.operations import Operation
from enfold.surfaces.http import to_http

pytestmark = in_full

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["value", "next"],
}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


SCHEMAS: dict[str, dict[str, Any]] = {
    "open": {**record([], known={"type": "string"}), "additionalProperties": {"type": "integer"}},
    "free": {"type": "object", "additionalProperties": True},
    "closed": {**record([], known={"type": "string"}), "additionalProperties": False},
    "dates": record(["day"], day={"type": "string", "format": "date"}, at={"type": "string", "format": "date-time"}),
    "nulls": record(
        ["name", "colour"],
        name={"type": ["string", "null"]},
        colour={"enum": ["red", None]},
        count={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ),
    "chain": {**record(["node"], node={"$ref": "#/$defs/Node"}), "$defs": {"Node": NODE}},
    "texts": record(["name", "number"], name={"type": "string"}, number={"type": "integer"}, note={"type": "string"}),
    "list": record(["tags"], tags={"type": "array", "items": {"type": "string"}, "minItems": 1}),
    "secret": record([], key={"type": "string", "format": "password"}),
    "pay": record(
        ["pay"],
        pay={
            "oneOf": [
                {**record(["kind", "number"], kind={"const": "card"}, number={"type": "string"}), "title": "Card"},
                {**record(["kind", "sum"], kind={"const": "cash"}, sum={"type": "number"}), "title": "Cash"},
            ]
        },
    ),
    "hints": record(
        [],
        tags={"type": "array", "items": {"type": "string"}, "default": ["a", "b"], "minItems": 2},
        five={"type": "integer", "multipleOf": 5, "examples": [15]},
    ),
}

# Hostile declarations: invalid schemas, and small ones that expand without end.
ODD: dict[str, Any] = {
    "needs": {"type": "object", "required": True},
    "parts": {"allOf": "x"},
    "choices": {"anyOf": {"x": 1}},
    "reference": {"$ref": 5},
    "address": {"$ref": "#/%E0%A4%A"},
    "title": {"oneOf": [{"title": {"x": 1}, "type": "string"}, {"title": 5}]},
}
ENDLESS = record(list("abcdef"), **{name: {"$ref": "#/$defs/Endless"} for name in "abcdef"})
SCHEMAS["odd"] = record(["last"], **ODD, last={"type": "string"})
SCHEMAS["endless"] = {**record(["all"], all={"$ref": "#/$defs/Endless"}), "$defs": {"Endless": ENDLESS}}
SCHEMAS["ways"] = {
    **record(
        ["to", "headers", "place"],
        to={"oneOf": [{"$ref": "#/$defs/Home"}, {"$ref": "#/$defs/Shop"}]},
        headers={"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
        place={"properties": {"city": {"type": "string"}}, "required": ["city"]},
    ),
    "$defs": {
        "Home": record(["street"], street={"type": "string"}),
        "Shop": record(["number"], number={"type": "integer"}),
    },
}


def _echo(input: dict[str, Any], context: Context) -> dict[str, Any]:
    del context
    return input


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    ops = OperationRegistry()
    for name, schema in SCHEMAS.items():
        ops.register(Operation(OperationSpec(name=name, namespace="odd", input_schema=schema), _echo))
    with served(to_http(ops)) as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    opened = Visit(browser, timezone_id="Europe/Berlin")
    yield opened.page
    opened.close(address)


def sent(page: Page) -> Any:
    """What the operation was given: it gives it back."""
    page.keyboard.press("Control+Enter")
    expect(page.locator(".summary .chip").first).to_have_text("OK")
    page.get_by_role("tab", name="Raw").click()
    return json.loads(page.locator(".answer pre").inner_text())["data"]


def switch(page: Page) -> Locator:
    return page.get_by_role("switch", name="JSON")


def write(page: Page, value: Any) -> None:
    """Give the input as JSON, and go back to the form."""
    switch(page).check()
    page.get_by_role("textbox", name="The input as JSON").fill(json.dumps(value))
    switch(page).click()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("open", {"known": "x", "more": 7}),
        ("free", {"a": [1, {"b": None}], "__proto__": {"polluted": 1}}),
        ("dates", {"day": "2026-01-31", "at": "2026-01-31T10:20:30.123456+05:30"}),
        ("nulls", {"name": None, "colour": None, "count": None}),
        ("chain", {"node": {"value": 1, "next": {"value": 2, "next": None}}}),
        ("texts", {"name": "", "number": 9007199254740993, "note": ""}),
        ("list", {"tags": ["a", ""]}),
        ("pay", {"pay": {"kind": "cash", "sum": 1.5}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_written_as_json_is_what_the_form_sends(page: Page, address: str, name: str, value: Any) -> None:
    go(page, address, f"operations/odd.{name}")
    write(page, value)
    expect(switch(page)).not_to_be_checked()
    assert sent(page) == value


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("texts", [1, 2], "this value"),
        ("texts", {"name": None, "number": 1}, "name"),
        ("texts", {"name": "x", "number": "1"}, "number"),
        ("texts", {"name": "two\nlines", "number": 1}, "name"),
        ("dates", {"day": "tomorrow"}, "day"),
        ("list", {"tags": [1]}, "tags[0]"),
    ],
)
def test_values_that_the_form_cannot_show_stay_json_with_a_reason(
    page: Page, address: str, name: str, value: Any, place: str
) -> None:
    go(page, address, f"operations/odd.{name}")
    write(page, value)
    expect(switch(page)).to_be_checked()
    expect(page.locator(".call > .fault")).to_contain_text(f"cannot show {place}: ")
    assert json.loads(page.get_by_role("textbox", name="The input as JSON").input_value()) == value


def test_null_is_given_where_it_is_allowed_and_levels_that_are_null_are_not_asked_for(page: Page, address: str) -> None:
    go(page, address, "operations/odd.nulls")
    expect(page.get_by_label("null").first).to_be_checked()
    page.get_by_label("colour").select_option(label="null")
    assert sent(page) == {"name": None, "colour": None}
    page.get_by_label("null").first.uncheck()
    page.get_by_label("name required").fill("x")
    assert sent(page) == {"name": "x", "colour": None}
    go(page, address, "operations/odd.chain")
    expect(page.get_by_label("value")).to_have_count(1)
    page.get_by_label("value").fill("1")
    assert sent(page) == {"node": {"value": 1, "next": None}}
    page.get_by_label("null").uncheck()
    page.get_by_label("value").nth(1).fill("2")
    assert sent(page) == {"node": {"value": 1, "next": {"value": 2, "next": None}}}


def test_properties_that_the_schema_leaves_open_can_be_added(page: Page, address: str) -> None:
    go(page, address, "operations/odd.free")
    for place, (name, value) in enumerate((("tags", '["a"]'), ("gone", "1"))):
        page.get_by_role("button", name="Add a property").click()
        page.get_by_label("Name of the property").nth(place).fill(name)
        page.get_by_label("Value").nth(place).fill(value)
    page.get_by_role("button", name="Remove").nth(1).click()
    assert sent(page) == {"tags": ["a"]}
    go(page, address, "operations/odd.closed")
    expect(page.get_by_role("button", name="Add a property")).to_have_count(0)
    write(page, {"known": "x", "strange": 1})  # it stays, and the server says what it thinks of it
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-path=strange] > .fault")).to_be_visible()


def test_a_missing_value_is_reported_at_its_field_and_an_intended_empty_text_is_sent(page: Page, address: str) -> None:
    go(page, address, "operations/odd.texts")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-path=name] > .fault")).to_contain_text("missing")
    expect(page.locator("[data-path=number] > .fault")).to_contain_text("missing")
    page.get_by_label("name").fill("x")
    page.get_by_label("name").fill("")
    page.get_by_label("note").fill("x")
    page.get_by_label("note").fill("")
    page.get_by_label("number").fill("1")
    assert sent(page) == {"name": "", "number": 1}
    go(page, address, "operations/odd.dates")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-path=day] > .fault")).to_contain_text("missing")
    go(page, address, "operations/odd.list")
    page.get_by_role("button", name="Add an item").click()
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-path='tags[0]'] > .fault")).to_have_text("Fill it in, or remove it.")
    page.get_by_label("tags", exact=True).fill("a")
    page.get_by_role("button", name="Add an item").click()
    page.get_by_label("tags", exact=True).nth(1).fill("b")
    page.get_by_role("button", name="Remove").first.click()
    expect(page.locator("[data-path='tags[0]']")).to_have_count(1)
    assert sent(page) == {"tags": ["b"]}


def test_a_choice_has_its_name_once_hints_tell_all_limits_and_a_secret_is_hidden(page: Page, address: str) -> None:
    go(page, address, "operations/odd.pay")
    expect(page.get_by_text("pay", exact=True)).to_have_count(1)
    page.get_by_label("Which pay").select_option(label="Cash")
    page.get_by_label("sum").fill("2")
    assert sent(page) == {"pay": {"kind": "cash", "sum": 2}}
    go(page, address, "operations/odd.hints")
    expect(page.locator("[data-path=tags] > .hint")).to_have_text('at least 2 items, default ["a","b"]')
    expect(page.locator("[data-path=five] > .hint")).to_have_text("in steps of 5, for example 15")
    go(page, address, "operations/odd.secret")  # a password field outside a form would be a message of the browser
    page.get_by_label("key").fill("s3cret")
    assert sent(page) == {"key": "s3cret"}


def test_the_examples_of_the_call_follow_the_form(page: Page, address: str) -> None:
    go(page, address, "operations/odd.texts")
    page.get_by_text("The same call in other clients").click()
    page.get_by_label("name").fill("ann")
    expect(page.locator(".same pre")).to_contain_text('{"name":"ann"}')
    page.get_by_label("number").fill("7")
    expect(page.locator(".same pre")).to_contain_text('{"name":"ann","number":7}')
    page.get_by_role("tab", name="Shell").click()
    page.get_by_label("name").fill("ben")
    expect(page.locator(".same pre")).to_have_text(
        f"enfold call {address}openapi.json odd_texts 'name=ben' 'number:=7'"
    )
    page.keyboard.press("Shift+Tab")
    page.get_by_role("tab", name="Shell").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="MCP")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="curl")).to_be_focused()


def test_an_invalid_schema_is_a_field_for_json_and_one_without_end_ends(page: Page, address: str) -> None:
    go(page, address, "operations/odd.odd")
    for name in ("needs", "parts", "choices", "reference", "address"):
        expect(page.locator(f"[data-path={name}] textarea")).to_be_visible()
    page.get_by_label("last").fill("x")
    assert sent(page) == {"last": "x"}
    go(page, address, "operations/odd.endless")
    expect(page.get_by_role("button", name="Call")).to_be_visible()
    assert page.locator("[data-path]").count() < 5_000


def test_choices_have_the_names_of_their_schemas_and_what_has_no_type_is_what_it_looks_like(
    page: Page, address: str
) -> None:
    go(page, address, "operations/odd.ways")
    page.get_by_label("Which to").select_option(label="Shop")
    page.get_by_label("number").fill("007")
    page.get_by_label("city").fill("Rome")
    page.get_by_role("button", name="Add a property").first.click()
    page.get_by_label("Name of the property").fill("x-age")
    page.get_by_label("Value").fill(".12345678901234567890")
    page.get_by_text("The same call in other clients").click()
    expect(page.locator(".same pre")).to_contain_text('"headers":{"x-age":0.12345678901234567890}')
    page.get_by_label("Value").fill("7")
    assert sent(page) == {"to": {"number": 7}, "headers": {"x-age": 7}, "place": {"city": "Rome"}}
