"""Who made a call, as its server may speak to them: progress and logs go to their context, questions to them or to the source.

A caller of a stateless surface leaves when they are asked something, and comes back with the answer: until then their call is
held, so that whatever the server has done already is done only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from enfold.mcp.json_rpc import METHOD_NOT_FOUND, ProtocolError, encode, fields_of, passed_meta
from enfold.operation import Context
from enfold.operation.asking import MissingCapability, Question, offers, peer_of
from enfold.sources.mcp.mcp_limits import MCPLimits

# How the source itself answers a method, where the caller cannot: `async def answer(params, context) -> result`.
Answerers: TypeAlias = Mapping[str, Callable[[dict[str, Any], Context], Awaitable[dict[str, Any]]]]

_CAPABILITIES: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class Recipient:
    """The caller who waits for a result; another may take their place while the call is held."""

    def __init__(self, context: Context, answers: Answerers, limits: MCPLimits) -> None:
        self.context = context
        self._left_bytes = limits.notice_bytes
        self._answers = answers
        self._count = 0
        self.pending: list[PutQuestions] = []
        self.has_news = asyncio.Event()

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
        return with_defaults(question, await answer(question.params, self.context))

    async def _ask_peer(self, questions: dict[str, Question]) -> dict[str, dict[str, Any]]:
        asked = PutQuestions(questions, asyncio.get_running_loop().create_future())
        self.pending.append(asked)
        self.has_news.set()
        try:
            return await asked.answers
        finally:
            if asked in self.pending:  # the server has withdrawn its questions before they were put
                self.pending.remove(asked)


class PutQuestions(msgspec.Struct, frozen=True, eq=False):
    """Questions to the caller, and where their answers are waited for."""

    questions: dict[str, Question]
    answers: asyncio.Future[dict[str, Any]]


def _question(request: Any) -> Question:
    fields = fields_of(request)
    method, params = str(fields.get("method")), fields.get("params")
    if method not in _CAPABILITIES:
        raise ProtocolError(METHOD_NOT_FOUND, f"Nobody here answers {method}")
    found = params if isinstance(params, dict) else {}
    is_url = method == "elicitation/create" and found.get("mode") == "url"
    return Question(method, found, ("elicitation", "url") if is_url else (_CAPABILITIES[method],))


def with_defaults(question: Question, answer: dict[str, Any]) -> dict[str, Any]:
    """An accepted form with the defaults of the fields that were left out."""
    if question.method != "elicitation/create" or answer.get("action") != "accept":
        return answer
    fields = fields_of(fields_of(question.params.get("requestedSchema")).get("properties"))
    filled = {name: field["default"] for name, field in fields.items() if "default" in fields_of(field)}
    content = {**filled, **(answer.get("content") or {})}
    return {**answer, "content": content} if content else answer
