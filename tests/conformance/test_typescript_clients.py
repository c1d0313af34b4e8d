"""The official TypeScript clients list the tools of OpenAPI documents: a few here, all in `make conformance`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conformance.typescript_clients import can_run, lines
from tests.conftest import not_run
from tests.sources.openapi.documents import documents

ODD = [r"^[A-Za-z0-9\-\_]+$", r"[\w-.]", "(?i)x", "{a}", "[b-a]"]


def document() -> dict[str, object]:
    """A document with patterns that the `u` flag refuses, in inputs and in answers."""
    properties = {f"p{index}": {"type": "string", "pattern": pattern} for index, pattern in enumerate(ODD)}
    schema = {"type": "object", "properties": properties, "patternProperties": {pattern: {} for pattern in ODD}}
    content = {"application/json": {"schema": schema}}
    operation = {"requestBody": {"content": content}, "responses": {"200": {"description": "", "content": content}}}
    paths = {f"/{name}": {"post": {"operationId": name, **operation}} for name in ("a", "b")}
    return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}


def test_the_clients_list_a_document_whose_patterns_they_cannot_compile(tmp_path: Path) -> None:
    if not can_run():
        not_run("@modelcontextprotocol/sdk")
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document()))
    listed = [(line["client"], line.get("tools"), line.get("error")) for line in lines([path])]
    assert listed == [("sdk", 2, None), ("client", 2, None)]


def test_the_clients_list_every_operation_of_our_documents() -> None:
    if not can_run():
        not_run("@modelcontextprotocol/sdk")
    listed = list(lines(document.path for document in documents()[1:3]))
    assert [line for line in listed if "error" in line or line["tools"] != line["wanted"]] == []
    assert [line["tools"] for line in listed if line["client"] == "sdk"] == [9, 9]
