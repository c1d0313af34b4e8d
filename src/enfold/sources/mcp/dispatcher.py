"""Routes the messages of one server: answers to waiting calls, questions and progress to their callers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import ResultWarning
from enfold.errors import CallError
from enfold.mcp.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    SUBSCRIPTION_KEY,
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
from enfold.mcp.messages import AboutTask, CallTool, Cancelled, LogMessage, Params, Progress, read_error, read_loosely
from enfold.mcp.results import BegunTask
from enfold.mcp.revisions import Revision
from enfold.observability.log import Log
from enfold.operations.questions import MissingCapabilityError
from enfold.sources.decoders import Replacements, parse_numbers
from enfold.sources.mcp.callers import PATIENCE, CallKey, MCPCaller, OutgoingCall, PossibleCallers, Turns
from enfold.sources.options import MCPLimits
from enfold.sources.secrets import KnownSecrets

# Receives notifications that belong to no call: the method and its parameters.
Notice: TypeAlias = Callable[[str, dict[str, Any]], None]

log: Final = Log("enfold.mcp")

# Requests that are not cancelled by a notification: a server that does not know them might reject it.
_UNCANCELLED: Final = frozenset({"initialize", "server/discover"})

TURN_SECONDS: Final = 30.0  # that other clients wait for a server to answer a call which was abandoned

_ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_EDGE: Final = 4096  # where the id of a message that cannot be read is looked for


_UNKNOWN: Final = ("unknown tool", "unknown prompt", "unknown resource", "not found", "no such")  # words of an error


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
        """Send that a call was given up, without waiting."""

    async def close(self) -> None:
        """End the connection, and all that belongs to it."""


class _Head(msgspec.Struct):
    """The id of a message, and nothing else of it."""

    id: RequestId = ""


class Dispatcher:
    """The calls that wait for a server's answers, and the tasks that answer its questions."""

    connection: ServerConnection  # which the transport sets that is opened with this dispatcher

    def __init__(
        self, name: str, notice: Notice, source: MCPCaller, limits: MCPLimits, secrets: KnownSecrets | None = None
    ) -> None:
        """`source` answers the questions that belong to no call; `secrets` are hidden in all that the server sends."""
        self.name = name
        self.limits = limits
        self.redact = (secrets or KnownSecrets()).redact_bytes
        self.revision: Revision | None = None  # that requests name, once it is agreed on
        self.takes_turns = False  # whether questions do not name the call they belong to
        self._notice = notice
        self._source = source
        self._ids = count(1)
        self._waiting: dict[RequestId, OutgoingCall] = {}
        self._possible_callers = PossibleCallers(limits.held)
        self._turns = Turns()
        self._questions: dict[asyncio.Task[Any], object] = {}  # the tasks that answer, with the ids of the requests
        self._tasks: set[asyncio.Task[Any]] = set()
        self._warned: set[str] = set()
        self.on_loss: Callable[[str], None] = lambda _: None  # called with the reason when the connection is lost

    @property
    def is_stateless(self) -> bool:
        """Whether the server may send no requests, because it puts its questions in results."""
        return self.revision is not None and self.revision.is_stateless

    # --- calls

    async def call(
        self,
        method: str,
        params: Params,
        caller: MCPCaller | None = None,
        *,
        meta: Mapping[str, Any] = {},
        headers: dict[str, str] | None = None,
        begun: asyncio.Event | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result; ProtocolError if the server refuses it, LostError if the connection is lost.

        The server is asked for progress where the caller listens. Where questions do not name their call, only one client
        that can be asked has calls open at a time.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        request_id = next(self._ids)
        if caller is not None and caller.is_heard:
            meta = {**meta, "progressToken": request_id}
        if meta:
            params = msgspec.structs.replace(params, meta=meta)
        call = OutgoingCall(request_id, method, params, caller, answer, headers or {}, begun)
        if self.takes_turns and caller is not None and not method.startswith("tasks/"):
            client, key = caller.client if caller.can_be_asked else None, ("call", request_id)
            if not self._turns.take(client, key):
                await self._turns.wait(client, key)
        self._waiting[call.id] = call
        try:
            await self.connection.send_call(call)
            return await call.answer
        except (CallError, ProtocolError):
            self.withdraw(call)  # the server has refused it, perhaps without an answer
            raise
        except asyncio.CancelledError:
            if call.id in self._waiting and call.method not in _UNCANCELLED:
                cancelled = Cancelled(call.id, "The caller disconnected")
                self.connection.cancel(RPCNotification("notifications/cancelled", cancelled))
            raise
        finally:
            self._close(call)

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
            caller = self._only_caller() if call is None else call.caller
            if caller is not None:
                caller.notify(read_loosely(params, LogMessage) or LogMessage())
            if call is None and not self._possible_callers.keys(self._open_calls()):
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
        among = self._possible_callers.keys(self._open_calls())
        task = self.spawn(self._reply(message, call, among, is_full=count >= limit))
        self._questions[task] = message.id
        task.add_done_callback(lambda task: self._questions.pop(task, None))

    async def _caller_asked(self, call: OutgoingCall | None, among: frozenset[CallKey]) -> MCPCaller | None:
        """Who is to answer a question: the caller of the call on whose stream it came, or the only one it can be for.

        `among` are the calls that were open when it came. Those that end cannot have been meant: they are waited for.
        """
        if call is not None:
            return call.caller or self._source
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    caller = self._only_caller(among)
                    if caller is not None:
                        return caller
                    if self._possible_callers.are_all_unaskable(self._open_calls(), among):
                        return self._source
                    await self._turns.next_release()
        except TimeoutError:
            return None

    def _only_caller(self, among: frozenset[CallKey] | None = None) -> MCPCaller | None:
        """The caller for a message that names no call; None unless only one client's calls can have caused it."""
        calls = self._open_calls()
        return self._possible_callers.only_caller(calls, self._possible_callers.keys(calls) if among is None else among)

    def _open_calls(self) -> list[OutgoingCall]:
        return [call for call in self._waiting.values() if call.can_ask and not call.answer.done()]

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
        caller = await self._caller_asked(call, among)
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


# --- failures -------------------------------------------------------------------------------------------------------


class LostError(Exception):
    """The connection is lost; `may_have_run` says whether the server may have seen the request.

    `is_silent`: it was lost after the request was sent, and before anything of an answer came.
    `output` is what its process printed last: shown to the user who opens the source, never to callers.
    """

    def __init__(self, error: CallError, *, may_have_run: bool, is_silent: bool = False, output: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.may_have_run = may_have_run
        self.is_silent = is_silent
        self.output = output

    def for_caller(self, *, idempotent: bool) -> CallError:
        """The error for the caller: trying again is safe if nothing ran, or if running twice does no harm."""
        error = self.error
        return CallError(error.code, error.message, error.details, idempotent or not self.may_have_run)


def closed_connection(name: str) -> CallError:
    """The error of a call to a server whose source has been closed."""
    return CallError("UNAVAILABLE", f"The connection to {name} has been closed", retryable=False)


def message_too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The response exceeds the limit of {limit} bytes", {"limit": limit})


def _fault_of_kind(method: str, result: dict[str, Any]) -> CallError | None:
    """The error for a result of an unknown kind, which would be taken for an empty one."""
    kind = result.get("resultType", "complete")
    if kind in ("complete", "input_required") or (kind == "task" and method == "tools/call"):
        return None
    message = f"The server answered {method} with a result of the kind {kind!r:.40}"
    return CallError("EXECUTION_ERROR", message, {"reason": "protocol"})


def protocol_failure(error: ProtocolError) -> CallError:
    """The CallError that reports a protocol error of the upstream server; its own code stays in the details."""
    if error.code == MISSING_CAPABILITY:
        return MissingCapabilityError(_required(error.data))
    details: dict[str, Any] = {"rpc_code": error.code}
    if error.data is not UNSET and error.data is not None:
        details["data"] = error.data
    return CallError(_code(error), error.message, details)


def _code(error: ProtocolError) -> str:
    if error.code in (METHOD_NOT_FOUND, RESOURCE_NOT_FOUND):
        return "OPERATION_NOT_FOUND"
    if error.code == INVALID_PARAMS:
        # The protocol has one code for both; only the message tells them apart.
        is_unknown = any(words in error.message.lower() for words in _UNKNOWN)
        return "OPERATION_NOT_FOUND" if is_unknown else "VALIDATION_ERROR"
    return "EXECUTION_ERROR"


def _required(data: Any) -> tuple[str, ...]:
    """The path of the first capability that a server asks of its client."""
    found = fields_of(data).get("requiredCapabilities")
    path: list[str] = []
    while isinstance(found, Mapping) and found:
        name = next(iter(found))
        path.append(str(name))
        found = found[name]
    return tuple(path) or ("a capability",)


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
