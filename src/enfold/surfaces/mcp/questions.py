"""Questions of ours that a client has not answered yet."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import UNSET

from enfold.mcp.json_rpc import ProtocolError, RequestId, RPCMessage, request

if TYPE_CHECKING:
    import asyncio

Send: TypeAlias = Callable[[dict[str, Any]], None]


class Questions:
    """Who waits for which answer."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[RequestId, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, send: Send, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result; a ProtocolError where the client refuses."""
        import asyncio

        request_id = f"enfold-{os.urandom(8).hex()}"
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiting
        try:
            send(request(request_id, method, params))
            return await waiting
        finally:
            self._waiting.pop(request_id, None)

    def take(self, message: RPCMessage) -> None:
        """The answer to one of them; what nobody waits for is ignored."""
        waiting = None if message.id is UNSET else self._waiting.get(message.id)
        if waiting is None or waiting.done():
            return
        if message.error is UNSET:
            waiting.set_result({} if message.result is UNSET else message.result)
        else:
            waiting.set_exception(ProtocolError(message.error.get("code", 0), str(message.error.get("message", ""))))
