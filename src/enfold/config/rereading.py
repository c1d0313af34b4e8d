"""A configuration file that is read again when it changes: what is right is taken up, what is wrong is told and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from enfold.config.config_file import read_config
from enfold.config.opening import ConfiguredRegistry
from enfold.errors import CallError
from enfold.log import Log

__all__ = ["Rereading", "reread"]

log: Final = Log("enfold.config")

INTERVAL: Final = 0.25  # seconds between two looks at the file

Stamp: TypeAlias = tuple[int, int, int] | None


@asynccontextmanager
async def reread(registry: ConfiguredRegistry, environ: Mapping[str, str]) -> AsyncIterator[Rereading]:
    """Keep a registry as its file says, while the block runs."""
    rereading = Rereading(registry, environ)
    task = asyncio.get_running_loop().create_task(rereading.run())
    try:
        yield rereading
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Rereading:
    """Looks at the file from time to time, and when it is told to."""

    def __init__(self, registry: ConfiguredRegistry, environ: Mapping[str, str]) -> None:
        self._registry = registry
        self._environ = environ
        self._path = registry.config.path
        self._taken = _stamp(self._path)
        self._wanted = asyncio.Event()

    def now(self) -> None:
        """Read the file, whether it has changed or not."""
        self._wanted.set()

    async def run(self) -> None:
        seen = self._taken
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), INTERVAL)
            before, seen = seen, _stamp(self._path)
            # One that is being written is read when it rests.
            if self._wanted.is_set() or (seen != self._taken and seen == before):
                self._wanted.clear()
                self._taken = seen
                self._read()

    def _read(self) -> None:
        before = self._registry.config
        try:
            found = read_config(self._path, self._environ)
        except CallError as error:
            log.warning("%s. The configuration before it stays in force", error.message)
            return
        difference = self._registry.take(msgspec.structs.replace(found, logins=before.logins))
        log.warning("%s was read again: %s", self._path, difference)
        if difference.untaken:
            log.warning("Start the program anew: a change of %s is only taken up then", ", ".join(difference.untaken))


def _stamp(path: str) -> Stamp:
    """What differs between two versions of a file, such as its time; None where the file is not there."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
