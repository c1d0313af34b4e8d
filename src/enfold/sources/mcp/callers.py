"""The callers of a server's operations and their calls in flight. No I/O.

Progress and log messages go to a caller's context; questions go to the caller, or to the source if the caller cannot
answer them. A client of a stateless surface receives the questions as its result and calls again with the answers; the
call to the server keeps running in a task meanwhile, so the server does its work only once.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.errors import CallError
from enfold.mcp.json_rpc import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ProtocolError,
    RequestId,
    encode,
    fields_of,
    passed_meta,
)
from enfold.mcp.messages import LogMessage, Params, Progress, read_loosely
from enfold.mcp.results import InputRequest
from enfold.operations import Context
from enfold.operations.outcomes import NeedsInput, Suspension
from enfold.operations.questions import ClientSession, MissingCapabilityError, Peer, Question, offers
from enfold.sources.mcp.settings import Answerers, Connection
from enfold.tasks.model import SERVER_TASK

SUSPENDED: Final = "enfold/suspended"  # where a client's memory of a call names the one that waits for its answers

_CAPABILITIES: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


# A request that stays open for as long as its sender wants notifications of changes.
LISTEN: Final = "subscriptions/listen"
MAX_ABANDONED: Final = 1000  # abandoned calls without an answer; with more, the server's questions are refused
PATIENCE: Final = 3.0  # seconds that a question, or a call, waits for others to end

Running: TypeAlias = Coroutine[Any, Any, dict[str, Any]]  # a call at a server
CallKey: TypeAlias = tuple[str, object]  # ("call", request id) or ("task", task id)


def capabilities_of(answers: Answerers) -> dict[str, Any]:
    """The capabilities of a source that answers these questions itself."""
    return {_CAPABILITIES[method]: {} for method in answers if method in _CAPABILITIES}


class _AskedQuestions(msgspec.Struct, frozen=True, eq=False):
    """Questions for the client, and where their answers are waited for."""

    questions: dict[str, Question]
    answers: asyncio.Future[dict[str, Any]]


class MCPCaller:
    """Who makes a call at a server: what the server may ask, and who receives its progress, log and questions."""

    def __init__(self, context: Context, terms: Connection) -> None:
        """`terms` are the answers of the source, its limits, and the log level that it asks for."""
        self._left_bytes = terms.limits.notice_bytes
        self._answers = terms.answers
        self._log_level = terms.log_level
        self._count = 0
        self._asked: list[_AskedQuestions] = []
        self.has_news = asyncio.Event()  # there is a question, or the call has ended
        self.attach(context)

    def attach(self, context: Context) -> None:
        """Read from the context who is there; a client that calls again with answers brings another one."""
        self.context = context
        self.peer = peer = context.invocation.client
        self.is_heard = context.is_heard
        task = context.invocation.task
        self.task = None if task is None or context.is_nested else task  # the durable task whose work this call does
        self.client: object | None = None
        self.session: ClientSession | None = None
        self.meta: dict[str, Any] = {}  # what of the client's own `_meta` is passed on
        self.can_be_asked = False  # whether a client answers at least one kind of question
        self.log_level = self._log_level if self.is_heard else None
        if peer is not None:
            self.client, self.session, self.meta = peer.client, peer.session, passed_meta(peer.meta)
            self.can_be_asked = not peer.capabilities.keys().isdisjoint(_CAPABILITIES.values())
            if self.is_heard:
                self.log_level = getattr(peer, "log_level", self._log_level)

    @property
    def server_task(self) -> str | None:
        """The server's task that an earlier attempt has begun: it is waited for, and nothing is called again."""
        return None if self.task is None else self.task.notes.get(SERVER_TASK)

    @property
    def leaves_task(self) -> bool:
        """Whether the server's task goes on although this attempt ends: a later one will wait for it."""
        return self.task is not None and self.task.is_left and SERVER_TASK in self.task.notes

    async def note_task(self, task_id: str) -> bool:
        """Note for later attempts which task of the server does the work; False while that cannot be stored."""
        if self.task is not None and self.task.notes.get(SERVER_TASK) != task_id:
            try:
                await self.task.note(SERVER_TASK, task_id)
            except CallError:
                return False
        return True

    def notify(self, told: Progress | LogMessage) -> None:
        if self._left_bytes < 0:
            return
        self._left_bytes -= len(encode(told))
        if self._left_bytes < 0:
            self.context.log("RESOURCE_EXHAUSTED: further messages of this call are dropped (notice_bytes)", "warning")
        elif isinstance(told, Progress):
            self.context.progress(told.progress, told.total, told.message)
        else:
            data = None if told.data is UNSET else told.data
            text, data = (data, None) if isinstance(data, str) else ("", data)
            self.context.log(text, told.level or "info", data)

    def stream_closed(self) -> None:
        if self.peer is not None:
            self.peer.close_stream()

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer one question that came on the open connection."""
        self._count += 1
        key = f"question-{self._count}"
        try:
            return (await self.ask_all({key: {"method": method, "params": params}}))[key]
        except MissingCapabilityError as error:
            raise ProtocolError(METHOD_NOT_FOUND, f"The caller cannot be asked: {error.message}") from None

    async def ask_all(self, requests: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The answers to several questions, by their keys."""
        questions = {key: _question(request) for key, request in requests.items()}
        peer = self.peer
        mine = {
            key: each
            for key, each in questions.items()
            if peer is None or not offers(peer.capabilities, each.capability)
        }
        theirs = {key: each for key, each in questions.items() if key not in mine}
        answers = {key: await self._answer(question) for key, question in mine.items()}
        return {**answers, **(await self._ask_peer(theirs))} if theirs else answers

    async def _answer(self, question: Question) -> dict[str, Any]:
        answer = self._answers.get(question.method)
        if answer is None:
            raise MissingCapabilityError(question.capability)
        return _with_defaults(question, await answer(question.params, self.context))

    async def _ask_peer(self, questions: dict[str, Question]) -> dict[str, dict[str, Any]]:
        asked = _AskedQuestions(questions, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        self.has_news.set()
        return await asked.answers

    def next_questions(self) -> _AskedQuestions | None:
        """The oldest questions that the client has not answered, and that the server has not withdrawn."""
        self._asked = [each for each in self._asked if not each.answers.done()]
        return self._asked[0] if self._asked else None

    def refuse_questions(self) -> None:
        """Refuse what has not been answered: the call was given up, and its client is not asked any more."""
        for asked in self._asked:
            if not asked.answers.done():
                asked.answers.set_exception(ProtocolError(INTERNAL_ERROR, "The caller disconnected"))


def _question(request: Any) -> Question:
    asked = read_loosely(request, InputRequest) or InputRequest()
    if asked.method not in _CAPABILITIES:
        raise ProtocolError(METHOD_NOT_FOUND, f"This client does not answer {asked.method}")
    is_url = asked.method == "elicitation/create" and asked.params.get("mode") == "url"
    return Question(asked.method, asked.params, ("elicitation", "url") if is_url else (_CAPABILITIES[asked.method],))


def _with_defaults(question: Question, answer: dict[str, Any]) -> dict[str, Any]:
    """An accepted form with the defaults of the fields that were left out."""
    if question.method != "elicitation/create" or answer.get("action") != "accept":
        return answer
    fields = fields_of(fields_of(question.params.get("requestedSchema")).get("properties"))
    filled = {name: field["default"] for name, field in fields.items() if "default" in fields_of(field)}
    content = {**filled, **(answer.get("content") or {})}
    return {**answer, "content": content} if content else answer


# --- calls that wait for answers ----------------------------------------------------------------------------------


class SuspendedCalls:
    """The calls whose clients were asked something, each under a key that its client keeps; after `seconds` they are cancelled."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[str, _RunningCall] = {}

    async def run(self, caller: MCPCaller, peer: Peer, start: Callable[[MCPCaller], Running]) -> dict[str, Any]:
        """Run a call, or resume the one that waits for the answers which this client brings."""
        call = self._pop(peer.memory.pop(SUSPENDED, None))
        if call is None:
            call = _RunningCall(caller, asyncio.get_running_loop().create_task(start(caller)))
        call.caller.attach(caller.context)
        try:
            result = await call.result(peer)
        except BaseException:
            call.task.cancel()
            raise
        if isinstance(result, NeedsInput):
            peer.memory[SUSPENDED] = self._suspend(call)
            raise Suspension(result)
        return result

    @property
    def unanswered(self) -> int:
        """The number of calls that still run at their server while they wait for their client to come back."""
        return sum(not call.task.done() for call in self._calls.values())

    def close(self) -> None:
        for key in list(self._calls):
            self._expire(key)

    def _suspend(self, call: _RunningCall) -> str:
        key = os.urandom(16).hex()
        call.expiry = asyncio.get_running_loop().call_later(self._seconds, self._expire, key)
        self._calls[key] = call
        return key

    def _pop(self, key: object) -> _RunningCall | None:
        call = self._calls.pop(key, None) if isinstance(key, str) else None
        if call is not None and call.expiry is not None:
            call.expiry.cancel()
        return call

    def _expire(self, key: str) -> None:
        call = self._pop(key)
        if call is not None:
            call.task.cancel()


class _RunningCall:
    """A call at a server, in its own asyncio task."""

    def __init__(self, caller: MCPCaller, task: asyncio.Task[dict[str, Any]]) -> None:
        self.caller = caller
        self.task = task
        self.expiry: asyncio.TimerHandle | None = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.caller.refuse_questions()
        self.caller.has_news.set()
        if not task.cancelled():
            task.exception()  # retrieved, so that the loop does not log it

    async def result(self, peer: Peer) -> dict[str, Any] | NeedsInput:
        """Wait for the result, and ask the client what the server asks meanwhile; NeedsInput where it has to call again."""
        caller = self.caller
        while True:
            caller.has_news.clear()
            while (asked := caller.next_questions()) is not None:
                needed = await _ask(asked, peer)
                if needed is not None:
                    return needed
            if self.task.done():
                return self.task.result()
            await caller.has_news.wait()


async def _ask(asked: _AskedQuestions, peer: Peer) -> NeedsInput | None:
    """Ask the client; NeedsInput where it is to call again with the answers, until when the questions stay."""
    try:
        answers = await peer.ask(asked.questions)
    except CallError as error:
        if not asked.answers.done():
            asked.answers.set_exception(ProtocolError(INTERNAL_ERROR, error.message))
    else:
        if isinstance(answers, NeedsInput):
            return answers
        if not asked.answers.done():
            asked.answers.set_result(answers)
    return None


# --- calls in flight ------------------------------------------------------------------------------------------------


class OutgoingCall(msgspec.Struct, frozen=True, eq=False):
    """One request in flight; `headers` are further ones for HTTP."""

    id: int
    method: str
    params: Params
    caller: MCPCaller | None
    answer: asyncio.Future[dict[str, Any]]
    headers: dict[str, str] = {}
    begun: asyncio.Event | None = None  # set when the server confirms a subscription

    @property
    def can_ask(self) -> bool:
        """Whether the server may ask a question while it works on this call."""
        return self.caller is not None and self.method != LISTEN


class PossibleCallers(msgspec.Struct, eq=False):
    """The callers that a message of a server may be meant for when it names no call.

    An abandoned call counts until the server has answered it, and a task until its result has come: until then the
    server may still work on it, and ask for it. A server that never answers is waited for `held` seconds.
    """

    _waiting: Mapping[RequestId, OutgoingCall]  # the calls that wait for their answers
    _turns: Turns
    _held: float
    _abandoned: dict[object, _Abandoned] = {}  # by the ids of their requests
    _tasks: dict[object, MCPCaller] = {}  # by the id that the server gave the task
    _has_overflown: bool = False

    def note_abandoned(self, call: OutgoingCall) -> None:
        """Note that a caller gave up a call which the server has not answered."""
        if len(self._abandoned) >= MAX_ABANDONED:
            self._has_overflown = True
        elif call.caller is not None:
            self._abandoned[call.id] = _Abandoned(call.caller.client, call.caller.can_be_asked)
            asyncio.get_running_loop().call_later(self._held, self._abandoned.pop, call.id, None)

    def note_answer(self, request_id: object) -> None:
        """Note that the server answered a request, which may have been abandoned."""
        self._abandoned.pop(request_id, None)

    def note_task(self, task_id: str, caller: MCPCaller) -> None:
        """Note that a call has begun a task."""
        if len(self._tasks) >= MAX_ABANDONED:
            self._has_overflown = True
        self._tasks[task_id] = caller

    def note_task_end(self, task_id: object) -> None:
        """Note that the result of a task has come, or that it was cancelled."""
        self._tasks.pop(task_id, None)

    def keys(self) -> frozenset[CallKey]:
        """The calls and tasks that can have caused a message which comes now."""
        requests = {
            ("call", request_id) for request_id in (*self._abandoned, *(call.id for call in self._open_calls()))
        }
        return frozenset(requests | {("task", task_id) for task_id in self._tasks})

    def only_caller(self, among: frozenset[CallKey] | None = None) -> MCPCaller | None:
        """The newest caller, if all that can have caused a message are of one client, or there is only one.

        `among` are the calls and tasks that were open when the message came, if that was not now.
        """
        among = self.keys() if among is None else among
        callers, abandoned = self._callers(among), self._abandoned_calls(among)
        if not callers or self._has_overflown:
            return None
        if callers[0].client is None:
            return callers[0] if len(set(callers)) == 1 and not abandoned else None
        clients = [*(caller.client for caller in callers), *(each.client for each in abandoned)]
        return callers[-1] if all(client is clients[0] for client in clients) else None

    async def caller_asked(self, source: MCPCaller, among: frozenset[CallKey]) -> MCPCaller | None:
        """Who is to answer a question: the only caller it can be for, or the source; None if there are several.

        `among` are the calls that were open when it came. Those that end cannot have been meant: they are waited for.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    caller = self.only_caller(among)
                    if caller is not None:
                        return caller
                    if self._are_all_unaskable(among):
                        return source
                    await self._turns.next_release()
        except TimeoutError:
            return None

    def _are_all_unaskable(self, among: frozenset[CallKey]) -> bool:
        """Whether no client at all can be meant, so that the source itself may answer."""
        if self._has_overflown or any(caller.can_be_asked for caller in self._callers(among)):
            return False
        return not any(each.can_be_asked for each in self._abandoned_calls(among))

    def _callers(self, among: frozenset[CallKey]) -> list[MCPCaller]:
        in_tasks = [caller for task_id, caller in self._tasks.items() if ("task", task_id) in among]
        calls = [call for call in self._open_calls() if ("call", call.id) in among]
        return [*in_tasks, *(call.caller for call in calls if call.caller is not None)]

    def _abandoned_calls(self, among: frozenset[CallKey]) -> list[_Abandoned]:
        return [each for request_id, each in self._abandoned.items() if ("call", request_id) in among]

    def _open_calls(self) -> list[OutgoingCall]:
        return [call for call in self._waiting.values() if call.can_ask and not call.answer.done()]


class _Abandoned(msgspec.Struct, frozen=True):
    """Whose call was abandoned."""

    client: object | None
    can_be_asked: bool


class Turns(msgspec.Struct, eq=False):
    """Keeps the calls of different clients apart, so that it is known who a question is for.

    The calls of a client that can be asked wait, however long, until those of other such clients have ended. Callers
    that cannot be asked (the client is None) are let through together; they and the others wait for each other for
    `PATIENCE` seconds only, and not at all for a call whose client is being asked. Turns come in the order of the calls,
    and those of one client run side by side unless another waits.
    """

    _client: object | None = None  # whose turn it is
    _held: set[CallKey] = set()  # the calls and tasks of that client
    _is_asked: bool = False  # that client, at this moment or before in its turn
    _waiting: deque[_Waiting] = msgspec.field(default_factory=deque)
    _released: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def take(self, client: object | None, key: CallKey, *, is_next: bool = False) -> bool:
        """Take a turn, which `release` ends; False where it has to be waited for. `is_next`: no other waits longer."""
        if (self._waiting and not is_next) or (self._held and client is not self._client):
            return False
        if client is not self._client:
            self._client, self._is_asked = client, False
        self._held.add(key)
        return True

    async def wait(self, client: object | None, key: CallKey) -> None:
        """Wait for a turn that cannot be taken; what `close` is given is raised where the connection is lost first."""
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
        self._released.set()
        self._released.clear()
        if self._waiting:
            self._advance()

    async def next_release(self) -> None:
        """Wait until a call has ended, whether or not it had a turn."""
        await self._released.wait()

    def close(self, error: Exception) -> None:
        """Fail the waiting calls: the connection is lost."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.turn.done():
                waiting.turn.set_exception(error)

    def _advance(self) -> None:
        while self._waiting and self.take(self._waiting[0].client, self._waiting[0].key, is_next=True):
            turn = self._waiting.popleft().turn
            if not turn.done():  # else given up just now: `wait` releases it
                turn.set_result(None)
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
