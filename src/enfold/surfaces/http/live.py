"""A call that its client follows: progress, log messages and questions as events, then the response.

`POST /functions/{id}` with `Accept: text/event-stream` alone. The last event, `response`, holds the status, headers and
body that the call would have been answered with. `Enfold-Answers: elicitation` says which questions the client answers:
it posts the answers to `/calls/{id}/input`, under the id that the event `started` names. `Enfold-Client` is a random
name of the client's own: calls under the same one need not wait for each other where a server behind us asks questions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from enfold.errors import CallError, invalid_argument
from enfold.operations import Identity, LogMessage, Progress, new_request_id
from enfold.operations.context import Invocation
from enfold.operations.outcomes import NeedsInput
from enfold.operations.questions import ClientSession, Question
from enfold.runtime.application import Services
from enfold.surfaces.endpoints import NO_STORE, Functions, Route
from enfold.surfaces.http.stack import HTTPRequest
from enfold.surfaces.request import Response, id_header
from enfold.surfaces.responses import not_acceptable
from enfold.surfaces.router import Page, Pages

ANSWERS_HEADER: Final = b"enfold-answers"
CLIENT_HEADER: Final = b"enfold-client"
MAX_WAITING: Final = 1_000  # messages for a client that reads slowly; further ones are left out

_EVENTS: Final = b"text/event-stream"
_PATH: Final = "/calls/"
_QUESTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}


class LiveCalls:
    """The followed calls of one app, by the ids under which their questions are answered."""

    def __init__(self, services: Services, heartbeat: float) -> None:
        self._services = services
        self._heartbeat = heartbeat
        self._open: dict[str, LiveCall] = {}
        self._clients: WeakValueDictionary[tuple[str | None, bytes], LiveClient] = WeakValueDictionary()

    async def follow(self, functions: Functions, route: Route, request: HTTPRequest) -> None:
        """Run an operation for a client that takes no JSON, and send what happens until it has ended."""
        if request.method in ("GET", "HEAD") or _EVENTS not in request.headers[b"accept"]:
            raise not_acceptable("application/json")
        siblings = self._services.siblings
        call_id = f"{'' if siblings is None else siblings.prefix}{new_request_id()}"
        live = self._open[call_id] = LiveCall(request, _answered(request.headers), self._client_of(request))
        request.notify, request.invocation = live.notify, Invocation(client=live)
        request.headers = {**request.headers, b"accept": b"application/json"}  # of the response in the last event
        try:
            await live.begin(call_id, self._heartbeat)
            try:
                answer = await functions.call(route, request)
            except CallError as error:
                answer = functions.failure(request, error)
            await live.finish(answer or Response(b"null"))
        finally:
            del self._open[call_id]
            live.end()

    def _client_of(self, request: HTTPRequest) -> LiveClient:
        """The client that the request names, which only the same caller can name; one of its own otherwise."""
        name, caller = request.headers.get(CLIENT_HEADER), request.identity
        if not name:
            return LiveClient()
        return self._clients.setdefault((None if caller is None else caller.id, name), LiveClient())

    def stop(self) -> None:
        """Refuse the questions that wait for answers; the calls go on to their end."""
        for live in list(self._open.values()):
            live.refuse(CallError("UNAVAILABLE", "The server is shutting down"))

    def pages(self, functions: Functions) -> Pages[HTTPRequest]:
        """Where answers are posted."""

        async def answer(request: HTTPRequest) -> Response:
            live = self._open.get(request.path.removeprefix(_PATH).removesuffix("/input"))
            if live is None or not live.belongs_to(request.identity):
                raise CallError("OPERATION_NOT_FOUND", "The call does not exist, or has ended")
            given = (await functions.body_object(request)).get("inputResponses")
            if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
                message = 'The body needs "inputResponses": an answer for each key'
                raise invalid_argument("inputResponses", "type", "object", message)
            return Response(msgspec.json.encode({"accepted": live.accept(given)}), 202, [NO_STORE])

        page: Page[HTTPRequest] = Page(answer, ("POST", "OPTIONS"))
        return lambda request: page if request.path.startswith(_PATH) and request.path.endswith("/input") else None


def _answered(headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The kinds of questions that the client answers."""
    named = headers.get(ANSWERS_HEADER, b"").decode("latin-1").lower().split(",")
    kinds = [kind.strip() for kind in named if kind.strip()]
    for kind in kinds:
        if kind not in _QUESTIONS:
            raise invalid_argument("Enfold-Answers", "constraint", ", ".join(_QUESTIONS))
    return {kind: _QUESTIONS[kind] for kind in kinds}


class LiveClient:
    """Who makes one followed call, or several under the same name."""


class LiveCall:
    """One followed call; to its handler it is the client that may be asked."""

    session: ClientSession | None = None

    def __init__(self, request: HTTPRequest, capabilities: Mapping[str, Any], client: LiveClient) -> None:
        self.client = client
        self.capabilities = capabilities
        self.meta: Mapping[str, Any] = {}
        self.memory: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self.asked: dict[str, int] = {}
        self._request = request
        self._pending: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._waiting: deque[bytes] = deque()
        self._has_news = asyncio.Event()
        self._is_over = False
        self._sending: asyncio.Task[None] | None = None

    def belongs_to(self, identity: Identity | None) -> bool:
        own = self._request.identity
        return (None if own is None else own.id) == (None if identity is None else identity.id)

    # what a handler says

    def notify(self, told: Progress | LogMessage) -> None:
        """Send progress or a log message."""
        if len(self._waiting) < MAX_WAITING:
            self._put("progress" if isinstance(told, Progress) else "log", told)

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Any] | NeedsInput:
        """Send questions, and wait for the answer to each."""
        missing = {key: each for key, each in questions.items() if key not in self.answers}
        loop = asyncio.get_running_loop()
        for key, question in missing.items():
            self._pending[key] = loop.create_future()
            self._put("question", {"key": key, "method": question.method, "params": question.params})
        try:
            for key in missing:
                self.answers[key] = await self._pending[key]
        finally:
            for key in missing:
                self._pending.pop(key).cancel()
                self._put("answered", {"key": key})
        return {key: self.answers[key] for key in questions}

    def accept(self, given: Mapping[str, dict[str, Any]]) -> list[str]:
        """Pass answers on to those who wait for them; the keys of those that were waited for."""
        accepted = [key for key in given if key in self._pending and not self._pending[key].done()]
        for key in accepted:
            self._pending[key].set_result(given[key])
        return accepted

    def refuse(self, error: CallError) -> None:
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(error)

    def resource_updated(self, uri: str) -> None:
        """Nothing: who follows resources does so over MCP."""

    def close_stream(self) -> None:
        """Nothing: the client could not come back for the answer."""

    # what the client gets

    async def begin(self, call_id: str, heartbeat: float) -> None:
        await self._request.exchange.begin_stream(_EVENTS.decode(), [id_header(self._request)])
        self._put("started", {"call": call_id})
        self._sending = asyncio.create_task(self._send(heartbeat))

    async def finish(self, answer: Response) -> None:
        """Send what is left, and the response as the last event."""
        self._is_over = True
        self._put("response", _written(answer))
        if self._sending is not None:
            await self._sending

    def end(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def _put(self, event: str, data: Any) -> None:
        text = msgspec.json.encode(data, enc_hook=str).replace(b"\n", b" ")  # where a body is JSON with lines
        self._waiting.append(b"event: %b\ndata: %b\n\n" % (event.encode(), text))
        self._has_news.set()

    async def _send(self, heartbeat: float) -> None:
        with suppress(OSError):  # the client has disconnected, which the exchange notices
            while True:
                self._has_news.clear()
                while self._waiting:
                    await self._part(self._waiting.popleft(), more=bool(self._waiting) or not self._is_over)
                if self._is_over:
                    return
                try:
                    await asyncio.wait_for(self._has_news.wait(), heartbeat)
                except TimeoutError:
                    await self._part(b":\n\n", more=True)

    async def _part(self, chunk: bytes, *, more: bool) -> None:
        self._request.sent = (self._request.sent or 0) + len(chunk)
        await self._request.exchange.send_part(chunk, more=more)


def _written(answer: Response) -> dict[str, Any]:
    """A response as JSON; a body that is not JSON is written as base64."""
    head = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    kind = answer.media_type.decode("latin-1")
    facts = {"status": answer.status, "headers": {"content-type": kind, **head}}
    if "json" in kind:
        return {**facts, "body": msgspec.Raw(answer.body)}
    return {**facts, "encoding": "base64", "body": answer.body}
