"""The requests in flight at one server, whose turn it is, and which caller a message that names no call is for. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec

from enfold.mcp.json_rpc import fields_of
from enfold.sources.mcp.mcp_callers import MCPCaller

# A request that stays open for as long as its maker wants to be told of changes.
LISTEN: Final = "subscriptions/listen"
MAX_ABANDONED: Final = 1000  # calls that were abandoned and not answered; with more, no question is put to anybody
PATIENCE: Final = 3.0  # seconds that a question, or a call, waits for others to end

CallKey: TypeAlias = tuple[str, object]  # ("call", request id) or ("task", task id)


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
    """The callers that a message of a server may be for when it names no call.

    An abandoned call counts until the server has answered it, and a task until its result has come: until then the
    server may still work on it, and ask for it. A server that never answers is waited for `held` seconds.
    """

    def __init__(self, held: float) -> None:
        self._held = held
        self._abandoned: dict[object, _Abandoned] = {}  # by the ids of their requests
        self._tasks: dict[object, MCPCaller] = {}  # by the id that the server gave the task
        self._has_overflown = False
        self._ended = asyncio.Event()

    def note_abandoned(self, call: OutgoingCall) -> None:
        """Note that a caller gave up a call which the server has not answered."""
        if len(self._abandoned) >= MAX_ABANDONED:
            self._has_overflown = True
        elif call.caller is not None:
            self._abandoned[call.id] = _Abandoned(call.caller.client, call.caller.can_be_asked)
            asyncio.get_running_loop().call_later(self._held, self._abandoned.pop, call.id, None)

    def note_answer(self, request_id: object, call: OutgoingCall | None, result: dict[str, Any]) -> None:
        """Note that the server answered a request, which may have begun or ended a task."""
        self._abandoned.pop(request_id, None)
        if call is not None and call.caller is not None:
            task_id = begun_task(call, result)
            if call.method in ("tasks/result", "tasks/cancel"):
                self._tasks.pop(call.params.get("taskId"), None)
            elif task_id is not None:
                if len(self._tasks) >= MAX_ABANDONED:
                    self._has_overflown = True
                self._tasks[task_id] = call.caller

    def note_end(self) -> None:
        """Let those look again who wait for a call to end."""
        self._ended.set()
        self._ended.clear()

    async def call_ended(self) -> None:
        """Wait until a call has ended."""
        await self._ended.wait()

    def keys(self, calls: Iterable[OutgoingCall]) -> frozenset[CallKey]:
        """The calls and tasks that can have caused a message which comes now."""
        requests = {("call", request_id) for request_id in (*self._abandoned, *(call.id for call in calls))}
        return frozenset(requests | {("task", task_id) for task_id in self._tasks})

    def only_caller(self, calls: Iterable[OutgoingCall], among: frozenset[CallKey]) -> MCPCaller | None:
        """The newest caller, if all that can have caused a message are of one client, or there is only one."""
        callers, abandoned = self._callers(calls, among), self._abandoned_calls(among)
        if not callers or self._has_overflown:
            return None
        if callers[0].client is None:
            return callers[0] if len(set(callers)) == 1 and not abandoned else None
        clients = [*(caller.client for caller in callers), *(each.client for each in abandoned)]
        return callers[-1] if all(client is clients[0] for client in clients) else None

    def are_all_unaskable(self, calls: Iterable[OutgoingCall], among: frozenset[CallKey]) -> bool:
        """Whether no client at all can be meant, so that the source itself may answer."""
        if self._has_overflown or any(caller.can_be_asked for caller in self._callers(calls, among)):
            return False
        return not any(each.can_be_asked for each in self._abandoned_calls(among))

    def _callers(self, calls: Iterable[OutgoingCall], among: frozenset[CallKey]) -> list[MCPCaller]:
        in_tasks = [caller for task_id, caller in self._tasks.items() if ("task", task_id) in among]
        return [*in_tasks, *(call.caller for call in calls if call.caller is not None and ("call", call.id) in among)]

    def _abandoned_calls(self, among: frozenset[CallKey]) -> list[_Abandoned]:
        return [each for request_id, each in self._abandoned.items() if ("call", request_id) in among]


class _Abandoned(msgspec.Struct, frozen=True):
    """Whose call was abandoned."""

    client: object | None
    can_be_asked: bool


def begun_task(call: OutgoingCall, result: dict[str, Any]) -> str | None:
    """The id of the task that a call of the revision 2025-11-25 has begun, if it has."""
    task_id = fields_of(result.get("task")).get("taskId")
    return task_id if "task" in call.params and isinstance(task_id, str) else None


class Turns:
    """Keeps the calls of different clients apart, so that it is known who a question is for.

    The calls of a client that can be asked wait, however long, until those of other such clients have ended. Callers
    that cannot be asked (the client is None) are let through together; they and the others wait for each other for
    `PATIENCE` seconds only, and not at all for a call whose client is being asked. Turns come in the order of the calls,
    and those of one client run side by side unless another waits.
    """

    def __init__(self) -> None:
        self._client: object | None = None  # whose turn it is
        self._held: set[CallKey] = set()  # the calls and tasks of that client
        self._is_asked = False  # that client, at this moment or before in its turn
        self._waiting: deque[_Waiting] = deque()

    async def take(self, client: object | None, key: CallKey) -> None:
        """Wait for a turn, which `release` ends; what `close` is given is raised where the connection is lost first."""
        if not self._waiting and (not self._held or client is self._client):
            self._begin(client, key)
            return
        if client is None and self._is_asked:
            return
        loop = asyncio.get_running_loop()
        waiting = _Waiting(client, key, loop.create_future())
        self._waiting.append(waiting)
        patience = loop.call_later(PATIENCE, self._lose_patience, waiting)
        try:
            await waiting.turn
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self.release(key)  # the turn may have come just before
            raise
        finally:
            patience.cancel()

    def note_asked(self) -> None:
        """Note that the client whose turn it is was asked something: its call may take as long as a person."""
        self._is_asked = True
        for waiting in [each for each in self._waiting if each.client is None]:
            self._let_through(waiting)

    def pass_on(self, key: CallKey, to: CallKey) -> None:
        """Let something else hold the turn of a call, such as the task that the call has begun."""
        if key in self._held:
            self._held.add(to)
            self._held.discard(key)

    def release(self, key: CallKey) -> None:
        """End the turn of a call; one that has none, or has ended, changes nothing."""
        self._held.discard(key)
        self._advance()

    def close(self, error: Exception) -> None:
        """Fail the calls that wait: the connection is gone."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.turn.done():
                waiting.turn.set_exception(error)

    def _begin(self, client: object | None, key: CallKey) -> None:
        if client is not self._client:
            self._client, self._is_asked = client, False
        self._held.add(key)

    def _advance(self) -> None:
        while self._waiting and (not self._held or self._waiting[0].client is self._client):
            waiting = self._waiting.popleft()
            if not waiting.turn.done():
                self._begin(waiting.client, waiting.key)
                waiting.turn.set_result(None)
        if self._waiting and self._client is None:
            asyncio.get_running_loop().call_later(PATIENCE, self._lose_patience, self._waiting[0])

    def _lose_patience(self, waiting: _Waiting) -> None:
        """End the waiting of one that cannot be asked, or for such."""
        if waiting not in self._waiting:
            return
        if waiting.client is None:
            self._let_through(waiting)
        elif self._client is None:
            self._held.clear()
            self._advance()

    def _let_through(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        if not waiting.turn.done():
            waiting.turn.set_result(None)


class _Waiting(msgspec.Struct, frozen=True, eq=False):
    """A call that waits for its turn."""

    client: object | None
    key: CallKey
    turn: asyncio.Future[None]
