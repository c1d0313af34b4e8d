"""The command `enfold prov`: show, verify and draw, from a store or from a file."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from enfold.commands.main import main
from enfold.provenance import RecordStore, build_record, capabilities, generate_key, seal
from enfold.provenance.records import Tool

KEY = generate_key()


def run(run_id: str, *parents: str) -> dict[str, Any]:
    return seal(build_record(run_id, Tool("shop.add", "1"), parents=parents), key=KEY).to_wire()


@pytest.fixture
def store(tmp_path: Path) -> str:
    with RecordStore(tmp_path / "r.db") as store:
        for record in (run("a"), run("b", "a")):
            store.put(record)
    return str(tmp_path / "r.db")


def answer(*arguments: str, stdin: str = "") -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr("sys.stdin", io.StringIO(stdin))
        return main(["prov", *arguments]), out.getvalue()


def test_show_prints_the_record(store: str) -> None:
    code, text = answer("show", "b", "--store", store)
    assert (code, json.loads(text)) == (0, run("b", "a"))


def test_verify_follows_the_lineage_and_checks_signatures(store: str, tmp_path: Path) -> None:
    (tmp_path / "public.pem").write_bytes(KEY.public_pem())
    code, text = answer("verify", "b", "--store", store, "--key", str(tmp_path / "public.pem"))
    assert (code, sorted(text.splitlines())) == (0, ["a: verified", "b: verified", "lineage: verified"])


def test_verify_finds_a_changed_parent(store: str) -> None:
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE records SET body = CAST(replace(body, 'shop.add', 'x') AS BLOB) WHERE run_id = 'a'")
    connection.close()
    code, text = answer("verify", "b", "--store", store)
    assert code == 1
    assert "run a was changed" in text


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (run("a"), 0),
        ({**run("a"), "run_id": "z"}, 1),
        ({"schema_version": "mcp.envelope.v0.1", "result": 1, "provenance": run("a")}, 0),
        ([run("a"), run("b", "a")], 0),
        ([run("b", "a")], 1),
        ({}, 1),
    ],
    ids=["record", "changed record", "envelope", "lineage", "lineage with a gap", "no record"],
)
def test_verify_reads_a_file(value: Any, code: int, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(value))
    assert answer("verify", str(file))[0] == code
    assert answer("verify", "-", stdin=json.dumps(value))[0] == code


def test_graph_draws_the_lineage(store: str) -> None:
    assert answer("graph", "b", "--store", store)[1].startswith("<svg ")
    assert "r0 --> r1" in answer("graph", "a", "--store", store, "--format", "mermaid")[1]
    assert answer("graph", "-", "--format", "mermaid", stdin=json.dumps(run("a")))[1].startswith("flowchart TD")


def test_capabilities_are_printed() -> None:
    code, text = answer("capabilities")
    assert (code, json.loads(text)) == (0, capabilities())


def test_what_is_not_there_and_what_is_no_json_have_their_exit_codes(store: str, tmp_path: Path) -> None:
    assert answer("show", "z", "--store", store)[0] == 3
    assert answer("graph", "z", "--store", store)[0] == 3
    assert answer("show", "a", "--store", str(tmp_path / "none.db"))[0] == 3
    assert answer("verify", str(tmp_path / "none.json"))[0] == 3
    assert answer("verify", "-", stdin="{")[0] == 2
