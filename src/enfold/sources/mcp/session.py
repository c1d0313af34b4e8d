"""A session with a server, over whichever transport: requests and their answers, messages to their callers, questions.

It is opened, and its revision is agreed on, in `enfold.sources.mcp.pool`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

import enfold
from enfold.envelope import ResultWarning
from enfold.errors import CallError
from enfold.mcp.json_rpc import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    INTERNAL_ERROR,
    LOG_LEVEL_KEY,
    METHOD_NOT_FOUND,
    SUBSCRIPTION_KEY,
    VERSION_KEY,
    OutgoingMessage,
    ProtocolError,
    RequestId,
    RPCMessage,
    RPCNotification,
    RPCResponse,
    error_response,
    fields_of,
    parse,
    parse_batch,
)
from enfold.mcp.messages import (
    AboutTask,
    CallTool,
    Cancelled,
    Listen,
    LogMessage,
    Params,
    Progress,
    SetLevel,
    Subscribe,
    WantedNotifications,
    read_error,
    read_loosely,
)
from enfold.mcp.results import BegunTask, DiscoverResult, InitializeResult
from enfold.mcp.revisions import Revision, urgency_of
from enfold.observability.log import Log
from enfold.sources.decoders import Replacements, parse_numbers
from enfold.sources.mcp.callers import LISTEN, CallKey, MCPCaller, OutgoingCall, PossibleCallers, Turns
from enfold.sources.mcp.failures import LostError, closed_connection
from enfold.sources.options import MCPLimits
from enfold.sources.secrets import KnownSecrets

# Receives notifications that belong to no call: the method and its parameters.
Notice: TypeAlias = Callable[[str, dict[str, Any]], None]

log: Final = Log("enfold.mcp")

# Requests that are not cancelled by a notification: a server that does not know them might reject it.
_UNCANCELLED: Final = frozenset({"initialize", "server/discover"})

SETUP_SECONDS: Final = 2.0  # that a server may take to set its log level, or to confirm a subscription
TURN_SECONDS: Final = 30.0  # that other clients wait for a server to answer a call which was abandoned

_ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_EDGE: Final = 4096  # where the id of a message that cannot be read is looked for


class ServerConnection(Protocol):
    """What a transport offers."""

    has_call_streams: bool  # whether each call has its own stream, on which the server asks what belongs to it

    @property
    def is_open(self) -> bool:
        """Whether another request may be sent."""

    async def send_call(self, call: OutgoingCall) -> None:
        """Send a request, whose answer may come later; LostError if the connection is lost."""

    async def send(self, message: OutgoingMessage) -> None:
        """Send a message that has no answer."""

    def cancel(self, message: OutgoingMessage) -> None:
        """Send that a call was given up, without waiting, and before any later call."""

    async def close(self) -> None:
        """End the connection."""


class _Head(msgspec.Struct):
    """The id of a message, and nothing else of it."""

    id: RequestId = ""


class Session:
    """One session: the requests that wait for a server's answers, and the tasks that answer its questions."""

    connection: ServerConnection  # which the transport sets that is opened with this session

    def __init__(
        self, name: str, notice: Notice, source: MCPCaller, limits: MCPLimits, secrets: KnownSecrets | None = None
    ) -> None:
        """`source` answers the questions that belong to no call; `secrets` are hidden in all that the server sends."""
        self.name = name
        self.limits = limits
        self.redact = (secrets or KnownSecrets()).redact_bytes
        self.revision: Revision | None = None  # that requests name, once it is agreed on
        self.is_stateless = False  # whether the server sends no requests, because it puts its questions in results
        self.capabilities: dict[str, Any] = {}  # of the server
        self.instructions = ""  # how the server wants to be used
        self._takes_turns = False  # whether questions do not name the call they belong to
        self._log_level: str | None = None  # that was set at an older server
        self._notice = notice
        self._source = source
        self._ids = count(1)
        self._waiting: dict[RequestId, OutgoingCall] = {}
        self._turns = Turns()
        self._possible_callers = PossibleCallers(self._waiting, self._turns, limits.held)
        self._questions: dict[asyncio.Task[Any], object] = {}  # the tasks that answer, with the ids of the requests
        self._tasks: set[asyncio.Task[Any]] = set()
        self._followed: dict[str, asyncio.Task[Any]] = {}  # the subscriptions of a stateless server, by their URIs
        self._warned: set[str] = set()
        self.on_loss: Callable[[str], None] = lambda _: None  # called with the reason when the connection is lost

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    def speak(self, revision: Revision | None) -> None:
        """Name this revision in requests; None before the handshake of the older ones."""
        self.revision = revision
        self.is_stateless = revision is not None and revision.is_stateless

    def agree(self, revision: Revision, answer: InitializeResult | DiscoverResult) -> None:
        """Speak the agreed revision; `answer` is what the server said of itself when it was first asked."""
        self.speak(revision)
        self.capabilities, self.instructions = answer.capabilities, answer.instructions or ""
        self._takes_turns = not revision.is_stateless and not self.connection.has_call_streams

    # --- requests

    async def request(
        self,
        method: str,
        params: Params,
        caller: MCPCaller | None = None,
        *,
        meta: Mapping[str, Any] = {},
        capabilities: Mapping[str, Any] = {},
        headers: dict[str, str] | None = None,
        begun: asyncio.Event | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result; ProtocolError if the server refuses it, LostError if the connection is lost.

        `meta` is passed on; `capabilities` are what the server may ask, in a revision in which each request says so.
        Where its caller listens, the server is asked for progress and log messages. Where questions do not name their
        call, only one client that can be asked has calls open at a time.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        request_id = next(self._ids)
        if self.is_stateless:
            meta = {**meta, **self._stateless_meta(capabilities, caller)}
        if caller is not None and caller.is_heard:
            meta = {**meta, "progressToken": request_id}
        if meta:
            params = msgspec.structs.replace(params, meta=meta)
        call = OutgoingCall(request_id, method, params, caller, answer, headers or {}, begun)
        if self._takes_turns and caller is not None and not method.startswith("tasks/"):
            client, key = caller.client if caller.can_be_asked else None, ("call", request_id)
            if not self._turns.take(client, key):
                await self._turns.wait(client, key)
        self._waiting[request_id] = call
        try:
            await self.connection.send_call(call)
            return await answer
        except (CallError, ProtocolError):
            self.withdraw(call)  # the server has refused it, perhaps without an answer
            raise
        except asyncio.CancelledError:
            if request_id in self._waiting and method not in _UNCANCELLED:
                cancelled = Cancelled(request_id, "The caller disconnected")
                self.connection.cancel(RPCNotification("notifications/cancelled", cancelled))
            raise
        finally:
            self._close(call)

    def _stateless_meta(self, capabilities: Mapping[str, Any], caller: MCPCaller | None) -> dict[str, Any]:
        """What each request says of us, in a revision without a handshake."""
        version = None if self.revision is None else self.revision.name
        own = {VERSION_KEY: version, CAPABILITIES_KEY: dict(capabilities), CLIENT_KEY: client_info()}
        if caller is not None and caller.log_level is not None:
            own[LOG_LEVEL_KEY] = caller.log_level
        return own

    def _close(self, call: OutgoingCall) -> None:
        """Forget a call that has ended or was abandoned; a late answer is dropped."""
        is_open = self._waiting.pop(call.id, None) is not None
        if call.answer.done() and not call.answer.cancelled():
            call.answer.exception()  # retrieved, so that the loop does not complain of it
        elif is_open and call.can_ask:
            self._possible_callers.note_abandoned(call)
            asyncio.get_running_loop().call_later(TURN_SECONDS, self._turns.release, ("call", call.id))
            return
        self._turns.release(("call", call.id))

    def withdraw(self, call: OutgoingCall) -> None:
        """Forget a call that the server has never seen, or has refused without an answer."""
        self._waiting.pop(call.id, None)

    def fail_all(self, error: CallError, *, output: str = "") -> None:
        """Fail every waiting call: the connection is lost."""
        for call in list(self._waiting.values()):
            if not call.answer.done():
                call.answer.set_exception(LostError(error, may_have_run=True, output=output))
        self.close_turns(error)
        self.on_loss(error.message)

    def close_turns(self, error: CallError) -> None:
        """Send the calls that wait for their turn back to their callers, who may take another connection."""
        self._turns.close(LostError(error, may_have_run=False))

    async def close(self) -> None:
        self.close_turns(closed_connection(self.name))
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connection.close()

    # --- log level and subscriptions

    async def set_log_level(self, level: str) -> None:
        """Set the log level of an older server; in the newest revision each request names it."""
        is_enough = self._log_level is not None and urgency_of(self._log_level) <= urgency_of(level)
        if self.is_stateless or "logging" not in self.capabilities or is_enough:
            return
        self._log_level = level
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                await self.request("logging/setLevel", SetLevel(level))
        except (TimeoutError, ProtocolError, CallError, LostError) as error:
            log.debug("%s did not change its log level: %s", self.name, error)

    async def listen(self) -> None:
        """Subscribe to changes of the server's lists."""
        if self.is_stateless:
            self.spawn(self._keep_listening(WantedNotifications.of(self.capabilities)))
            return
        open_stream = getattr(self.connection, "listen", None)
        if open_stream is not None:
            await open_stream()

    async def follow(self, uri: str) -> None:
        """Subscribe to changes of a resource."""
        if not self.is_stateless:
            await self.request("resources/subscribe", Subscribe(uri))
            return
        begun = asyncio.Event()
        wanted = WantedNotifications.of((), [uri])
        self._followed[uri] = self.spawn(self._keep_listening(wanted, begun))
        with suppress(TimeoutError):  # a server that does not confirm may still have begun
            async with asyncio.timeout(SETUP_SECONDS):
                await begun.wait()

    async def unfollow(self, uri: str) -> None:
        if not self.is_stateless:
            await self.request("resources/unsubscribe", Subscribe(uri))
            return
        following = self._followed.pop(uri, None)
        if following is not None:
            following.cancel()
            await asyncio.wait({following})

    async def _keep_listening(self, wanted: WantedNotifications, begun: asyncio.Event | None = None) -> None:
        wait = 1.0
        while self.is_open:
            try:
                await self.request(LISTEN, Listen(wanted), begun=begun)
            except (ProtocolError, CallError) as error:
                log.debug("%s does not report changes: %s", self.name, error)
                break
            except LostError:
                wait = min(wait * 2, 60.0)
            await asyncio.sleep(wait)
        if begun is not None:
            begun.set()  # release the waiter

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

    # --- messages

    def take_text(self, text: bytes, call: OutgoingCall | None = None) -> None:
        """Handle one text of the server, on the stream of `call`; what is not a message is skipped with a warning."""
        text = self.redact(text.strip())
        if not text or (len(text) > self.limits.list_bytes and self._refuse_list(text)):
            return
        try:
            messages = parse_batch(text) if text.startswith(b"[") else [parse(text)]
        except ProtocolError as error:
            repaired = repair_message(text)
            if repaired is None:
                self._take_junk(text, error)
                return
            messages = [repaired]
        for message in messages:
            if message.method is UNSET:
                self._take_answer(message)
            elif message.id is UNSET:
                self._take_notification(message.method, message.params, call)
            else:
                self._take_question(message, call)

    def _refuse_list(self, text: bytes) -> bool:
        """Whether a text is the page of a list that is too large to be read at all; who waits for it learns of it."""
        try:
            call = self._waiting.get(msgspec.json.decode(text, type=_Head).id)
        except msgspec.DecodeError:
            return False
        if call is None or not call.method.endswith("/list"):
            return False
        limit = self.limits.list_bytes
        self._refuse(call.id, CallError("PAYLOAD_TOO_LARGE", f"The list exceeds the limit of {limit} bytes"))
        return True

    def _take_answer(self, message: RPCMessage) -> None:
        result = {} if message.result is UNSET or message.error is not UNSET else message.result
        call = self._waiting.get(message.id)  # type: ignore[arg-type]  # a message without a method has an id
        if call is None:  # an abandoned one; of a call that is waited for, `_close` ends the turn
            self._possible_callers.note_answer(message.id)
            self._turns.release(("call", message.id))
            return
        if isinstance(call.params, CallTool) and call.params.task is not None:
            self._note_begun_task(call, result)
        elif isinstance(call.params, AboutTask) and call.method in ("tasks/result", "tasks/cancel"):
            self._note_task_end(call.params.task_id)
        if call.answer.done():
            return
        if message.error is not UNSET:
            call.answer.set_exception(read_error(message.error))
        elif self.is_stateless and (fault := _fault_of_kind(call.method, result)) is not None:
            call.answer.set_exception(fault)
        else:
            call.answer.set_result(result)

    def _note_begun_task(self, call: OutgoingCall, result: dict[str, Any]) -> None:
        """Note the task of the revision 2025-11-25 that a call has begun, and that can ask something from now on."""
        begun = read_loosely(result, BegunTask)
        if begun is not None and call.caller is not None:
            self._possible_callers.note_task(begun.task.task_id, call.caller)
            self._turns.pass_on(("call", call.id), ("task", begun.task.task_id))

    def _note_task_end(self, task_id: str) -> None:
        self._possible_callers.note_task_end(task_id)
        self._turns.release(("task", task_id))

    def _take_notification(self, method: str, params: dict[str, Any], call: OutgoingCall | None) -> None:
        if method == "notifications/progress":
            progress = read_loosely(params, Progress)
            caller = None if progress is None else self._caller_in_progress(progress, call)
            if caller is not None and progress is not None:
                caller.notify(progress)
        elif method == "notifications/message":
            caller = self._possible_callers.only_caller() if call is None else call.caller
            if caller is not None:
                caller.notify(read_loosely(params, LogMessage) or LogMessage())
            if call is None and not self._possible_callers.keys():
                self._notice(method, params)
        elif method == "notifications/subscriptions/acknowledged":
            request_id = fields_of(params.get("_meta")).get(SUBSCRIPTION_KEY)
            begun = self._waiting.get(request_id) if isinstance(request_id, int | str) else None
            if begun is not None and begun.begun is not None:
                begun.begun.set()
        elif method == "notifications/cancelled":
            cancelled = read_loosely(params, Cancelled)
            for task in [
                each for each, asked in self._questions.items() if cancelled and asked == cancelled.request_id
            ]:
                task.cancel()
        else:
            self._notice(method, params)

    def _caller_in_progress(self, progress: Progress, stream_of: OutgoingCall | None) -> MCPCaller | None:
        """The caller of the call that has been given this progress token; on a call's own stream only its own."""
        call = self._waiting.get(progress.progress_token)
        has_token = call is not None and "progressToken" in (call.params.meta or ())
        return call.caller if call is not None and has_token and stream_of in (None, call) else None

    # --- questions

    def _take_question(self, message: RPCMessage, call: OutgoingCall | None) -> None:
        count, limit = len(self._questions), self.limits.open_requests
        if count >= 2 * limit:
            self.warn_once("requests", "has too many requests open at once; further ones are not answered")
            return
        among = self._possible_callers.keys()
        task = self.spawn(self._reply(message, call, among, is_full=count >= limit))
        self._questions[task] = message.id
        task.add_done_callback(lambda task: self._questions.pop(task, None))

    async def _reply(
        self, message: RPCMessage, call: OutgoingCall | None, among: frozenset[CallKey], *, is_full: bool
    ) -> None:
        try:
            if is_full:
                raise ProtocolError(INTERNAL_ERROR, "Too many requests are open", {"code": "RESOURCE_EXHAUSTED"})  # noqa: TRY301  # told below like the others
            answer = {} if message.method == "ping" else await self._answer(message, call, among)
            reply: OutgoingMessage = RPCResponse(message.request_id, answer)
        except ProtocolError as error:
            reply = error_response(message.request_id, error)
        except CallError as error:
            reply = error_response(message.request_id, ProtocolError(INTERNAL_ERROR, error.message))
        await self.connection.send(reply)

    async def _answer(
        self, message: RPCMessage, call: OutgoingCall | None, among: frozenset[CallKey]
    ) -> dict[str, Any]:
        if self.is_stateless:
            raise ProtocolError(
                METHOD_NOT_FOUND,
                "The negotiated revision does not allow server requests: return the questions in the result",
            )
        if call is None:
            caller = await self._possible_callers.caller_asked(self._source, among)
        else:
            caller = call.caller or self._source
        if caller is None:
            self.warn_once("caller", "asked a question while calls of several clients were open; it was refused")
            raise ProtocolError(INTERNAL_ERROR, "Cannot tell which caller is asked: calls of several clients are open")
        if call is None and caller.can_be_asked:
            self._turns.note_asked()
        return await caller.ask(str(message.method), message.params)

    def warn_once(self, what: str, sentence: str) -> None:
        """Write to the log what a server does wrong, the first time."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s %s", self.name, sentence)

    # --- what cannot be read

    def _take_junk(self, text: bytes, error: ProtocolError) -> None:
        self.warn_once("junk", f"wrote a line that is not a message; it is ignored: {text[:200]!r}")
        failure = CallError("DATA_LOSS", f"{self.name} sent an invalid response: {error.message}")
        if error.request_id is not None:
            self._refuse(error.request_id, failure)
        elif text.startswith(b"{"):
            self.refuse_answer(text, failure)

    def refuse_answer(self, text: bytes, error: CallError) -> None:
        """End the call whose answer this text would have been, as far as it still tells its id."""
        found = _ID.search(text[:_EDGE]) or _ID.search(text[-_EDGE:])
        if found is not None:
            self._refuse(int(found[1]), error)

    def _refuse(self, request_id: RequestId, error: CallError) -> None:
        call = self._waiting.get(request_id)
        if call is not None and not call.answer.done():
            call.answer.set_exception(error)


def _fault_of_kind(method: str, result: dict[str, Any]) -> CallError | None:
    """The error for a result of an unknown kind, which would be taken for an empty one."""
    kind = result.get("resultType", "complete")
    if kind in ("complete", "input_required") or (kind == "task" and method == "tools/call"):
        return None
    message = f"The server answered {method} with a result of the kind {kind!r:.40}"
    return CallError("EXECUTION_ERROR", message, {"reason": "protocol"})


@cache
def client_info() -> dict[str, str]:
    """Who we are to servers."""
    return {"name": "enfold", "version": enfold.__version__}


# --- invalid JSON ---------------------------------------------------------------------------------------------------


class RepairedResult(dict[str, Any]):
    """A result in which something was replaced; `warnings` has one for each place, by its path in the result."""

    warnings: tuple[ResultWarning, ...] = ()


def repair_message(text: bytes) -> RPCMessage | None:
    """A message with `null` for numbers that JSON does not know and U+FFFD for halves of characters; None if it is no message."""
    replacements = Replacements()
    try:
        message = msgspec.convert(replacements.apply(parse_numbers(text.decode("utf-8", "replace")), ""), RPCMessage)
    except (ValueError, RecursionError):
        return None
    if message.result is msgspec.UNSET or not message.is_complete:
        return message if message.is_complete else None
    result = RepairedResult(message.result)
    result.warnings = replacements.warnings_below("/result")
    return msgspec.structs.replace(message, result=result)
