"""The messages for unreadable bodies in format `result`."""

from typing import Any

import pytest
from tests.formats.surfaces import over_cgi, over_http

from enfold import OperationRegistry

OBJECT = ": an object of arguments is expected"
BODIES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"not json", ""),
    "nothing": (b"", ""),
    "half": (b'{"x": ', ""),
    "not UTF-8": (b"\xff", ""),
    "endless": (b"[" * 100_000, ""),
    "an array": (b"[1, 2]", OBJECT),
    "an empty array": (b"[]", OBJECT),
    "a number": (b"3", OBJECT),
    "null": (b"null", OBJECT),
    "text": (b'"x"', OBJECT),
}


def adding(**options: Any) -> OperationRegistry:
    ops = OperationRegistry("t", **options)

    @ops.query
    async def add(x: int = 1) -> int:
        return x

    return ops


@pytest.mark.parametrize(("body", "why"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("headers", [{}, {"x-request-id": "a"}], ids=["plain", "with a request id"])
def test_an_invalid_body_says_what_is_expected(body: bytes, why: str, headers: dict[str, str]) -> None:
    seen = over_http(adding(), "t.add", "result", body, **headers)
    assert (seen.status, seen.body) == (400, {"error": f"Invalid JSON body{why}"})


def test_a_cgi_program_reports_invalid_json_too() -> None:
    seen = over_cgi(adding(), "t.add", "result", b"[1]")
    assert seen.status == 400
    assert seen.body["error"].startswith("Invalid JSON: ")
