"""Tasks kept in the memory of one process: for tests, and where no file can be written. They die with it."""

from __future__ import annotations

import sqlite3

from enfold.shared_sqlite import run_script
from enfold.tasks.tables import TABLES, TableTasks


class MemoryTasks(TableTasks):
    """A store in memory."""

    def __init__(self) -> None:
        super().__init__("memory", _open)


def _open() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    run_script(TABLES, connection)
    return connection
