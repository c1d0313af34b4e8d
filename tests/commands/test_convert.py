"""The command `enfold convert`: a file or standard input, from one format to another."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from enfold import local_envelope
from enfold.commands.main import main
from enfold.formats import FORMATS


def test_a_file_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.json"
    file.write_text('{"data": 3, "meta": {"source": "local", "operationId": "shop.add", "timestamp": 1}}')
    assert main(["convert", "--from", "envelope", "--to", "result", str(file)]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"result": 3}
    assert "result cannot represent /meta/operationId" in told.err


def test_standard_input_and_a_bare_block_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FORMATS["tool_envelope_v1"].write(local_envelope({"n": 1}, ""))["content"][1]["text"]
    monkeypatch.setattr("sys.stdin", io.StringIO(text + "\n"))
    assert main(["convert", "--from", "tool_envelope_v1", "--to", "result"]) == 0
    assert json.loads(capsys.readouterr().out) == {"result": {"n": 1}}


@pytest.mark.parametrize("source", ["json", "text", "result"])
def test_anything_but_text_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.json"
    file.write_bytes(b"\xff\xfe")
    lenient = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8", "surrogateescape")  # as some terminals have it
    monkeypatch.setattr("sys.stdin", lenient)
    for given in (str(file), "-"):
        assert main(["convert", "--from", source, "--to", "result", given]) == 2
        assert capsys.readouterr().err.startswith("VALIDATION_ERROR: ")


@pytest.mark.parametrize("text", ["{", '{"a": 1}'], ids=["not JSON", "another format"])
def test_unreadable_input_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["convert", "--from", "mcp_envelope_v0_1", "--to", "result"]) == 2
    assert capsys.readouterr().err.startswith("VALIDATION_ERROR: ")


@pytest.mark.parametrize(("source", "result"), [("json", {"your": "payload"}), ("text", '{"your": "payload"}')])
def test_the_plain_output_of_a_tool_is_wrapped(
    source: str, result: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "today").write_text('{"your": "payload"}')
    assert main(["convert", "--from", source, "--to", "mcp_envelope_v0_1", str(tmp_path / "today")]) == 0
    wrapped = json.loads(capsys.readouterr().out)
    assert wrapped == {"schema_version": "mcp.envelope.v0.1", "result": result, "provenance": None}
