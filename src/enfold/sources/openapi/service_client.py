"""Sending requests: retries where they are safe, redirects to allowed addresses, and failures as the caller hears them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.errors import CallError
from enfold.observing import outgoing
from enfold.sources.known_secrets import KnownSecrets
from enfold.sources.openapi.requests import Outgoing
from enfold.sources.openapi.responses import ReceivedResponse
from enfold.sources.openapi.server_urls import Reach
from enfold.sources.web import Request, Response, WebError, open_client
from enfold.sources.web.http_messages import Headers
from enfold.sources.web.redirects import follow
from enfold.sources.web.status_errors import read_retry_after
from enfold.sources.web.web_error import IDEMPOTENT_METHODS

if TYPE_CHECKING:
    from enfold.sources.web import AnyClient

RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})

_FIRST_WAIT: Final = 0.1


class OpenAPILimits(msgspec.Struct, frozen=True):
    """What a source allows: sizes in bytes after decompression, and how often it tries again."""

    response_bytes: int = 32 * 1024 * 1024
    request_bytes: int = 32 * 1024 * 1024
    event_bytes: int = 4 * 1024 * 1024
    document_bytes: int = 64 * 1024 * 1024
    retries: int = 2
    retry_wait: float = 2.0  # a server that asks for a longer pause is not waited for
    redirects: int = 5
    reconnects: int = 5


class ServiceClient:
    """The client of one source: ours by default, or the user's own httpx or httpx2 client."""

    def __init__(
        self, reach: Reach, limits: OpenAPILimits, client: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`headers`, and what a given client adds by itself, go to the user's own server only."""
        self.reach = reach
        self.limits = limits
        self.secrets = KnownSecrets()  # which answers must not repeat to callers
        self._own_headers = list((headers or {}).items())
        self._given = client
        self._client: AnyClient | None = None
        self._lost = ""  # the origin of the user's own server that could not be reached
        self.why = ""  # the server could not be reached; empty where it could, or nobody has tried
        self.watchers: list[Callable[[], None]] = []  # called when that changes

    # --- whole answers

    async def fetch(self, request: Outgoing) -> ReceivedResponse:
        """The answer to a request, its body read; redirects followed, and tried again where that is safe."""
        response = await self.open(request)
        try:
            return await self.read(response, request)
        finally:
            await response.close()

    async def read(self, response: Response, request: Outgoing) -> ReceivedResponse:
        """The answer of an open response; one that is too large is refused before it is all here."""
        is_head = request.method == "HEAD"
        try:
            content = b"" if is_head else await response.body(self.limits.response_bytes)
        except WebError as error:
            raise self.failure(error, request) from error
        secrets = self.secrets
        return ReceivedResponse(
            response.status,
            secrets.redact(response.reason),
            secrets.redact_headers(response.headers),
            secrets.redact_bytes(content),
            request.method,
        )

    # --- open responses

    async def open(self, request: Outgoing) -> Response:
        """An open response, whatever its status; who opens it closes it."""
        if request.content is not None and len(request.content) > self.limits.request_bytes:
            raise CallError(
                "PAYLOAD_TOO_LARGE", f"The request body is over the limit of {self.limits.request_bytes} bytes"
            )
        attempt = 0
        while True:
            wait: float | None
            try:
                response = await self._follow(request)
            except CallError as error:
                if not error.retryable or attempt >= self.limits.retries:
                    self._note_failure(request.origin, error)
                    raise
                wait = _backoff(attempt)
            else:
                wait = self._wait_before_retry(request, response, attempt)
                if wait is None:
                    return response
                await response.close()
            attempt += 1
            await asyncio.sleep(wait)

    def _wait_before_retry(self, request: Outgoing, response: Response, attempt: int) -> float | None:
        """The seconds to wait before another attempt; None where this answer is the one to keep."""
        if (
            response.status not in RETRIED_STATUSES
            or request.method not in IDEMPOTENT_METHODS
            or attempt >= self.limits.retries
        ):
            return None
        asked = read_retry_after(response.header("retry-after"))
        if asked is None:
            return _backoff(attempt)
        return asked + _backoff(0) if asked <= self.limits.retry_wait else None

    async def _follow(self, request: Outgoing) -> Response:
        """Send, and follow redirects to addresses that may be contacted; credentials go to the user's own server only."""
        try:
            return await follow(self.send, _to_request(request), self._keeps_headers, self.limits.redirects)
        except WebError as error:
            raise self.failure(error, request) from error

    async def send(self, request: Request) -> Response:
        """One exchange: an open response, and no redirect followed."""
        if self._client is None:
            self._client = open_client(self._given)
        is_home = self.reach.is_home(request.origin)
        if self._own_headers and is_home:
            request = msgspec.structs.replace(request, headers=_with_missing(request.headers, self._own_headers))
        response = await self._client.send(request, is_own=is_home)
        if is_home and self.why:
            self._note("")
        return response

    # --- whether the user's own server is there

    async def probe(self) -> None:
        """Send a server that could not be reached a HEAD request: whatever it answers, it is back."""
        request = Request("HEAD", self._lost, "/")
        try:
            response = await self.send(request)
        except WebError as error:
            raise CallError("UNAVAILABLE", error.sentence) from error
        await response.close()

    def _note_failure(self, origin: str, error: CallError) -> None:
        cause = error.__cause__
        if isinstance(cause, WebError) and cause.kind == "unreachable" and self.reach.is_home(origin):
            self._lost = origin
            self._note(error.message)

    def _note(self, why: str) -> None:
        """Remember why the server cannot be reached, or that it can; call the watchers where that is news."""
        is_news, self.why = bool(why) != bool(self.why), why
        if is_news:
            for callback in list(self.watchers):
                callback()

    # --- redirects and failures

    def _keeps_headers(self, url: str, status: int) -> bool:
        refusal = self.reach.refusal(url)
        if refusal is not None:
            details = {"status": status, "location": self.secrets.redact(url)}
            raise CallError("EXECUTION_ERROR", f"A redirect was refused: {refusal}", details)
        return self.reach.is_home(url)

    async def aclose(self) -> None:
        """Close the connections; a client the user gave stays theirs."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def failure(self, error: WebError, request: Outgoing) -> CallError:
        """What the caller hears of a request without an answer."""
        host, is_safe = request.origin.partition("//")[2].rpartition("@")[2], request.method in IDEMPOTENT_METHODS
        if error.kind == "unreachable":
            return CallError("UNAVAILABLE", f"{host} cannot be reached: {error.sentence}", retryable=True)
        if error.kind == "broken":
            return CallError("UNAVAILABLE", f"{host} broke off: {error.sentence}", retryable=is_safe)
        if error.kind == "late":
            return CallError("TIMEOUT", f"{host} did not answer in time", retryable=is_safe)
        if error.kind == "unsendable":
            return CallError("VALIDATION_ERROR", f"The request cannot be sent: {error.sentence}")
        if error.kind == "too_large":
            return CallError("PAYLOAD_TOO_LARGE", error.sentence, {"limit": self.limits.response_bytes})
        return CallError("EXECUTION_ERROR", error.sentence, {"reason": error.kind})


def _to_request(request: Outgoing) -> Request:
    headers = request.headers
    if request.cookies:
        headers = [*headers, ("Cookie", "; ".join(request.cookies))]
    if outgoing.inject is not None:
        headers = _with_missing(headers, list(outgoing.inject().items()))
    return Request(request.method, request.origin, request.target, headers, request.content)


def _with_missing(headers: Headers, own: Headers) -> Headers:
    """A request's headers, and the user's own that it does not have."""
    present = {name.lower() for name, _ in headers}
    return [*headers, *((name, value) for name, value in own if name.lower() not in present)]


def _backoff(attempt: int) -> float:
    return _FIRST_WAIT * (1 << attempt) * (0.5 + random.random())  # noqa: S311  # jitter needs no secrecy
