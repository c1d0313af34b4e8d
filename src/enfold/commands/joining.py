"""Peers that are joined beside serving: whoever is started while their server is away serves the rest until it is back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from enfold.calls.protocol.outage import address_name
from enfold.calls.transports.addresses import reached
from enfold.commands.targets import TOKEN
from enfold.errors import CallError
from enfold.log import Log
from enfold.registry import OperationRegistry
from enfold.sources.calls import from_calls

PATIENCE: Final = 0.5  # seconds that serving waits for peers which are there
PAUSE: Final = 0.5  # seconds between two tries

_log: Final = Log("enfold.calls")


@asynccontextmanager
async def joining_peers(
    registry: OperationRegistry, address: str, *, insecure: bool = False
) -> AsyncIterator[OperationRegistry]:
    """A registry that has the operations of running peers as soon as their server can be reached; until then it is not ready."""
    registry.sources.enter(address_name(address), "calls", required=True)
    joining = _Joining(registry, address, insecure=insecure)
    task = asyncio.get_running_loop().create_task(joining.run())
    try:
        await joining.wait(PATIENCE)
        yield registry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Joining:
    """Tries until the peers are there; a connection that is lost later is made again by its transport."""

    def __init__(self, registry: OperationRegistry, address: str, *, insecure: bool) -> None:
        self._registry = registry
        self._address = address
        self._insecure = insecure
        self._name = address_name(address)
        self._joined = asyncio.Event()
        self._told = ""

    async def wait(self, patience: float) -> None:
        """Wait for the peers for so long; then say that they are away."""
        try:
            await asyncio.wait_for(self._joined.wait(), patience)
        except TimeoutError:
            self._tell_loss(f"{self._name} is not there: it is tried until it is", "it has not answered yet")

    async def run(self) -> None:
        while True:
            try:
                await self._join()
            except CallError as error:
                if error.code == "ACCESS_DENIED":  # it is there, and something else is wrong
                    self._tell_loss(error.message, error.message)
            await asyncio.sleep(PAUSE)

    async def _join(self) -> None:
        token = os.environ.get(TOKEN)
        async with (
            reached(self._address, token=token, insecure=self._insecure) as transport,
            from_calls(transport, name=self._name) as found,
        ):
            found.keep(self._registry)
            self._joined.set()
            if self._told:
                _log.warning("%s is back", self._name)
            await asyncio.get_running_loop().create_future()  # until we are cancelled

    def _tell_loss(self, line: str, why: str) -> None:
        if line != self._told and not self._joined.is_set():
            self._told = line
            _log.warning("%s", line)
            self._registry.sources.enter(self._name, "calls", "down", why=why)
