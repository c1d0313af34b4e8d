"""Where the messages of one server go: answers to the calls that wait, questions and news to whom they concern."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.errors import CallError
from enfold.log import Log
from enfold.mcp.messages import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    SUBSCRIPTION_KEY,
    Message,
    ProtocolError,
    RequestId,
    error_message,
    parse,
    parse_batch,
    result_message,
)
from enfold.sources.mcp.failures import LostError, read_rpc_error

__all__ = ["LISTEN", "UNCANCELLED", "Call", "Inbox", "Listener", "Notice", "Send"]

Notice: TypeAlias = Callable[[str, dict[str, Any]], None]
Send: TypeAlias = Callable[[dict[str, Any]], Any]

log: Final = Log("enfold.mcp")

# These may not be given up by a message: a server that does not know them yet could take it amiss.
UNCANCELLED: Final = frozenset({"initialize", "server/discover"})

# A request that stays open for as long as its maker wants to be told of changes.
LISTEN: Final = "subscriptions/listen"

_ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_EDGE: Final = 4096  # where the id of a message that cannot be read is looked for


class Listener(Protocol):
    """Whoever made a call, as the server may speak to him while it works."""

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Take in progress, a log message, or that a subscription has begun."""

    def let_go(self) -> None:
        """The server has let go of the connection, and is come back to for its answer."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of the server, or raise the ProtocolError it is to get."""


class Call(msgspec.Struct, frozen=True, eq=False):
    """One request in flight; `headers` are further ones for HTTP."""

    id: int
    method: str
    params: dict[str, Any]
    listener: Listener | None
    answer: asyncio.Future[dict[str, Any]]
    headers: dict[str, str] = {}


class Inbox:
    """The calls that wait for a server's answers, and the tasks that answer its questions."""

    def __init__(self, name: str, notice: Notice, source: Listener) -> None:
        """`source` answers the questions that belong to no call."""
        self.name = name
        self._notice = notice
        self._source = source
        self._ids = count(1)
        self._waiting: dict[RequestId, Call] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_warned = False

    # --- calls

    def open(
        self, method: str, params: dict[str, Any], listener: Listener | None, headers: dict[str, str] | None = None
    ) -> Call:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        call = Call(next(self._ids), method, params, listener, answer, headers or {})
        self._waiting[call.id] = call
        return call

    def close(self, call: Call) -> None:
        """Nobody waits for this call any more; an answer that still comes is dropped."""
        self._waiting.pop(call.id, None)
        if call.answer.done() and not call.answer.cancelled():
            call.answer.exception()  # seen, though perhaps by nobody

    def fail_all(self, error: CallError, *, may_have_run: bool = True) -> None:
        """The connection is gone: everybody who waits learns of it."""
        for call in list(self._waiting.values()):
            if not call.answer.done():
                call.answer.set_exception(LostError(error, may_have_run=may_have_run))

    # --- tasks

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside the calls; it ends with the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("%s: %s", self.name, task.exception())

    async def cancel_tasks(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- messages

    def take_text(self, text: bytes, send: Send, call: Call | None = None) -> None:
        """Take in one text of the server; what is no message is passed over with a warning."""
        text = text.strip()
        if not text:
            return
        try:
            messages = parse_batch(text) if text.startswith(b"[") else [_parse(text)]
        except ProtocolError as error:
            self._take_junk(text, error)
            return
        for message in messages:
            self.take(message, send, call)

    def take(self, message: Message, send: Send, call: Call | None = None) -> None:
        """Take in one message; `call` is the one on whose own stream it came."""
        if message.is_request:
            self.spawn(self._reply(message, send, call or self._only_call()))
        elif message.is_notification:
            self._take_notification(str(message.method), message.params, call)
        else:
            self._take_answer(message)

    def _take_answer(self, message: Message) -> None:
        call = self._waiting.get(message.id)  # type: ignore[arg-type]  # a message without a method has an id
        if call is None or call.answer.done():
            return
        if message.error is not UNSET:
            call.answer.set_exception(read_rpc_error(message.error))
        else:
            call.answer.set_result({} if message.result is UNSET else message.result)

    def _take_notification(self, method: str, params: dict[str, Any], call: Call | None) -> None:
        if method == "notifications/progress":
            call = self._waiting_for(params.get("progressToken"))
        elif method == "notifications/message":
            call = call or self._only_call()
        elif method == "notifications/subscriptions/acknowledged":
            call = self._subscription(params)
        else:
            self._notice(method, params)
            return
        if call is not None and call.listener is not None:
            call.listener.hear(method, params)

    def _only_call(self) -> Call | None:
        """The one call that somebody listens to. Where there are several nobody can tell, and a guess could betray."""
        heard = [call for call in self._waiting.values() if call.listener is not None and call.method != LISTEN]
        return heard[0] if len(heard) == 1 else None

    def _subscription(self, params: dict[str, Any]) -> Call | None:
        meta = params.get("_meta")
        return self._waiting_for(meta.get(SUBSCRIPTION_KEY)) if isinstance(meta, dict) else None

    def _waiting_for(self, request_id: object) -> Call | None:
        """The call that a server names, in whatever way it does."""
        return self._waiting.get(request_id) if isinstance(request_id, int | str) else None

    async def _reply(self, message: Message, send: Send, call: Call | None) -> None:
        request_id: Any = message.id
        try:
            reply = result_message(request_id, await self._answer(str(message.method), message.params, call))
        except ProtocolError as error:
            reply = error_message(request_id, error)
        except CallError as error:
            reply = error_message(request_id, ProtocolError(INTERNAL_ERROR, error.message))
        sent = send(reply)
        if sent is not None:
            await sent

    async def _answer(self, method: str, params: dict[str, Any], call: Call | None) -> dict[str, Any]:
        if method == "ping":
            return {}
        listener = self._source if call is None or call.listener is None else call.listener
        return await listener.ask(method, params)

    # --- what cannot be read

    def _take_junk(self, text: bytes, error: ProtocolError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s wrote something that is no message, which is passed over: %r", self.name, text[:200])
        told = CallError("DATA_LOSS", f"{self.name} sent an answer that cannot be read: {error.message}")
        if error.request_id is not None:
            self._refuse(error.request_id, told)
        elif text.startswith(b"{"):
            self.refuse_answer(text, told)

    def refuse_answer(self, text: bytes, error: CallError) -> None:
        """End the call whose answer this text would have been, as far as it still tells its id."""
        found = _ID.search(text[:_EDGE]) or _ID.search(text[-_EDGE:])
        if found is not None:
            self._refuse(int(found[1]), error)

    def _refuse(self, request_id: RequestId, error: CallError) -> None:
        call = self._waiting.get(request_id)
        if call is not None and not call.answer.done():
            call.answer.set_exception(error)


def _parse(text: bytes) -> Message:
    try:
        return parse(text)
    except ProtocolError as error:
        if error.code != PARSE_ERROR:
            raise
        return _parse_loosely(text, error)


def _parse_loosely(text: bytes, refused: ProtocolError) -> Message:
    """Several servers write NaN and lone surrogates, which JSON does not know; the rest of such a result is good."""
    try:
        found = json.loads(text.decode("utf-8", "replace"), parse_constant=lambda _: None)
        return msgspec.convert(found, Message)
    except (ValueError, RecursionError):
        raise refused from None
