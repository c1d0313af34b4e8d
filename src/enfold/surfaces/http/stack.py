"""The steps of every request over HTTP, in their order: limits -> hosts -> format -> authentication -> router.

A mounted app stands behind hosts and authentication alone: it reads its requests itself.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import Final
from urllib.parse import unquote

import msgspec

from enfold.errors import CallError, safe_code
from enfold.observability.log import Log
from enfold.surfaces.asgi import BODILESS, Exchange, late_body
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.endpoints import Functions
from enfold.surfaces.request import Request, Response, read_format, unreadable_path
from enfold.surfaces.router import Handler

_log: Final = Log("enfold.http")


class HTTPRequest(Request, eq=False):
    """A request over ASGI."""

    exchange: Exchange

    def segments(self) -> list[str]:
        scope = self.exchange.scope
        raw = scope.get("raw_path")
        if raw is None or b"%" not in raw:
            return super().segments()
        above = self.root.count("/") if self.path != scope["path"] else 0  # parts of the path that lead to this app
        try:  # a part may hold an encoded slash, which the decoded path does not tell from a separator
            parts = raw.partition(b"?")[0].decode("ascii").split("/")
            return [unquote(part, errors="strict") for part in parts[1 + above :]]
        except UnicodeDecodeError:
            raise unreadable_path() from None


class RequestStack:
    """Passes requests through all steps, and sends their answers."""

    def __init__(
        self,
        functions: Functions,
        authentication: Authentication,
        router: Handler[HTTPRequest],
        anonymous: Handler[HTTPRequest],
    ) -> None:
        """`anonymous` is the router for requests without a token, where tokens are required."""
        self._functions = functions
        self._authentication = authentication
        self._hosts = authentication.hosts
        self._has_tokens = authentication.authenticator is not None
        self._router = router
        self._anonymous = anonymous

    async def answer(self, request: HTTPRequest) -> Response | None:
        """Handle a request; None if its handler has sent the response, or the client has disconnected."""
        exchange, headers, router = request.exchange, request.headers, self._router
        exchange.begin()  # limits: ends a request whose body is late or whose client disconnects
        try:
            exchange.extra_headers = self._hosts.check(exchange.scope, headers)
            if request.query or b"enfold-format" in headers:
                read_format(request)
            if self._has_tokens:
                if b"authorization" in headers:
                    if b"x-request-id" in headers:
                        request.known_id()  # a refusal drops the headers
                    authenticate = self._authentication.authenticate
                    request.identity = await authenticate(exchange.scope, headers, exchange.receive)
                else:
                    router = self._anonymous
            answer = await router(request)
        except Exception as error:  # noqa: BLE001  # the answer reports it
            answer = self.failure(request, error)
        except BaseException as error:
            ended = exchange.end()
            if ended is None or not isinstance(error, CancelledError):
                await send(self.failure(request, error), request)
                raise  # the client has its answer; the server has to know
            if ended != "late":
                request.code = "ABORTED"
                return None
            answer = self.failure(request, late_body())
        finally:
            exchange.end()
        if answer is not None:
            await send(answer, request)
        return answer

    def failure(self, request: HTTPRequest, error: BaseException, path: str = "") -> Response:
        """Build the response for a failure; raise it if the response has started.

        A 401 says which scopes are needed, and where to read who issues tokens for `path`.
        """
        if isinstance(error, CancelledError):
            error = CallError("ABORTED", "The call was cancelled")
        if not isinstance(error, CallError):
            own = request.known_id()
            _log.error("Failed to respond (request %s)", own, error=error, request_id=own)
            error = CallError("UNKNOWN_ERROR", "The server failed to respond")
        exchange = request.exchange
        if exchange.is_started:  # only the connection can report it
            request.code = safe_code(error.code)
            raise error
        answer = self._functions.failure(request, error)
        if answer.status != 401 or not self._has_tokens:
            return answer
        headers = self._authentication.with_challenge(answer.headers, exchange.scope, request.headers, path)
        return msgspec.structs.replace(answer, headers=headers)


async def send(answer: Response, request: HTTPRequest) -> None:
    """Send an answer in one piece."""
    exchange, body, status = request.exchange, answer.body, answer.status
    head = [(b"x-request-id", request.known_id().encode())]
    if status not in BODILESS:
        head += ((b"content-type", answer.media_type), (b"content-length", b"%d" % len(body)))
    if answer.headers or exchange.extra_headers:
        head += (*answer.headers, *exchange.extra_headers)
    await exchange.send({"type": "http.response.start", "status": status, "headers": head})
    await exchange.send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
