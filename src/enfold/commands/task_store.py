"""Where a command keeps tasks: as it is told, as the configuration says, or in `.enfold/tasks.db` below the target's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.commands.targets import TOKEN, Target
from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.operation.repeats import OnceStore
    from enfold.registry import Registry
    from enfold.tasks import Tasks, TaskStore

__all__ = [
    "DEFAULT_STORE",
    "TaskSettings",
    "first_results",
    "open_store",
    "open_tasks",
    "opened_tasks",
    "task_settings",
    "task_terms",
]

DEFAULT_STORE: Final = Path(".enfold") / "tasks.db"
SHORTEST_SECRET: Final = 16  # characters


class TaskSettings(msgspec.Struct, frozen=True):
    """The terms of tasks, and where they are kept; `folder` is that of the target."""

    folder: Path
    store: str | None = None  # None where nobody has said
    terms: dict[str, Any] = {}
    keep_results: float | None = None  # seconds that first results are kept for idempotency keys
    has_servers: bool = False  # whether there are MCP servers behind us, which may begin tasks of their own
    may_be_durable: bool = False  # whether sources that come later have durable operations

    @property
    def path(self) -> Path:
        """The file of the store, where that is a file."""
        named = None if self.store is None or "://" in self.store else self.store
        return self.folder / (named or DEFAULT_STORE)


def task_settings(target: Target | None, store: str | None = None) -> TaskSettings:
    """What the command line and the configuration say of tasks; a file of the command line lies where the user stands."""
    if store is not None and "://" not in store:
        store = str(Path(store).resolve())
    if target is None or target.kind != "configuration":
        return TaskSettings(_folder(target), store, has_servers=target is not None and target.kind == "server")
    from enfold.config import read_config

    config = read_config(target.text, os.environ)
    terms = dict(config.tasks)
    named = terms.pop("store", None)
    return TaskSettings(
        Path(config.folder),
        store or named,
        terms,
        config.idempotency.get("keep"),
        has_servers=any(source.kind == "mcp" for source in config.sources),
        may_be_durable=any("durable" in source.entry for source in config.sources),
    )


def _folder(target: Target | None) -> Path:
    if target is None:  # a user's own script, or only peers
        script = Path(sys.argv[0]).resolve()
        return script.parent if script.suffix == ".py" else Path.cwd()
    file = Path(target.text.partition(":")[0])
    return file.resolve().parent if target.kind == "program" and file.suffix == ".py" else Path.cwd()


def open_tasks(registry: Registry, settings: TaskSettings, *, works: bool = True) -> Tasks | None:
    """The tasks of a registry; None where nothing can be a task and nobody has named a store.

    With `works` this process also runs them. Where only other servers' tasks can come, nothing is kept here.
    """
    is_durable = settings.may_be_durable or any(spec.durable != "never" for spec in registry.list())
    if not is_durable and settings.store is None and not (works and settings.has_servers):
        return None
    from enfold.tasks import Tasks

    terms = task_terms(settings)
    if not is_durable and settings.store is None:
        from enfold.tasks.memory import MemoryTasks

        return Tasks(registry, MemoryTasks(), **{**terms, "at_once": 0})
    if not works:
        terms["at_once"] = 0
    return Tasks(registry, open_store(settings), **terms)


@asynccontextmanager
async def opened_tasks(registry: Registry, settings: TaskSettings, grace: float = 0.0) -> AsyncIterator[Tasks | None]:
    """The same, for as long as a server runs; what was ordered before is taken up at once."""
    async with _on_peers(registry, settings) as far:
        tasks = far or open_tasks(registry, settings)
        if tasks is None:
            yield None
            return
        tasks.begin()
        try:
            yield tasks
        finally:
            await tasks.close(grace)


@asynccontextmanager
async def _on_peers(registry: Registry, settings: TaskSettings) -> AsyncIterator[Tasks | None]:
    """The tasks that a NATS server keeps, where one is named."""
    if settings.store is None or "://" not in settings.store:
        yield None
        return
    from enfold.calls.transports.addresses import reached
    from enfold.calls.transports.nats_peer import NATSTransport
    from enfold.tasks import Tasks
    from enfold.tasks.nats import NATSTasks

    async with reached(settings.store, token=os.environ.get(TOKEN)) as transport:
        if not isinstance(transport, NATSTransport):
            raise CallError("VALIDATION_ERROR", f"Tasks cannot be kept at {settings.store}: name a file, or nats://…")
        yield Tasks(registry, NATSTasks(transport), **task_terms(settings))


def first_results(settings: TaskSettings, *, in_file: bool) -> OnceStore:
    """Where first results are kept for idempotency keys: in a file beside the tasks, or in memory."""
    terms: dict[str, Any] = {} if settings.keep_results is None else {"keep": settings.keep_results}
    if not in_file or (settings.store is not None and "://" in settings.store):
        from enfold.idempotency.first_results import MemoryOnceStore

        return MemoryOnceStore(**terms)
    from enfold.idempotency.sqlite_results import SQLiteOnceStore

    path = settings.folder / (settings.store or DEFAULT_STORE)
    _make_folder(path.parent, str(path.parent))
    return SQLiteOnceStore(path.with_name(f"{path.stem}-first-results.db"), **terms)


def task_terms(settings: TaskSettings) -> dict[str, Any]:
    """The terms that tasks take, whatever keeps them."""
    terms = {name: value for name, value in settings.terms.items() if name != "fsync"}
    given = terms.pop("secret", None)
    if given is not None and len(given) < SHORTEST_SECRET:
        raise CallError("VALIDATION_ERROR", f"tasks.secret must have at least {SHORTEST_SECRET} characters")
    # One that is kept is made when the first handle is signed.
    return {**terms, "secret": given.encode() if given is not None else partial(_kept_secret, settings.path)}


def _kept_secret(store: Path) -> bytes:
    """The secret that lies beside a store, made by whoever needs it first; where it cannot be written, one for this run."""
    from tempfile import NamedTemporaryFile  # once for each store

    path = store.with_name(f"{store.stem}.secret")
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Whole from the first moment on, and readable by us alone: several processes may begin at once.
            with NamedTemporaryFile(dir=path.parent, prefix=".secret-") as made:
                made.write(os.urandom(32).hex().encode())
                made.flush()
                with suppress(FileExistsError):
                    os.link(made.name, path)
        return path.read_bytes()
    except OSError as error:
        told = f"{path} cannot be kept ({error.strerror}): handles of other servers' tasks end with this program"
        print(f"{told}. Give [tasks] secret", file=sys.stderr)
        return os.urandom(32)


def open_store(settings: TaskSettings) -> TaskStore:
    """The store that was named, or the default one; where that cannot be written, memory, which is told."""
    from enfold.tasks.sqlite import SQLiteTasks

    fsync = settings.terms.get("fsync", "full")
    if settings.store is not None:
        if "://" in settings.store:
            raise CallError(
                "VALIDATION_ERROR", f"Tasks cannot be kept at {settings.store} by this command: name a file"
            )
        path = settings.folder / settings.store
        _make_folder(path.parent, settings.store)
        return SQLiteTasks(path, fsync=fsync)
    path = settings.folder / DEFAULT_STORE
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        from enfold.tasks.memory import MemoryTasks

        told = f"{path} cannot be written ({error.strerror}): tasks are kept in memory, and end with this program"
        print(told, file=sys.stderr)
        return MemoryTasks()
    return SQLiteTasks(path, fsync=fsync)


def _make_folder(folder: Path, named: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"Tasks cannot be kept in {named}: {error.strerror}") from None
