"""The reason of an upstream's failure reaches the message: where common servers put it, and what is omitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold import CallError
from enfold.sources.openapi import OpenAPILimits
from enfold.sources.openapi.responses import MAX_LENGTH, explanation

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Serve, Words

WHY = "price must be positive"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"type": "about:blank", "title": "Bad", "detail": WHY, "status": 422}, WHY),
        ({"title": WHY, "status": 422}, WHY),
        ({"message": WHY, "error": "Bad Request"}, WHY),
        ({"error": WHY}, WHY),
        ({"error": {"message": WHY, "code": 3}}, WHY),
        ({"error": {"errors": [{"message": WHY}]}}, WHY),
        ({"errors": [WHY, "name is missing"]}, f"{WHY}; name is missing"),
        ({"errors": [{"detail": WHY}]}, WHY),
        (
            {"errors": {"price": ["must be positive"], "name": "is missing"}},
            "price: must be positive; name: is missing",
        ),
        ({"title": "Invalid.", "errors": {"price": ["must be positive"]}}, "Invalid: price: must be positive"),
        ({"detail": [{"loc": ["body", "price"], "msg": "must be positive"}]}, "body.price: must be positive"),
        (
            {"message": "Validation Failed", "errors": [{"field": "title", "code": "missing_field"}]},
            "Validation Failed: title: missing_field",
        ),
        ({"error": "invalid_grant", "error_description": WHY}, f"invalid_grant: {WHY}"),
        ({"error_description": WHY}, WHY),
        ({"Message": WHY}, WHY),
        ({"msg": WHY}, WHY),
        ({"fault": {"faultstring": WHY}}, WHY),
        ([{"message": WHY}], WHY),
        (WHY, WHY),
        ({"errors": [f"e{n}" for n in range(9)]}, "e0; e1; e2; e3; e4"),
        ({}, ""),
        ({"code": 12}, ""),
        ([], ""),
        (None, ""),
        ({"message": None, "error": ""}, ""),
    ],
    ids=str,
)
def test_the_message_of_a_json_error_is_found(body: Any, why: str) -> None:
    assert explanation(msgspec.json.encode(body), "application/json") == why


@pytest.mark.parametrize(
    ("content", "content_type", "why"),
    [
        ("price must\r\n be positive", "text/plain", WHY),
        ("<!doctype html><html><title>Bad &amp; gone</title><body>secret path", "text/html", "Bad & gone"),
        ("<html><body>secret", "text/html; charset=utf-8", ""),
        ("<html><title>Down</title>", "text/plain", "Down"),
        ("<Error><Code>A</Code><Message>Access Denied</Message></Error>", "application/xml", "Access Denied"),
        ("\x89PNG\r\n", "image/png", ""),
        ("a\x1b[31mb\x00c\x85d\u2028e\u202ef", "text/plain", "a [31mb c d e f"),
        ('{"detail": "cut of', "application/json", ""),
        ("", "application/json", ""),
        ("x" * 1000, "text/plain", "x" * (MAX_LENGTH - 1) + "…"),
    ],
)
def test_other_content_gives_a_line_or_nothing(content: str, content_type: str, why: str) -> None:
    assert explanation(content.encode("utf-8"), content_type) == why


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["detail", "errors", "error", "message", "loc", "a"]), inner, max_size=3)
        ),
        max_leaves=20,
    )
)
def test_an_explanation_of_a_server_is_one_limited_line(body: Any) -> None:
    why = explanation(msgspec.json.encode(body), "application/json")
    assert len(why) <= MAX_LENGTH
    assert why.isprintable()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("422 Unprocessable Entity", "EXECUTION_ERROR"),
        ("429 Too Many", "RESOURCE_EXHAUSTED"),
        ("503 No", "UNAVAILABLE"),
    ],
)
async def test_the_message_of_a_failed_call_says_why(
    serve: Serve, connect: Connect, http: Words, status: str, code: str
) -> None:
    server = await serve(lambda _: http.reply({"detail": WHY}, status=status, content_type="application/problem+json"))
    registry = connect(http.document({}), base_url=server.url, limits=OpenAPILimits(retries=0))
    with pytest.raises(CallError) as caught:
        await registry.execute("x", {})
    assert (caught.value.code, caught.value.message) == (code, f"HTTP {status[:3]}: {WHY}")


NO_WORDS = [("404 ", "Not Found"), ("499 ", "Client Closed Request"), ("498 ", "the server gave no reason")]


@pytest.mark.parametrize(("status", "why"), NO_WORDS)
async def test_a_failure_without_a_message_has_a_default_one(
    serve: Serve, connect: Connect, http: Words, status: str, why: str
) -> None:
    server = await serve(lambda _: http.reply(b"", status=status))
    with pytest.raises(CallError) as caught:
        await connect(http.document({}), base_url=server.url).execute("x", {})
    assert caught.value.message == f"HTTP {status.strip()}: {why}"
