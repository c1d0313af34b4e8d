"""Reloads a configuration file when it changes. An invalid file is logged, and the previous configuration stays active."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from enfold.app.file import Config, parse_config, read_config
from enfold.app.reconciler import Reconciler
from enfold.errors import CallError
from enfold.observability.log import Log
from enfold.storage import FileVersion, file_version, make_private_folder, replace_file

log: Final = Log("enfold.app")

INTERVAL: Final = 0.25  # seconds between two checks of the file


class ActiveConfig:
    """The configuration that several processes share, kept in a file.

    A process that restarts uses it instead of the configuration file, which may be invalid or half written by then.
    """

    def __init__(self, place: Path) -> None:
        """`place` is a file in a folder that only this user can read: a configuration may contain secrets."""
        self._place = place

    def save(self, config: Config) -> None:
        """Save the configuration; raises an OSError. A folder that was removed is created again."""
        make_private_folder(self._place.parent)
        replace_file(self._place, msgspec.msgpack.encode((config.text, config.version)))

    def load(self, default: Config, environ: Mapping[str, str]) -> Config:
        """Load the last saved configuration, or return `default`."""
        try:
            text, version = msgspec.msgpack.decode(self._place.read_bytes(), type=tuple[str, FileVersion])
        except OSError:
            return default
        return parse_config(default.path, environ, text, version)


@asynccontextmanager
async def watch_config(
    reconciler: Reconciler, environ: Mapping[str, str], active: ActiveConfig | None = None
) -> AsyncIterator[ConfigWatcher]:
    """Apply changes of the file while the block runs; `active` saves the last applied configuration."""
    watcher = ConfigWatcher(reconciler, environ, active)
    task = asyncio.get_running_loop().create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class ConfigWatcher:
    """Polls the file, and reloads it when it has changed or when asked to."""

    def __init__(self, reconciler: Reconciler, environ: Mapping[str, str], active: ActiveConfig | None = None) -> None:
        self._reconciler = reconciler
        self._environ = environ
        self._active = active
        self._path = reconciler.config.path
        self._seen = reconciler.config.version
        self._requested = asyncio.Event()

    def reload(self) -> None:
        """Reload the file even if it has not changed."""
        self._requested.set()

    async def run(self) -> None:
        seen = self._seen
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):  # unlike `wait_for` of 3.11, it never loses a cancellation
                    await self._requested.wait()
            before, seen = seen, file_version(self._path)
            # Wait until the file has not changed for one interval: it may still be being written.
            if self._requested.is_set() or (seen != self._seen and seen == before):
                self._requested.clear()
                self._seen = seen
                try:
                    self._reload()
                except Exception as error:  # noqa: BLE001  # the next change is read all the same
                    log.error("%s could not be applied", self._path, error=error)  # noqa: TRY400  # our log takes the exception

    def _reload(self) -> None:
        try:
            found = read_config(self._path, self._environ)
        except CallError as error:
            log.warning("%s. The previous configuration stays active", error.message)
            return
        logins = self._reconciler.config.logins
        difference = self._reconciler.apply(msgspec.structs.replace(found, logins=logins))
        log.info("%s was reloaded: %s", self._path, difference)
        if self._active is not None:
            try:
                self._active.save(found)
            except OSError as error:
                log.warning(
                    "A worker process that restarts will read %s itself, because it could not be saved: %s",
                    self._path,
                    error,
                )
        if difference.needs_restart:
            log.warning("Restart the program to apply changes of %s", ", ".join(difference.needs_restart))
