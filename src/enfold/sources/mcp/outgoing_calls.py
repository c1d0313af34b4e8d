"""The requests in flight at one server, who waits for each, and which client a message that names none is for. No I/O."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from enfold.mcp.json_rpc import fields_of
from enfold.sources.mcp.mcp_callers import MCPCaller

# A request that stays open for as long as its maker wants to be told of changes.
LISTEN: Final = "subscriptions/listen"
MAX_ABANDONED: Final = 1000  # calls that were abandoned and not answered; with more, no question is put to anybody


class OutgoingCall(msgspec.Struct, frozen=True, eq=False):
    """One request in flight; `headers` are further ones for HTTP."""

    id: int
    method: str
    params: dict[str, Any]
    caller: MCPCaller | None
    answer: asyncio.Future[dict[str, Any]]
    headers: dict[str, str] = {}
    begun: asyncio.Event | None = None  # set when the server confirms a subscription

    @property
    def can_ask(self) -> bool:
        """Whether a server may ask somebody something while it works on this call."""
        return self.caller is not None and self.method != LISTEN


class PossibleCallers:
    """The callers that a message of a server may be for when it names no call; the dispatcher asks it.

    An abandoned call counts until the server has answered it, and a task until its result has come: until then the
    server may still work on it, and ask for it.
    """

    def __init__(self) -> None:
        self._abandoned: dict[object, object | None] = {}  # the clients of abandoned calls, by their request's id
        self._tasks: dict[object, MCPCaller] = {}  # by the id that the server gave the task
        self._has_overflown = False

    def note_abandoned(self, call: OutgoingCall) -> None:
        """Note that a caller gave up a call which the server has not answered."""
        if len(self._abandoned) >= MAX_ABANDONED:
            self._has_overflown = True
        elif call.caller is not None:
            self._abandoned[call.id] = call.caller.client

    def note_answer(self, request_id: object, call: OutgoingCall | None, result: dict[str, Any]) -> None:
        """Note that the server answered a request, which may have begun or ended a task."""
        self._abandoned.pop(request_id, None)
        if call is None or call.caller is None:
            return
        task_id = fields_of(result.get("task")).get("taskId")
        if call.method in ("tasks/result", "tasks/cancel"):
            self._tasks.pop(call.params.get("taskId"), None)
        elif "task" in call.params and isinstance(task_id, str):
            if len(self._tasks) >= MAX_ABANDONED:
                self._has_overflown = True
            self._tasks[task_id] = call.caller

    def only_caller(self, calls: list[OutgoingCall]) -> MCPCaller | None:
        """The newest caller, if all calls that can have caused a message are of one client, or there is only one."""
        callers = self._callers(calls)
        if not callers or self._has_overflown:
            return None
        if callers[0].client is None:
            return callers[0] if len(set(callers)) == 1 and not self._abandoned else None
        clients = [*(caller.client for caller in callers), *self._abandoned.values()]
        return callers[-1] if all(client is clients[0] for client in clients) else None

    def are_all_unaskable(self, calls: list[OutgoingCall]) -> bool:
        """Whether no client at all can be meant, so that the source itself may answer."""
        callers = self._callers(calls)
        is_certain = (bool(callers) or not self._abandoned) and not self._has_overflown
        clients = [*(caller.client for caller in callers), *self._abandoned.values()]
        return is_certain and all(client is None for client in clients)

    def _callers(self, calls: list[OutgoingCall]) -> list[MCPCaller]:
        return [*self._tasks.values(), *(call.caller for call in calls if call.caller is not None)]
