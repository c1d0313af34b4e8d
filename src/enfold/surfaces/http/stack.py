"""The steps of every request over HTTP, each a handler around the next: limits -> hosts -> options -> authentication -> router.

A mounted app stands behind hosts and authentication alone: it reads its requests itself.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable

from enfold.surfaces.asgi import ABOVE, IDENTITY, IS_CLOSED, VERIFIER, ASGIApp, Exchange, Scope, late_body, with_headers
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.endpoints import Functions
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.request import Request, Response
from enfold.surfaces.router import ALL_METHODS, Handler


def exchange_of(request: Request) -> Exchange:
    """The ASGI exchange that a request over HTTP belongs to."""
    return request.source  # type: ignore[return-value]  # `cast` would be a call, several times per request


class LimitTime:
    """Limits: ends a request whose body is late, whose client has disconnected, or that `stop` ends."""

    def __init__(self, next: Handler) -> None:
        self._next = next

    async def __call__(self, request: Request) -> Response | None:
        exchange = exchange_of(request).begin()
        try:
            return await self._next(request)
        except CancelledError:
            ended = exchange.end()
            if ended is None:  # the server cancels us
                raise
            if ended == "late":
                raise late_body() from None
            request.code = "ABORTED"
            return None
        finally:
            exchange.end()


class CheckHosts:
    """Refuses other hosts and origins, and adds the CORS headers to the answer."""

    def __init__(self, hosts: Hosts, next: Handler) -> None:
        self._hosts = hosts
        self._next = next

    def __call__(self, request: Request) -> Awaitable[Response | None]:
        exchange = exchange_of(request)
        exchange.extra_headers = self._hosts.admit(exchange.scope, request.headers)
        return self._next(request)


class ReadOptions:
    """Reads the request id of the caller, and the format that they want."""

    def __init__(self, functions: Functions, next: Handler) -> None:
        self._functions = functions
        self._next = next

    def __call__(self, request: Request) -> Awaitable[Response | None]:
        self._functions.read_options(request)
        return self._next(request)


class Authenticate:
    """Verifies the bearer token; where one is needed and there is none, `anonymous` answers."""

    def __init__(self, authentication: Authentication, next: Handler, anonymous: Handler) -> None:
        self._authentication = authentication
        self._next = next
        self._anonymous = anonymous

    async def __call__(self, request: Request) -> Response | None:
        if b"authorization" not in request.headers:
            return await self._anonymous(request)
        exchange = exchange_of(request)
        request.identity = await self._authentication.authenticate(exchange.scope, request.headers, exchange.receive)
        return await self._next(request)


class Forward:
    """Lets a mounted app answer; its scope says who calls."""

    def __init__(self, prefix: str, app: ASGIApp, authentication: Authentication) -> None:
        self._prefix = prefix
        self._app = app
        self._authentication = authentication

    async def __call__(self, request: Request) -> Response | None:
        exchange = exchange_of(request)
        hosts = self._authentication.hosts
        if request.method == "OPTIONS" and (preflight := hosts.preflight_headers(request.headers, ALL_METHODS)):
            return Response(b"", 204, [(b"allow", ", ".join(ALL_METHODS).encode()), *preflight])
        send = exchange.send if not exchange.extra_headers else with_headers(exchange.send, exchange.extra_headers)
        exchange.is_started = True  # from here on, the answer is the mounted app's
        await self._app(self._scope(exchange.scope, request), exchange.receive, send)
        return None

    def _scope(self, scope: Scope, request: Request) -> Scope:
        """The scope of the mounted app: its root, the caller, and whether callers need an identity."""
        authenticator = self._authentication.authenticator
        root = scope.get("root_path", "")
        return {
            **scope,
            "root_path": root + self._prefix,
            ABOVE: scope.get(ABOVE, root),
            IDENTITY: request.identity,
            VERIFIER: None if authenticator is None else authenticator.verifier,
            IS_CLOSED: self._authentication.is_closed,
        }
