"""Tasks in the memory of one process: for tests, and if no file can be written. They are lost when it exits."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from enfold.storage import Transaction, run_script
from enfold.tasks.store import call_soon
from enfold.tasks.tables import TABLES, Publish, TableTasks

T = TypeVar("T")


class MemoryTasks(TableTasks):
    """A store in memory."""

    def __init__(self) -> None:
        super().__init__("memory", _MemoryJobs)


class _MemoryJobs:
    """Runs each job at once, where it is submitted: in memory there is nothing to wait for."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._lock = threading.Lock()  # loops of several threads may share the store
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        run_script(TABLES, self._connection)
        weakref.finalize(self, self._connection.close)  # the tasks live as long as the store object, even after `close`

    def submit(self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> asyncio.Future[T]:
        results: list[Any]
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            try:
                with Transaction(self._connection):
                    result = job(self._connection)
            except Exception as error:  # noqa: BLE001  # it is the caller's
                answer.set_exception(error)
                results = []
            else:
                answer.set_result(result)
                results = [result] if writes else []
            call_soon(self._publish(results))
        return answer

    def close(self) -> None:
        """Do nothing: no job is waiting."""
