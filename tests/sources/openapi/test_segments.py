"""An argument stays in its segment of the path: `.` and `..` are refused, however they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold import CallError
from enfold.sources.openapi.requests import arguments_leaving

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Serve, Words

DOTS = [
    ".",
    "..",
    "../profile",
    "a/../b",
    "a/./b",
    "a/..",
    "..\\windows",
    "a\\..",
    "%2e",
    "%2E%2e",
    ".%2e",
    "%252e%252e",
    "..%2fprofile",
    "a%2f..%2fb",
    "a%5c..",
    "..;x",
    "..;/profile",
]
STYLES: list[tuple[str, dict[str, Any]]] = [
    ("/users/{id}/profile", {}),
    ("/users/{id}", {"style": "label"}),
    ("/users/{id}", {"style": "label", "explode": True}),
    ("/users/{id}", {"style": "matrix"}),
    ("/users/{id}", {"allowReserved": True}),
    ("/users/{+id}", {}),
    ("/users/{id}", {"content": {"text/plain": {"schema": {"type": "string"}}}}),
]


def users(http: Words, path: str, **written: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {} if "content" in written else {"schema": {}}
    return http.document(
        {"parameters": [{"name": "id", "in": "path", "required": True, **schema, **written}]}, path=path
    )


@pytest.mark.parametrize("value", DOTS)
@pytest.mark.parametrize(("path", "written"), STYLES, ids=str)
async def test_an_argument_with_a_dot_segment_is_refused_by_name(
    serve: Serve, connect: Connect, http: Words, path: str, written: dict[str, Any], value: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    with pytest.raises(CallError) as caught:
        await connect(users(http, path, **written), base_url=server.url).execute("x", {"id": value})
    assert (caught.value.code, caught.value.details["argument"]) == ("VALIDATION_ERROR", "id")
    assert server.received == []


@pytest.mark.parametrize(
    ("path", "written", "value"),
    [
        ("/users/{id}", {"style": "label", "explode": True}, ["", ""]),
        ("/users/{id}", {}, [".."]),
        ("/users/{id}", {}, {"a": "x/../y"}),
        ("/users/{id}.", {}, "."),
        ("/users/.{id}", {}, "."),
        ("/users/%2e{id}", {}, "%2e"),
    ],
    ids=str,
)
async def test_a_segment_that_only_as_a_whole_is_dots_is_refused(
    serve: Serve, connect: Connect, http: Words, path: str, written: dict[str, Any], value: Any
) -> None:
    server = await serve(lambda _: http.reply({}))
    with pytest.raises(CallError) as caught:
        await connect(users(http, path, **written), base_url=server.url).execute("x", {"id": value})
    assert (caught.value.code, server.received) == ("VALIDATION_ERROR", [])


async def test_two_arguments_that_are_dots_together_are_refused(connect: Connect, http: Words) -> None:
    registry = connect(http.document({}, path="/users/{a}{b}/x"), base_url="http://127.0.0.1:9")
    with pytest.raises(CallError) as caught:
        await registry.execute("x", {"a": "", "b": ".."})
    assert caught.value.details["argument"] == "b"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("...", "..."),
        (".github", ".github"),
        ("main...next", "main...next"),
        ("a..b", "a..b"),
        ("1.5", "1.5"),
        ("a/b", "a%2Fb"),
        ("50%", "50%25"),
    ],
)
async def test_dots_that_name_something_are_sent(
    serve: Serve, connect: Connect, http: Words, value: str, sent: str
) -> None:
    server = await serve(lambda _: http.reply({}))
    await connect(users(http, "/users/{id}/x"), base_url=server.url).execute("x", {"id": value})
    assert server.received[0].path == f"/users/{sent}/x"


async def test_dots_in_a_query_are_only_text(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({}))
    await connect(http.document({}, path="/a?file={b}"), base_url=server.url).execute("x", {"b": "../c"})
    assert server.received[0].target == "/a?file=..%2Fc"


PIECES = ["/", "\\", ".", "%2e", "%2F", "%5c", "%25", "2e", "a", ";", "%", " "]
SPELLED = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def _read_laxly(path: str) -> list[str]:
    """The segments for the laxest server: decoded again and again, backslashes and parameters read."""
    while unquote(path) != path:
        path = unquote(path)
    return [part.partition(";")[0] for part in path.replace("\\", "/").split("/")]


@given(st.lists(SPELLED, min_size=1, max_size=3))
def test_no_accepted_text_escapes_its_segment(texts: list[str]) -> None:
    names = [str(index) for index, _ in enumerate(texts)]
    pieces = ["/users/", *texts, "/profile"]
    refused = list(arguments_leaving(pieces, [None, *names, None], dict(zip(names, texts, strict=True))))
    assert refused or ".." not in _read_laxly("".join(pieces))


@pytest.mark.parametrize("value", ["", [], [""]], ids=str)
@pytest.mark.parametrize("path", ["/users/{id}/profile", "/users/{id}"])
async def test_an_argument_that_is_an_empty_segment_is_refused_by_name(
    serve: Serve, connect: Connect, http: Words, path: str, value: Any
) -> None:
    server = await serve(lambda _: http.reply({}))
    with pytest.raises(CallError) as caught:
        await connect(users(http, path), base_url=server.url).execute("x", {"id": value})
    assert (caught.value.code, caught.value.details["argument"]) == ("VALIDATION_ERROR", "id")
    assert server.received == []
