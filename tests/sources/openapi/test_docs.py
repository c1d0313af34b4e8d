"""The page about this source: its code is run against a fake of the service that it describes."""

from __future__ import annotations

import ast
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Received, Serve, Words

PAGE = Path(__file__).parents[3] / "docs" / "openapi.md"
PETSTORE = """
openapi: 3.1.0
info: {title: Pets, version: "1"}
paths:
  /pets/{id}:
    get:
      operationId: getPet
      parameters: [{name: fields, in: query, schema: {type: array, items: {type: string}}}]
      responses: {"200": {description: ok, content: {application/json: {}}}}
  /news: {get: {operationId: news, responses: {"200": {description: ok, content: {text/event-stream: {}}}}}}
  /pets: {get: {operationId: listPets}}
  /broken: {get: {parameters: [{}]}}
"""


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def compiled(code: str) -> Callable[[], Awaitable[Any] | None]:
    """A block as a function: one that waits, where the block does."""
    made = compile(code, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(made, CodeType)
    return FunctionType(made, {"__name__": "page"})


@pytest.mark.parametrize("code", blocks(), ids=["call", "credentials"])
async def test_the_code_of_the_page_runs(
    serve: Serve, http: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> None:  # fmt: skip
    def answer(received: Received) -> bytes:
        if received.path == "/v1/news":
            return http.reply(b"id: 1\ndata: puppies\n\n", content_type="text/event-stream")
        return http.reply({"name": "Rex", "tags": ["dog"]})

    server = await serve(answer)
    (tmp_path / "petstore.yaml").write_text(PETSTORE)
    monkeypatch.chdir(tmp_path)
    for name in ("PETSTORE_KEY", "PETSTORE_SECRET"):
        monkeypatch.setenv(name, "s")
    imports = "from enfold.sources.openapi import from_openapi\n"
    waits = compiled(imports + code.replace("https://petstore.test", server.url))()
    if waits is not None:
        await waits
        printed = capsys.readouterr().out
        assert printed.startswith("{'name': 'Rex', 'tags': ['dog']}\n200\npuppies 1\n3 imported, 1 skipped")
