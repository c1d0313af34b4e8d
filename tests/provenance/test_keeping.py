"""Keeping records while calls go on: a busy store holds up no loop, some calls are recorded unasked, run ids come back."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.serving import serve
from tests.waiting import wait_for

from enfold import CallError, Context, OperationRegistry
from enfold.provenance import CaptureOptions, Recorder, RecordStore, StoredRecordError, verify_run
from enfold.provenance import record_store as store_module
from enfold.surfaces.http import to_http

FULL = CaptureOptions("full")


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.mutation
    async def order(item: str) -> str:
        if item == "nothing":
            raise CallError("NOT_FOUND", "There is no such item")
        return item

    @ops.query
    def price(item: str) -> int:
        return len(item)

    return ops


def context(recorder: Recorder, operation: str, options: CaptureOptions | None = None) -> Context:
    made = Context()
    made.recording = recorder.begin(options, operation=shop().get_spec(f"shop.{operation}"), identity="ann")
    return made


async def call(recorder: Recorder, operation: str, options: CaptureOptions | None = None) -> tuple[Any, Context]:
    made = context(recorder, operation, options)
    return await shop().execute(f"shop.{operation}", {"item": "pen"}, made), made


def recorded_run_id(made: Context) -> str | None:
    """The run id that surfaces give back to the caller."""
    return made.recording.run_id if made.recording is not None and made.recording.is_kept else None


# --- a locked store -----------------------------------------------------------------------------------------------


async def test_the_loop_continues_while_the_store_is_locked(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db") as store, closing(sqlite3.connect(tmp_path / "r.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        recording = asyncio.create_task(call(Recorder(store=store), "order", FULL))
        others = [await shop().execute("shop.price", {"item": "pen"}) for _ in range(50)]
        assert (len(others), recording.done()) == (50, False)
        other.execute("ROLLBACK")
        envelope, made = await recording
        assert store.get(envelope.provenance["run_id"]) == envelope.provenance
        assert recorded_run_id(made) == envelope.provenance["run_id"]


async def test_a_locked_store_loses_the_record_and_not_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.05)
    with RecordStore(tmp_path / "r.db") as store, closing(sqlite3.connect(tmp_path / "r.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        calls = [call(Recorder(store=store), "order", FULL) for _ in range(20)]
        ended = await asyncio.gather(*calls)
        assert {envelope.data for envelope, _ in ended} == {"pen"}
        assert {warning.code for envelope, _ in ended for warning in envelope.warnings} == {"provenance_failed"}
        assert {recorded_run_id(made) for _, made in ended} == {None}
        other.execute("ROLLBACK")


async def test_callers_who_go_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_WAITING", 3)
    with RecordStore(tmp_path / "r.db") as store, closing(sqlite3.connect(tmp_path / "r.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        recorder = Recorder(store=store)
        gone = [asyncio.create_task(call(recorder, "order", FULL)) for _ in range(3)]
        await asyncio.sleep(0)  # Each has handed its record to the store.
        for each in gone:
            each.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        envelope, _ = await call(recorder, "order", FULL)
        assert [warning.code for warning in envelope.warnings] == ["provenance_failed"]
        other.execute("ROLLBACK")
        await asyncio.to_thread(wait_for, lambda: len(store) == 3)  # Their calls have run and are on record.


def test_a_store_that_is_locked_from_the_beginning_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.05)
    RecordStore(tmp_path / "r.db").close()
    with closing(sqlite3.connect(tmp_path / "r.db")) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoredRecordError, match="locked"):
            RecordStore(tmp_path / "r.db")


def test_a_program_without_a_loop_keeps_its_records_in_place(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db") as store:
        made = context(Recorder(store=store), "price", FULL)
        envelope = shop().execute_now("shop.price", {"item": "pen"}, made)
        assert envelope.provenance is not None
        assert store.get(envelope.provenance["run_id"]) is not None


# --- without being asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "kept"), [("asked", []), ("mutations", ["shop.order"]), ("all", ["shop.order", "shop.price"])]
)
async def test_calls_recorded_by_default(tmp_path: Path, record: Any, kept: list[str]) -> None:
    with RecordStore(tmp_path / "r.db") as store:
        recorder = Recorder(store=store, record=record)
        ended = [await call(recorder, operation) for operation in ("order", "price")]
        assert [envelope.provenance for envelope, _ in ended] == [None, None]  # the caller did not request it
        assert sorted(each["tool"]["name"] for each in store.find(identity="ann")) == kept
        for run_id in filter(None, (recorded_run_id(made) for _, made in ended)):
            assert all(verdict.ok for verdict in verify_run(run_id, store))


async def test_a_failure_is_recorded_without_being_asked_too(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db") as store:
        made = context(Recorder(store=store, record="mutations"), "order")
        with pytest.raises(CallError) as raised:
            await shop().execute("shop.order", {"item": "nothing"}, made)
        assert (raised.value.provenance, len(store)) == (None, 1)
        assert recorded_run_id(made) is not None


def test_a_call_that_is_not_recorded_has_no_run_id() -> None:
    assert recorded_run_id(context(Recorder(), "order", FULL)) is None  # it has not ended yet


# --- the surfaces -------------------------------------------------------------------------------------------------


def test_http_gives_the_run_id_back_in_a_header(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db") as store:
        app = to_http(shop(), recorder=Recorder(store=store, record="mutations"))
        with serve(app) as client:
            done = client.post("/functions/order", {"item": "pen"})
            failed = client.post("/functions/order", {"item": "nothing"})
            read = client.post("/functions/price", {"item": "pen"})
            asked = client.post("/functions/price", {"item": "pen"}, **{"Enfold-Capture-Provenance": "full"})
        assert [answer.status for answer in (done, failed, read, asked)] == [200, 500, 200, 200]
        kept = [answer.headers.get("enfold-run-id") for answer in (done, failed, asked)]
        assert all(run_id and store.get(run_id) for run_id in kept)
        assert "enfold-run-id" not in read.headers
        assert len(store) == 3


def test_a_request_in_an_envelope_is_recorded_by_default_too(tmp_path: Path) -> None:
    request = {
        "schema_version": "mcp.request.v0.1",
        "tool": {"name": "shop.order"},
        "params": {"item": "pen"},
        "artifacts": [],
    }
    with RecordStore(tmp_path / "r.db") as store:
        with serve(to_http(shop(), recorder=Recorder(store=store, record="mutations"))) as client:
            done = client.post("/call", request)
        assert (done.json["provenance"], store.get(done.headers["enfold-run-id"]) is not None) == (None, True)
