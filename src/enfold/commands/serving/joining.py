"""Peers that are joined while a server runs already: one that is started while they are away serves the rest until they are back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from enfold.calls.protocol.outage import address_name
from enfold.commands.shared.targets import with_peers
from enfold.errors import CallError
from enfold.log import Log
from enfold.registry import OperationRegistry

PATIENCE: Final = 0.5  # seconds that serving waits for peers which are there
RETRY_INTERVAL: Final = 0.5  # seconds

_log: Final = Log("enfold.calls")


@asynccontextmanager
async def joining_peers(
    registry: OperationRegistry, address: str, *, insecure: bool = False, durable: bool = True
) -> AsyncIterator[OperationRegistry]:
    """A registry that has the operations of running peers as soon as their server can be reached; until then it is not ready."""
    registry.sources.enter(address_name(address), "calls", required=True)
    joining = _Joining(registry, address, insecure=insecure, durable=durable)
    task = asyncio.get_running_loop().create_task(joining.run())
    try:
        await joining.wait()
        yield registry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Joining:
    """Retries until the peers are there; a connection that is lost later is made again by its transport."""

    def __init__(self, registry: OperationRegistry, address: str, *, insecure: bool, durable: bool) -> None:
        self._registry = registry
        self._address = address
        self._how = {"insecure": insecure, "durable": durable}
        self._name = address_name(address)
        self._joined = asyncio.Event()
        self._logged = ""

    async def wait(self) -> None:
        """Wait a moment for the peers; then log that they are away."""
        try:
            await asyncio.wait_for(self._joined.wait(), PATIENCE)
        except TimeoutError:
            self._log_loss(f"{self._name} is not there: it is tried until it is", "it has not answered yet")

    async def run(self) -> None:
        while True:
            try:
                async with with_peers(self._registry, self._address, **self._how):
                    self._joined.set()
                    if self._logged:
                        _log.warning("%s is back", self._name)
                    await asyncio.get_running_loop().create_future()  # until we are cancelled
            except CallError as error:
                if error.code == "ACCESS_DENIED":  # it is there, and something else is wrong
                    self._log_loss(error.message, error.message)
            await asyncio.sleep(RETRY_INTERVAL)

    def _log_loss(self, line: str, why: str) -> None:
        if line != self._logged and not self._joined.is_set():
            self._logged = line
            _log.warning("%s", line)
            self._registry.sources.enter(self._name, "calls", "down", why=why)
