"""Whose call a server speaks of when it names none: decided only where no other client can be meant. No I/O."""

from __future__ import annotations

from typing import Any, Final

from enfold.mcp.json_rpc import fields_of
from enfold.sources.mcp.outgoing_call import CallListener, OutgoingCall

MAX_LEFT: Final = 1000  # calls given up and not answered; with more, no question is put to anybody


class Askers:
    """The clients that a server's message may be about when it names no call; `inbox` asks it whom to put a question to.

    A call that was given up counts until the server has answered it, and so does a task until its result has come:
    until then the server may still work on it, and ask for it.
    """

    def __init__(self) -> None:
        self._left: dict[object, object | None] = {}  # the clients of calls given up, by their request's id
        self._tasks: dict[object, CallListener] = {}  # by the id that the server gave the task
        self._has_overflown = False

    def given_up(self, call: OutgoingCall) -> None:
        """Note that a caller gave up a call which the server has not answered."""
        if len(self._left) >= MAX_LEFT:
            self._has_overflown = True
        elif call.listener is not None:
            self._left[call.id] = call.listener.client

    def answered(self, request_id: object, call: OutgoingCall | None, result: dict[str, Any]) -> None:
        """Note that the server answered a request, which may have begun or ended a task."""
        self._left.pop(request_id, None)
        if call is None or call.listener is None:
            return
        task_id = fields_of(result.get("task")).get("taskId")
        if call.method in ("tasks/result", "tasks/cancel"):
            self._tasks.pop(call.params.get("taskId"), None)
        elif "task" in call.params and isinstance(task_id, str):
            if len(self._tasks) >= MAX_LEFT:
                self._has_overflown = True
            self._tasks[task_id] = call.listener

    def only(self, calls: list[OutgoingCall]) -> CallListener | None:
        """The newest listener, if all calls that can have caused a message are of one client, or there is only one."""
        listeners = self._listeners(calls)
        if not listeners or self._has_overflown:
            return None
        if listeners[0].client is None:
            return listeners[0] if len(set(listeners)) == 1 and not self._left else None
        clients = [*(listener.client for listener in listeners), *self._left.values()]
        return listeners[-1] if all(client is clients[0] for client in clients) else None

    def are_all_unaskable(self, calls: list[OutgoingCall]) -> bool:
        """Whether no client at all can be meant, so that the source itself may answer."""
        listeners = self._listeners(calls)
        is_open = bool(listeners) or not self._left  # a call that was given up is not answered for
        return (
            is_open
            and not self._has_overflown
            and all(client is None for client in (*(listener.client for listener in listeners), *self._left.values()))
        )

    def _listeners(self, calls: list[OutgoingCall]) -> list[CallListener]:
        return [*self._tasks.values(), *(call.listener for call in calls if call.listener is not None)]
