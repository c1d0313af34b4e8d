"""A configuration file that is read again when it changes: what is right is applied, what is wrong is logged and ignored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from enfold.app.file import Config, parse_config, read_config
from enfold.app.reconciler import ConfiguredRegistry
from enfold.errors import CallError
from enfold.log import Log
from enfold.storage import FileVersion, file_version, make_private_folder, replace_file

log: Final = Log("enfold.app")

INTERVAL: Final = 0.25  # seconds between two looks at the file


class InForce:
    """The version of a configuration that several processes use, kept in a file for one of them that is started again.

    It starts with that version and not with the configuration itself, which may be wrong by then, or half written.
    """

    def __init__(self, place: Path) -> None:
        """`place` is a file of ours in a folder that nobody else can read: a configuration may hold secrets."""
        self._place = place

    def keep(self, config: Config) -> None:
        """Keep it; an OSError where that cannot be done. The folder may have been cleaned away, and is made anew."""
        make_private_folder(self._place.parent)
        replace_file(self._place, msgspec.msgpack.encode((config.text, config.version)))

    def over(self, first: Config, environ: Mapping[str, str]) -> Config:
        """The version that was kept; `first` where none was."""
        try:
            text, version = msgspec.msgpack.decode(self._place.read_bytes(), type=tuple[str, FileVersion])
        except OSError:
            return first
        return parse_config(first.path, environ, text, version)


@asynccontextmanager
async def reread(
    registry: ConfiguredRegistry, environ: Mapping[str, str], in_force: InForce | None = None
) -> AsyncIterator[Rereading]:
    """Apply changes of the file to a registry while the block runs; `in_force` keeps what was applied last."""
    rereading = Rereading(registry, environ, in_force)
    task = asyncio.get_running_loop().create_task(rereading.run())
    try:
        yield rereading
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Rereading:
    """Polls the file, and reads it when it has changed or when it is told to."""

    def __init__(
        self, registry: ConfiguredRegistry, environ: Mapping[str, str], in_force: InForce | None = None
    ) -> None:
        self._registry = registry
        self._environ = environ
        self._in_force = in_force
        self._path = registry.config.path
        self._seen = registry.config.version
        self._wanted = asyncio.Event()

    def now(self) -> None:
        """Read the file, whether it has changed or not."""
        self._wanted.set()

    async def run(self) -> None:
        seen = self._seen
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), INTERVAL)
            before, seen = seen, file_version(self._path)
            # One that is being written is read when it rests.
            if self._wanted.is_set() or (seen != self._seen and seen == before):
                self._wanted.clear()
                self._seen = seen
                try:
                    self._read()
                except Exception as error:  # noqa: BLE001  # whatever it is, the next change is read
                    log.error("%s could not be taken up", self._path, error=error)  # noqa: TRY400  # our log takes the exception

    def _read(self) -> None:
        before = self._registry.config
        try:
            found = read_config(self._path, self._environ)
        except CallError as error:
            log.warning("%s. The configuration before it stays in force", error.message)
            return
        difference = self._registry.apply(msgspec.structs.replace(found, logins=before.logins))
        log.info("%s was read again: %s", self._path, difference)
        self._keep(found)
        if difference.needs_restart:
            tables = ", ".join(difference.needs_restart)
            log.warning("Start the program anew: a change of %s is only taken up then", tables)

    def _keep(self, config: Config) -> None:
        if self._in_force is None:
            return
        try:
            self._in_force.keep(config)
        except OSError as error:
            log.warning("A process that is started again will read %s anew: %s", self._path, error)
