"""One request to a server while it is open, and who waits for its result."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import msgspec

# A request that stays open for as long as its maker wants to be told of changes.
LISTEN: Final = "subscriptions/listen"


class CallListener(Protocol):
    """Who made a call: takes what the server sends while it works, and answers its questions."""

    @property
    def client(self) -> object | None:
        """The client that questions go to, the same object for all its calls; None where only the source answers."""

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Take in progress or a log message."""

    def stream_closed(self) -> None:
        """The server has closed the connection; its answer is fetched later."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of the server, or raise the ProtocolError it is to get."""


class OutgoingCall(msgspec.Struct, frozen=True, eq=False):
    """One request in flight; `headers` are further ones for HTTP."""

    id: int
    method: str
    params: dict[str, Any]
    listener: CallListener | None
    answer: asyncio.Future[dict[str, Any]]
    headers: dict[str, str] = {}
    begun: asyncio.Event | None = None  # set when the server confirms a subscription

    @property
    def can_ask(self) -> bool:
        """Whether a server may ask somebody something while it works on this call."""
        return self.listener is not None and self.method != LISTEN
