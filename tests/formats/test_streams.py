"""Formats in streams of lines."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.formats.surfaces import over_http

from enfold import CallError, OperationRegistry, TextContent, mcp_envelope
from enfold.formats import FORMATS


@pytest.mark.parametrize("format", FORMATS)
def test_the_last_line_alone_says_whether_the_stream_is_complete(format: str) -> None:
    ops = OperationRegistry()

    @ops.subscription
    async def results(fail: bool) -> AsyncIterator[Any]:
        yield {"complete": True}
        yield mcp_envelope(None, is_error=True, content=[TextContent(text="disk full")])
        yield None
        if fail:
            raise CallError("DATA_LOSS", "A frame is lost")

    whole = over_http(ops, "results", format, {"fail": False}, accept="application/x-ndjson").body
    assert [line.get("complete") for line in whole] == [None, None, None, True]
    cut = over_http(ops, "results", format, {"fail": True}, accept="application/x-ndjson").body
    assert [line.get("complete") for line in cut] == [None, None, None, False]
    assert "A frame is lost" in json.dumps(cut[-1]["error"])
