"""Calls whose client was asked something and has left: they go on when it comes back with the answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from enfold.errors import CallError
from enfold.mcp.json_rpc import INTERNAL_ERROR, ProtocolError
from enfold.operation.asking import InputRequired, Peer
from enfold.sources.mcp.recipients import PutQuestions, Recipient

HELD: Final = "enfold/held"


class Held:
    """The calls that run for callers who may leave and come back."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[str, _Running] = {}

    async def run(self, caller: Recipient, peer: Peer, start: Callable[[Recipient], Coroutine[Any, Any, Any]]) -> Any:
        """Run a call, or go on with the one that this caller left behind."""
        running = self._take(peer.memory.pop(HELD, None))
        if running is None:
            running = _Running(caller, asyncio.get_running_loop().create_task(start(caller)))
        running.caller.context = caller.context
        try:
            return await running.follow(peer)
        except InputRequired:
            peer.memory[HELD] = self._keep(running)
            raise
        except BaseException:
            running.task.cancel()
            raise

    def close(self) -> None:
        for key in list(self._calls):
            self._expire(key)

    def _keep(self, running: _Running) -> str:
        key = os.urandom(16).hex()
        running.expiry = asyncio.get_running_loop().call_later(self._seconds, self._expire, key)
        self._calls[key] = running
        return key

    def _take(self, key: object) -> _Running | None:
        running = self._calls.pop(key, None) if isinstance(key, str) else None
        if running is not None and running.expiry is not None:
            running.expiry.cancel()
        return running

    def _expire(self, key: str) -> None:
        running = self._take(key)
        if running is not None:
            running.task.cancel()


class _Running:
    """A call at a server, in a task of its own."""

    def __init__(self, caller: Recipient, task: asyncio.Task[Any]) -> None:
        self.caller = caller
        self.task = task
        self.expiry: asyncio.TimerHandle | None = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.caller.has_news.set()
        if not task.cancelled():
            task.exception()  # seen, though perhaps by nobody

    async def follow(self, peer: Peer) -> Any:
        """Wait for the result, and put the server's questions to the caller meanwhile."""
        caller = self.caller
        while True:
            caller.has_news.clear()
            while caller.pending:
                await self._put(caller.pending[0], peer)
            if self.task.done():
                return self.task.result()
            await caller.has_news.wait()

    async def _put(self, asked: PutQuestions, peer: Peer) -> None:
        """Put questions to the client; they stay pending if it leaves to come back with the answers."""
        try:
            answers = await peer.ask(asked.questions)
        except InputRequired:
            raise
        except CallError as error:
            if not asked.answers.done():
                asked.answers.set_exception(ProtocolError(INTERNAL_ERROR, error.message))
        else:
            if not asked.answers.done():
                asked.answers.set_result(answers)
        if asked in self.caller.pending:
            self.caller.pending.remove(asked)
