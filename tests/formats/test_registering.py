"""A format of a user's own, on every surface: the example of the documentation."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
from tests.formats.surfaces import in_the_shell, over_cgi, over_http, over_mcp

from enfold import CallError, OperationRegistry, TextContent, http_envelope, mcp_envelope
from enfold.formats import FORMATS, find_format, register_format
from enfold.formats.conversion import convert
from enfold.surfaces.openapi import to_openapi

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "extending" / "format.py"


@pytest.fixture(autouse=True)
def _formats_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone with it: other tests go through all formats there are."""
    monkeypatch.setattr(FORMATS, "known", dict(FORMATS.known))


@pytest.fixture
def jsend() -> str:
    """The name of the example's format."""
    spec = importlib.util.spec_from_file_location("jsend_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return register_format("jsend", module).name


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    @ops.query
    async def fail() -> None:
        raise CallError("SOLD_OUT", "None left")

    @ops.query
    async def failed() -> Any:
        return mcp_envelope(None, is_error=True, content=[TextContent(text="disk full")])

    @ops.query
    async def page() -> dict[str, int]:
        return http_envelope("<html>", content_type="text/html")  # type: ignore[return-value]  # what a service sent

    @ops.subscription
    async def count(to: int, fail: bool = False) -> AsyncIterator[int]:
        for number in range(to):
            yield number
        if fail:
            raise CallError("SOLD_OUT", "None left")

    return ops


GOOD = {"status": "success", "data": 3}
SOLD_OUT = {"status": "error", "message": "None left", "code": "SOLD_OUT"}


def test_it_is_written_over_http_and_cgi(jsend: str) -> None:
    for call in (over_http, over_cgi):
        assert call(shop(), "shop.add", jsend, {"x": 1, "y": 2}).body == GOOD
        seen = call(shop(), "shop.fail", jsend)
        assert (seen.status, seen.body) == (500, SOLD_OUT)
        seen = call(shop(), "shop.failed", jsend)
        assert (seen.status, seen.body["message"]) == (200, "disk full")


def test_it_is_written_in_streams(jsend: str) -> None:
    lines = over_http(shop(), "shop.count", jsend, {"to": 1}, accept="application/x-ndjson").body
    assert lines == [{"status": "success", "data": 0}, {"complete": True}]
    assert over_cgi(shop(), "shop.count", jsend, {"to": 2}).body == {"status": "success", "data": [0, 1]}


def test_it_is_written_in_the_shell(jsend: str) -> None:
    assert in_the_shell(shop(), "shop.add", jsend, {"x": 1, "y": 2}).body == GOOD
    seen = in_the_shell(shop(), "shop.fail", jsend)
    assert (seen.status, seen.body) == (1, SOLD_OUT)


def test_it_is_written_over_mcp_as_text_and_as_structure(jsend: str) -> None:
    seen = over_mcp(shop(), "shop.add", jsend, {"x": 1, "y": 2})
    assert (json.loads(seen.body["content"][0]["text"]), seen.body["structured"]) == (GOOD, GOOD)
    failed = over_mcp(shop(), "shop.fail", jsend)
    assert (failed.status, json.loads(failed.body["content"][0]["text"])) == (1, SOLD_OUT)


def test_the_document_describes_what_it_writes(jsend: str) -> None:
    document = to_openapi(shop(), format=jsend)
    responses = document["paths"]["/functions/shop.add"]["post"]["responses"]
    for status, written in (("200", GOOD), ("500", SOLD_OUT)):
        schema = responses[status]["content"]["application/json"]["schema"]
        jsonschema_rs.validate({**schema, "components": document["components"]}, written)


def test_it_takes_part_in_conversions(jsend: str) -> None:
    found = find_format(jsend)
    assert convert(GOOD, found, FORMATS["result"]).wire == {"result": 3}
    assert convert({"error": "no"}, FORMATS["result"], found).wire["message"] == "no"


def test_a_format_of_verbs_alone_has_no_structure_and_no_schema() -> None:
    bare = SimpleNamespace(
        write=lambda envelope, _=None: str(envelope.data),
        write_error=lambda error, _: error.message,
        read=lambda wire: wire,
    )
    register_format("bare", bare)
    assert over_http(shop(), "shop.add", "bare", {"x": 1, "y": 2}).body == "3"
    seen = over_mcp(shop(), "shop.add", "bare", {"x": 1, "y": 2})
    assert (seen.body["content"], seen.body["structured"]) == ([{"type": "text", "text": '"3"'}], None)
    lines = over_http(shop(), "shop.count", "bare", {"to": 1}, accept="application/x-ndjson").body
    assert lines == ["0", {"complete": True}]
    lines = over_http(shop(), "shop.count", "bare", {"to": 1, "fail": True}, accept="application/x-ndjson").body
    assert lines == ["0", {"complete": False, "error": "None left"}]
    to_openapi(shop(), format="bare")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b", "ä"])
def test_a_name_that_no_header_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid format name"):
        register_format(name, FORMATS["result"])


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="The format result already exists"):
        register_format("result", FORMATS["envelope"])


def test_a_format_without_a_verb_is_refused() -> None:
    with pytest.raises(TypeError, match="has no read"):
        register_format("half", SimpleNamespace(write=print, write_error=print))


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["success", "error"]
