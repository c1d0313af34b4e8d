"""The store: records are kept whole, found in every way, bounded, and safe from a killed process."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from enfold.errors import FormatError
from enfold.provenance import (
    CycleError,
    RecordStore,
    StoredRecordError,
    build_graph,
    build_record,
    generate_key,
    public_keys,
    seal,
    verify_lineage,
)
from enfold.provenance.records import Tool

Wire = dict[str, Any]


def run(run_id: str, *parents: str, name: str = "shop.add") -> Wire:
    return build_record(run_id, Tool(name, "1.0.0"), parents=parents).to_wire()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
def store(path: Path) -> Iterator[RecordStore]:
    with RecordStore(path) as store:
        yield store


def test_a_record_comes_back_as_it_was_put(store: RecordStore) -> None:
    store.put(run("a"))
    assert store.get("a") == run("a")
    assert store.get("b") is None


def test_records_are_found_by_parent_child_operation_caller_and_time(store: RecordStore) -> None:
    store.put(run("a"), moment=1000, identity="ann")
    store.put(run("b", "a"), moment=2000, identity="bob")
    store.put(run("c", "a", name="shop.sub"), moment=3000, identity="bob")
    assert store.parents("b") == ["a"]
    assert store.children("a") == ["b", "c"]
    assert [each["run_id"] for each in store.find(operation="shop.add")] == ["b", "a"]
    assert [each["run_id"] for each in store.find(matching="OP.AD")] == ["b", "a"]
    assert [each["run_id"] for each in store.find(identity="bob", since=2500)] == ["c"]
    assert [each["run_id"] for each in store.find(until=3000, limit=1)] == ["b"]
    assert {each["run_id"] for each in store.lineage("b")} == {"a", "b"}
    assert {each["run_id"] for each in store.lineage("a")} == {"a", "b", "c"}


def test_the_same_record_again_changes_nothing_and_another_one_is_refused(store: RecordStore) -> None:
    store.put(run("a"))
    store.put(run("a"))
    assert len(store) == 1
    with pytest.raises(StoredRecordError, match="different content"):
        store.put(run("a", "b"))


def test_an_invalid_or_too_large_record_is_refused(path: Path) -> None:
    with RecordStore(path, max_bytes=1000) as store:
        with pytest.raises(FormatError):
            store.put({"run_id": "a"})
        with pytest.raises(StoredRecordError, match="bytes"):
            store.put(run("a", *(f"parent-{number}" for number in range(100))))
        assert len(store) == 0


def test_a_run_that_names_itself_is_refused_and_a_larger_circle_is_found_on_loading(store: RecordStore) -> None:
    with pytest.raises(CycleError):
        store.put(run("d", "d"))
    store.put(run("b", "a"))  # a child may be stored before its parent, as nested calls end first
    store.put(run("a", "b"))
    with pytest.raises(CycleError):
        build_graph(store.lineage("a"))


def test_each_caller_keeps_only_the_newest_of_their_records(path: Path) -> None:
    with RecordStore(path, per_identity=3) as store:
        for number in range(5):
            store.put(run(f"ann-{number}", "root"), identity="ann")
        store.put(run("bob-0"), identity="bob")
        assert sorted(each["run_id"] for each in store.find()) == ["ann-2", "ann-3", "ann-4", "bob-0"]
        assert store.children("root") == ["ann-2", "ann-3", "ann-4"]


def test_old_records_are_forgotten(path: Path) -> None:
    with RecordStore(path) as store:
        store.put(run("old"), moment=1000)
        store.put(run("new"))
        assert store.purge(2000) == 1
        store.put(run("old"), moment=1000)
    with RecordStore(path, max_age=3600) as store:
        assert [each["run_id"] for each in store.find()] == ["new"]


def test_a_record_changed_in_the_file_is_found(store: RecordStore, path: Path) -> None:
    store.put(run("a"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE records SET body = CAST(replace(body, 'shop.add', 'shop.sub') AS BLOB)")
    connection.close()
    with pytest.raises(StoredRecordError, match="changed"):
        store.get("a")


@pytest.mark.parametrize(
    "body", [b"", b"\xff", "text", 5, b"[]", b'{"parents":"a"}', b'{"parents":["\\ud800"]}', b'{"parents":["\xff"]}']
)
def test_a_record_changed_before_it_was_indexed_does_not_keep_others_from_being_found(
    store: RecordStore, path: Path, body: Any
) -> None:
    for record in (run("a"), run("b", "a"), run("c", "a", "b")):
        store.put(record, identity="ann")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE records SET body = ? WHERE run_id = 'b'", (body,))
    connection.close()
    assert (store.children("a"), store.children("b")) == (["c"], ["c"])
    assert [each.run_id for each in store.find_runs(identity="ann") if each.fault] == ["b"]


def test_deleted_records_are_deleted_with_their_links(path: Path) -> None:
    with RecordStore(path, per_identity=2) as store:
        for number in range(7):
            store.put(run(f"r{number}", *([f"r{number - 1}"] if number else [])), moment=number)
        assert [each["run_id"] for each in store.find()] == ["r6", "r5"]
        assert (store.children("r3"), store.children("r4"), store.children("r5")) == ([], ["r5"], ["r6"])
        assert (store.purge(6), len(store)) == (1, 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("SELECT parent FROM links").fetchall() == [("r5",)]
    connection.close()


def test_a_store_that_is_not_there_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordStore(path, create=False)
    assert not path.exists()


def test_a_store_whose_file_was_removed_keeps_records_where_others_find_them(store: RecordStore, path: Path) -> None:
    store.put(run("a"))
    for each in path.parent.iterdir():
        each.unlink()
    store.put(run("b"))
    with RecordStore(path, create=False) as other:
        assert [record["run_id"] for record in other.find()] == ["b"]


def test_a_store_that_is_only_read_is_not_made_again_when_its_file_is_gone(store: RecordStore, path: Path) -> None:
    store.put(run("a"))
    with RecordStore(path, create=False) as reader:
        for each in path.parent.iterdir():
            each.unlink()
        with pytest.raises(StoredRecordError, match="No store at"):
            reader.get("a")
    assert not path.exists()


def test_a_file_that_is_not_a_store_is_reported(path: Path) -> None:
    path.write_bytes(b"something else entirely, and long enough to be looked at" * 20)
    with pytest.raises(StoredRecordError, match="Not a record store"):
        RecordStore(path)


def test_only_the_owner_can_read_the_file(store: RecordStore, path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_threads_share_a_store(store: RecordStore) -> None:
    def write(name: str) -> None:
        for number in range(50):
            store.put(run(f"{name}-{number}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) == 200


ANOTHER_PROCESS = """
import json, sys
from enfold.provenance import RecordStore
store = RecordStore(sys.argv[1])
print(json.dumps(store.lineage(sys.argv[2])))
"""


def test_another_process_fetches_a_lineage_that_verifies_and_finds_a_changed_parent(
    store: RecordStore, path: Path
) -> None:
    key = generate_key()
    for run_id, parents in {"a": (), "b": ("a",), "c": ("b",)}.items():
        store.put(seal(build_record(run_id, Tool("shop.add", "1"), parents=parents), key=key).to_wire())
    told = subprocess.run([sys.executable, "-c", ANOTHER_PROCESS, path, "c"], capture_output=True, check=True)
    records = json.loads(told.stdout)
    keys = public_keys([key.public_key])
    assert all(verdict.ok for verdict in verify_lineage(records, keys))
    parent = next(each for each in records if each["run_id"] == "a")
    parent["tool"]["version"] = "2"
    assert [verdict.run_id for verdict in verify_lineage(records, keys) if not verdict.ok] == ["a"]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="writers are forked")
def test_no_record_is_torn_or_lost_when_writers_are_killed(path: Path) -> None:
    program = Path(__file__).with_name("kill_writers.py")
    RecordStore(path).close()
    told = subprocess.run([sys.executable, program, path, "200"], capture_output=True, check=True, text=True)
    acknowledged = told.stdout.split()
    assert len(acknowledged) > 200
    with RecordStore(path, per_identity=10**9) as store:
        assert all(store.get(run_id) is not None for run_id in acknowledged)
        assert all(each["tool"]["name"] == "shop.add" for each in store.find(limit=10**6))
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
