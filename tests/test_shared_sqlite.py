"""SQLite files that many open at the same moment: all of them get in, and a file is made as a whole or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from enfold.storage import SharedFile, run_script

TABLES = "CREATE TABLE IF NOT EXISTS a (x); CREATE TABLE IF NOT EXISTS b (y)"


def opened(path: Path, patience: float = 10.0, script: str = TABLES) -> sqlite3.Connection:
    return SharedFile(path, partial(run_script, script), synchronous="normal", patience=patience).open()


def tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]


def test_all_who_open_a_new_file_at_once_get_in(tmp_path: Path) -> None:
    together = Barrier(8)

    def begin(number: int) -> str:
        together.wait(30)
        connection = opened(tmp_path / "new.db")
        connection.execute("INSERT INTO a VALUES (?)", (number,))
        mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
        connection.close()
        return mode

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(begin, range(8))) == {"wal"}
    assert (tmp_path / "new.db").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
        assert connection.execute("SELECT COUNT(*) FROM a").fetchone() == (8,)


def test_an_existing_file_is_opened_while_another_connection_writes(tmp_path: Path) -> None:
    writer = opened(tmp_path / "busy.db")
    writer.execute("BEGIN IMMEDIATE")
    opened(tmp_path / "busy.db", patience=0.0).close()
    writer.execute("ROLLBACK")
    writer.close()


def test_opening_a_file_again_releases_no_lock_of_the_process(tmp_path: Path) -> None:
    """The kernel drops all locks of a process on a file when it closes any descriptor of it: others would remove its log."""
    first = opened(tmp_path / "twice.db")
    first.execute("INSERT INTO a VALUES (1)")
    second = opened(tmp_path / "twice.db")
    visit = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT x FROM a').fetchone())"
    command = [sys.executable, "-c", visit, str(tmp_path / "twice.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
    assert (tmp_path / "twice.db-wal").exists()
    second.execute("INSERT INTO a VALUES (2)")
    assert first.execute("SELECT COUNT(*) FROM a").fetchone() == (2,)
    second.close()
    first.close()


def test_a_file_that_stays_locked_is_reported(tmp_path: Path) -> None:
    keeper = sqlite3.connect(tmp_path / "kept.db", isolation_level=None)
    keeper.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        opened(tmp_path / "kept.db", patience=0.0)
    keeper.execute("ROLLBACK")
    opened(tmp_path / "kept.db", patience=0.0).close()
    keeper.close()


@pytest.mark.parametrize(
    ("content", "script", "error"),
    [(b"", f"{TABLES}; CREATE TABLE", "syntax"), (b"no database at all" * 100, TABLES, "not a database")],
    ids=["a wrong script", "another kind of file"],
)
def test_a_file_that_cannot_be_set_up_completely_is_not_changed(
    tmp_path: Path, content: bytes, script: str, error: str
) -> None:
    path = tmp_path / "odd.db"
    path.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError, match=rf"{error}|incomplete"):
        opened(path, script=script)
    assert path.read_bytes() == content if content else tables(path) == []
