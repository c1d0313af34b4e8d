"""Tasks as a configuration describes them: which store, and the limits. Nothing is made before something is durable."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from enfold.errors import CallError
from enfold.log import Log
from enfold.registry import Registry
from enfold.tasks.runner import AT_ONCE, Current
from enfold.tasks.service import Tasks
from enfold.tasks.store import TaskStore

if TYPE_CHECKING:
    from enfold.provenance import Recorder

__all__ = ["DEFAULT_FILE", "TaskSettings", "open_tasks", "read_task_settings"]

DEFAULT_FILE: Final = ".enfold/tasks.db"


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[tasks]` of a configuration. Times are seconds."""

    store: str | None = None  # a file, or the address of NATS; `memory` keeps nothing
    keep: float = 86_400.0  # after the deadline
    limit: int = 100  # unfinished tasks of one identity
    attempts: int = 3  # how many workers may die of one task
    deadline: float = 86_400.0
    at_once: int = AT_ONCE  # tasks that run in one process; 0 orders them for others
    fsync: Literal["full", "normal"] = "full"
    secret: str | None = None  # seals the handles of a gateway

    def __post_init__(self) -> None:
        for name in ("keep", "limit", "attempts", "deadline"):
            if not getattr(self, name) > 0:
                raise ValueError(f'"{name}" must be a number above zero')


def read_task_settings(table: dict[str, Any]) -> TaskSettings:
    """The settings of a table; a ValueError says what is wrong."""
    try:
        return msgspec.convert(table, TaskSettings)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


@asynccontextmanager
async def open_tasks(
    registry: Registry,
    settings: TaskSettings | None = None,
    *,
    folder: str | Path = ".",
    works: bool = True,
    grace: float = 0.0,
    current: Current | None = None,
    recorder: Recorder | None = None,
) -> AsyncIterator[Tasks]:
    """The tasks of a registry, as long as they are needed; without `works` others run what is ordered here.

    At the end, what runs has `grace` seconds to come to its own.
    """
    chosen = settings or TaskSettings()
    async with _opened(chosen, Path(folder)) as store:
        tasks = Tasks(
            registry,
            store,
            limit=chosen.limit,
            keep=chosen.keep,
            attempts=chosen.attempts,
            deadline=chosen.deadline,
            at_once=chosen.at_once if works else 0,
            current=current,
            recorder=recorder,
        )
        tasks.begin()
        try:
            yield tasks
        finally:
            await tasks.close(grace)


@asynccontextmanager
async def _opened(settings: TaskSettings, folder: Path) -> AsyncIterator[TaskStore]:
    if settings.store is not None and "://" in settings.store:
        # nats-py is loaded only where tasks are kept there.
        from enfold.calls.transports.addresses import reached
        from enfold.calls.transports.nats_peer import NATSTransport
        from enfold.tasks.nats import NATSTasks

        async with reached(settings.store) as transport:
            if not isinstance(transport, NATSTransport):
                raise CallError("VALIDATION_ERROR", f"Tasks are kept in a file or on NATS, not at {settings.store}")
            yield NATSTasks(transport)
        return
    yield _local(settings, folder)


def _local(settings: TaskSettings, folder: Path) -> TaskStore:
    from enfold.tasks.memory import MemoryTasks  # stores are loaded where they are used

    if settings.store == "memory":
        return MemoryTasks()
    path = folder / (settings.store or DEFAULT_FILE)
    if settings.store is None and not _is_writable(path):
        Log("enfold.tasks").warning("%s cannot be written: tasks are kept in memory, and end with this process", path)
        return MemoryTasks()
    from enfold.tasks.sqlite import SQLiteTasks  # sqlite3 is loaded only where it is used

    return SQLiteTasks(path, fsync=settings.fsync)


def _is_writable(path: Path) -> bool:
    """Whether the file can be made or changed, which is not tried before it is needed."""
    place = next(each for each in (path, *path.parents) if each.exists())
    return os.access(place, os.W_OK)
