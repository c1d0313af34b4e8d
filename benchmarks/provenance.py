"""What records cost: a call that leaves a minimal one beside the msgspec floor, and the store beside plain sqlite3."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import work
from benchmarks.harness import Comparison, Contender, Goal, of_coroutine, of_function
from benchmarks.program import compare_all
from enfold import Context, OperationRegistry
from enfold.provenance import Recorder, RecordStore, options_from_mode

FLOOR: Final = "msgspec floor"
EXECUTE: Final = "execute"
RECORDED: Final = "execute, minimal record"
PLAIN: Final = "plain sqlite3"
STORE: Final = "RecordStore.put"


def main(rounds: int) -> int:
    with TemporaryDirectory() as folder:
        sqlite, store = _sqlite(Path(folder) / "plain.db"), RecordStore(Path(folder) / "records.db")
        with closing(sqlite), store:
            return compare_all("provenance", [_call_comparison(), _store_comparison(sqlite, store)], rounds)


# --- a call -------------------------------------------------------------------------------------------------------


def _call_comparison() -> Comparison:
    contenders = (_floor(), _execute(EXECUTE, lambda: None), _execute(RECORDED, _recording))
    goals = (Goal(RECORDED, FLOOR, "at most", 30),)
    return Comparison("provenance, a call of `add`", contenders, (FLOOR, EXECUTE), goals)


def _floor() -> Contender:
    """The least that keeps the promise without a record: check the input, run, check the result, wrap it."""
    convert, as_dict, to_builtins = msgspec.convert, msgspec.structs.asdict, msgspec.to_builtins
    meta = {"source": "local", "operationId": "add"}

    async def call() -> Any:
        result = await work.add(**as_dict(convert(work.ADD_INPUT, work.AddInputStruct)))
        return {"data": to_builtins(convert(result, work.SumStruct)), "meta": meta}

    return of_coroutine(FLOOR, call, work.ADD_ANSWER, lambda envelope: envelope["data"])


def _execute(name: str, context: Callable[[], Context | None]) -> Contender:
    ops = OperationRegistry()
    ops.query(work.add)

    async def call() -> Any:
        return await ops.execute("add", work.ADD_INPUT, context())

    return of_coroutine(name, call, work.ADD_ANSWER, lambda envelope: envelope.data)


_recorder: Final = Recorder()
_minimal: Final = options_from_mode("minimal")


def _recording() -> Context:
    context = Context()
    context.recording = _recorder.begin(_minimal)
    return context


# --- the store ----------------------------------------------------------------------------------------------------


def _store_comparison(sqlite: sqlite3.Connection, store: RecordStore) -> Comparison:
    sample = _sample()
    numbers = count()

    def fresh() -> dict[str, Any]:
        return {**sample, "run_id": f"{next(numbers):08x}-{sample['run_id'][9:]}"}

    contenders = (
        of_function(PLAIN, lambda: _insert(sqlite, fresh()), 1),
        of_function(STORE, lambda: store.put(fresh()), None),
    )
    # Twice the CPU time is half the rate.
    return Comparison("provenance, a record kept", contenders, (PLAIN,), (Goal(STORE, PLAIN, "at most", 2),))


def _sample() -> dict[str, Any]:
    ops = OperationRegistry()
    ops.query(work.add_sync)
    record = ops.execute_now("add_sync", work.ADD_INPUT, _recording()).provenance
    if record is None:
        raise RuntimeError("the call left no record")
    return record


def _sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE records (run_id TEXT PRIMARY KEY, body BLOB NOT NULL)")
    return connection


def _insert(connection: sqlite3.Connection, record: dict[str, Any]) -> int:
    row = (record["run_id"], msgspec.json.encode(record))
    return connection.execute("INSERT INTO records VALUES (?, ?)", row).rowcount


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
