"""Who a call at a server is made for: progress and logs go to their context, questions to them or to the source.

A client of a stateless surface that is asked something gets the questions as its result, and calls again with the answers:
meanwhile its call at the server goes on in a task, so that whatever the server has done already is done only once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import INTERNAL_ERROR, METHOD_NOT_FOUND, ProtocolError, encode, fields_of, passed_meta
from enfold.operation import Context
from enfold.operation.asking import InputRequired, MissingCapability, Peer, Question, offers, peer_of
from enfold.sources.mcp.mcp_settings import MCPLimits

SUSPENDED: Final = "enfold/suspended"  # where a client's memory of a call names the one that waits for its answers

# How the source itself answers a method, where the caller cannot: `async def answer(params, context) -> result`.
Answerers: TypeAlias = Mapping[str, Callable[[dict[str, Any], Context], Awaitable[dict[str, Any]]]]

_CAPABILITIES: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class _AskedQuestions(msgspec.Struct, frozen=True, eq=False):
    """Questions for the client, and where their answers are waited for."""

    questions: dict[str, Question]
    answers: asyncio.Future[dict[str, Any]]


class MCPCaller:
    """The caller of a call at a server; a client that calls again with answers gives it the context of that call."""

    def __init__(self, context: Context, answers: Answerers, limits: MCPLimits) -> None:
        self.context = context
        self._left_bytes = limits.notice_bytes
        self._answers = answers
        self._count = 0
        self._asked: list[_AskedQuestions] = []
        self.has_news = asyncio.Event()  # there is a question, or the call has ended

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server may ask: whatever the caller or the source can answer."""
        peer = peer_of(self.context)
        own: dict[str, Any] = {_CAPABILITIES[method]: {} for method in self._answers if method in _CAPABILITIES}
        return {**own, **(peer.capabilities if peer is not None else {})}

    @property
    def meta(self) -> dict[str, Any]:
        """What the server is told of the caller's own `_meta`."""
        peer = peer_of(self.context)
        return {} if peer is None else passed_meta(peer.meta)

    @property
    def client(self) -> object | None:
        peer = peer_of(self.context)
        return None if peer is None else peer.client

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a client that answers at least one kind of question."""
        peer = peer_of(self.context)
        return peer is not None and any(name in peer.capabilities for name in _CAPABILITIES.values())

    @property
    def is_heard(self) -> bool:
        return self.context.is_heard

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if self._left_bytes < 0:
            return
        self._left_bytes -= len(encode(params))
        if self._left_bytes < 0:
            self.context.log("RESOURCE_EXHAUSTED: further messages of this call are left out (notice_bytes)", "warning")
        elif method == "notifications/progress":
            self._hear_progress(params)
        else:
            self._hear_log(params)

    def stream_closed(self) -> None:
        peer = peer_of(self.context)
        if peer is not None:
            peer.close_stream()

    def _hear_progress(self, params: dict[str, Any]) -> None:
        progress, total, message = params.get("progress"), params.get("total"), params.get("message")
        if isinstance(progress, int | float):
            self.context.progress(
                progress,
                total if isinstance(total, int | float) else None,
                message if isinstance(message, str) else None,
            )

    def _hear_log(self, params: dict[str, Any]) -> None:
        data, given = params.get("data"), params.get("level")
        level = given if isinstance(given, str) else "info"
        if isinstance(data, str):
            self.context.log(data, level)
        else:
            self.context.log("", level, data)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer one question that came on the open connection."""
        self._count += 1
        key = f"question-{self._count}"
        try:
            return (await self.ask_all({key: {"method": method, "params": params}}))[key]
        except MissingCapability as error:
            raise ProtocolError(METHOD_NOT_FOUND, f"The caller cannot be asked: {error.message}") from None

    async def ask_all(self, requests: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The answers to several questions, by their keys."""
        questions = {key: _question(request) for key, request in requests.items()}
        peer = peer_of(self.context)
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
            raise MissingCapability(question.capability)
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
                asked.answers.set_exception(ProtocolError(INTERNAL_ERROR, "The caller has given up"))


def _question(request: Any) -> Question:
    fields = fields_of(request)
    method, params = str(fields.get("method")), fields.get("params")
    if method not in _CAPABILITIES:
        raise ProtocolError(METHOD_NOT_FOUND, f"Nobody here answers {method}")
    found = params if isinstance(params, dict) else {}
    is_url = method == "elicitation/create" and found.get("mode") == "url"
    return Question(method, found, ("elicitation", "url") if is_url else (_CAPABILITIES[method],))


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

    async def run(self, caller: MCPCaller, peer: Peer, start: Callable[[MCPCaller], Coroutine[Any, Any, Any]]) -> Any:
        """Run a call, or resume the one that waits for the answers which this client brings."""
        call = self._pop(peer.memory.pop(SUSPENDED, None))
        if call is None:
            call = _RunningCall(caller, asyncio.get_running_loop().create_task(start(caller)))
        call.caller.context = caller.context
        try:
            return await call.result(peer)
        except InputRequired:
            peer.memory[SUSPENDED] = self._suspend(call)
            raise
        except BaseException:
            call.task.cancel()
            raise

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
    """A call at a server, in a task of its own."""

    def __init__(self, caller: MCPCaller, task: asyncio.Task[Any]) -> None:
        self.caller = caller
        self.task = task
        self.expiry: asyncio.TimerHandle | None = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.caller.refuse_questions()
        self.caller.has_news.set()
        if not task.cancelled():
            task.exception()  # retrieved, so that the loop does not complain where nobody waits any more

    async def result(self, peer: Peer) -> Any:
        """Wait for the result, and ask the client what the server asks meanwhile."""
        caller = self.caller
        while True:
            caller.has_news.clear()
            while (asked := caller.next_questions()) is not None:
                await _ask(asked, peer)
            if self.task.done():
                return self.task.result()
            await caller.has_news.wait()


async def _ask(asked: _AskedQuestions, peer: Peer) -> None:
    """Ask the client; InputRequired where it is to call again with the answers, until when the questions stay."""
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
