"""The command `enfold prov`: show, verify and draw, from a store or from a file."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from enfold.commands.main import main
from enfold.provenance import RecordStore, build_record, capabilities, digest_json, generate_key, load_key, seal
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
    with closing(sqlite3.connect(store)) as connection, connection:
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


def test_missing_files_and_invalid_json_have_their_exit_codes(store: str, tmp_path: Path) -> None:
    assert answer("show", "z", "--store", store)[0] == 3
    assert answer("graph", "z", "--store", store)[0] == 3
    assert answer("show", "a", "--store", str(tmp_path / "none.db"))[0] == 3
    assert answer("verify", str(tmp_path / "none.json"))[0] == 3
    assert answer("verify", "-", stdin="{")[0] == 2


# --- the tools of prov-spec


def test_runs_are_listed_by_operation_and_caller(store: str) -> None:
    code, text = answer("list", "--store", store, "--operation", "shop.add")
    assert (code, [line.split("\t")[1] for line in text.splitlines()]) == (0, ["b", "a"])
    assert [each["run_id"] for each in json.loads(answer("list", "--store", store, "--json", "--limit", "1")[1])] == [
        "b"
    ]
    assert answer("list", "--store", store, "--caller", "unknown")[0] == 3


def test_a_manifest_with_an_unpaired_surrogate_has_a_fault() -> None:
    manifest = {**capabilities(), "optional": ["\ud800"]}
    code, _ = answer("validate-manifest", "-", stdin=json.dumps(manifest))
    assert code == 1


def test_a_vector_that_is_not_what_it_says_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"_vector_meta": {"id": "x", "expect": "fail", "reason": "a hyphen"}, "method_id": "adapter.fine"}
    (tmp_path / "wrong.json").write_text(json.dumps(good))
    pair = tmp_path / "integrity.digest.sha256"
    pair.mkdir()
    (pair / "input.json").write_text("{}")
    (pair / "expected.json").write_text(
        json.dumps({"canonical_form": "{ }", "digest": {"alg": "sha256", "value": "0"}})
    )
    (tmp_path / "torn.json").write_text("{")
    code, text = answer("check-vector", str(tmp_path))
    assert code == 1
    for words in (
        "x: the expected fault was not found",
        "the canonical form differs; the digest differs",
        "torn: it cannot be read",
    ):
        assert words in text
    assert answer("check-vector", str(tmp_path / "nothing"))[0] == 3
    (tmp_path / "empty").mkdir()
    assert answer("check-vector", str(tmp_path / "empty")) == (3, "")
    assert capsys.readouterr().err.endswith(f"NOT_FOUND: no vectors in {tmp_path / 'empty'}\n")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "valid"),
        ({"implements": []}, "length"),
        ({"implements": ["policy.x"]}, "reserved"),
        ({"more": 1}, "unknown"),
    ],
)
def test_a_manifest_is_checked(change: dict[str, Any], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = answer("validate-manifest", "-", stdin=json.dumps({**capabilities(), **change}))
    assert code == (0 if word == "valid" else 1)
    assert word in text + capsys.readouterr().err


def test_a_key_is_made_once_and_signs_what_its_other_half_verifies(tmp_path: Path) -> None:
    private, public = tmp_path / "key", tmp_path / "key.pub"
    assert answer("keygen", str(private))[0] == 0
    assert private.stat().st_mode & 0o777 == 0o600
    before = private.read_bytes()
    assert answer("keygen", str(private))[0] == 2
    assert private.read_bytes() == before
    record = seal(build_record("r", Tool("shop.add", "1")), key=load_key(private)).to_wire()
    assert answer("verify", "-", "--key", str(public), stdin=json.dumps(record))[0] == 0


def test_digests_methods_and_wrapping() -> None:
    assert json.loads(answer("digest", "-", stdin='{"b": 1, "a": 2.0}')[1]) == digest_json({"a": 2, "b": 1}).to_wire()
    assert answer("methods", "policy.x")[0] == 2
    assert "integrity.digest.sha256" in answer("methods")[1]
    wrapped = json.loads(answer("wrap", "-", stdin='{"n": 1}')[1])
    assert wrapped["result"] == {"n": 1}
    assert json.loads(answer("wrap", "-", stdin=json.dumps(wrapped))[1]) == wrapped
