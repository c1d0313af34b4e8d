"""The ASGI app of a registry: it puts the steps of a request together. `stack.py` has their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.auth.tokens import Verifier
from enfold.errors import CallError
from enfold.formats import DEFAULT_FORMAT
from enfold.observability.spans import http_span
from enfold.operations import Policy
from enfold.operations.http_route import WITH_BODY
from enfold.runtime.prepared import PreparedOperation
from enfold.runtime.registry import Registry
from enfold.surfaces.asgi import (
    BODY_TIMEOUT,
    ASGIApp,
    Exchange,
    Receive,
    Scope,
    Send,
    close_websocket,
    header_table,
    run_lifespan,
)
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.endpoints import PREFIX, Dialect, Functions, FunctionSettings, Run
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.http.live import LiveCalls
from enfold.surfaces.http.mounts import Mount, find_mount, sorted_mounts
from enfold.surfaces.http.pages import service_pages, surface_paths, task_pages
from enfold.surfaces.http.stack import HTTPRequest, RequestStack, send
from enfold.surfaces.http.streams import Streams
from enfold.surfaces.introspection import introduce
from enfold.surfaces.request import decode_object, report
from enfold.surfaces.responses import MAX_BODY
from enfold.surfaces.router import Handler, PublicRouter, Router, first_of, operation_pages

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.surfaces.http.tasks import TaskPages
    from enfold.tasks import Tasks

HEARTBEAT: Final = 15.0

_DIALECT: Final = Dialect(
    adapter="http",
    prefix="Function error: ",
    missing="Operation not found",
    body_types=(b"application/json",),
    read_object=decode_object,
)


class HTTPSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP surface that you rarely change."""

    format: str = DEFAULT_FORMAT  # of answers, unless a request names another
    title: str | None = None  # of the application in the OpenAPI document; that of the registry by default
    version: str | None = None
    console: bool = True  # serve the console at `/`
    expose_errors: bool = True  # False hides the text of unexpected exceptions from callers
    max_body: int = MAX_BODY  # bytes of a request
    body_timeout: float = BODY_TIMEOUT  # seconds for the body of a request to arrive
    heartbeat: float = HEARTBEAT  # seconds of silence after which a stream sends a comment


def to_http(
    registry: Registry,
    settings: HTTPSettings = HTTPSettings(),  # noqa: B008  # frozen
    *,
    tokens: Verifier | None = None,
    allow_anonymous: bool = False,
    mounts: Mapping[str, ASGIApp] | None = None,
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    recorder: Recorder | None = None,
    tasks: Tasks | None = None,
) -> HTTPApp:
    """Serve a registry as an ASGI app. `enfold.App` serves it together with MCP and metrics.

    With `tokens`, callers need a bearer token except for public operations; `allow_anonymous` also opens operations
    without access rules. `mounts` are other ASGI apps by path. `allowed_hosts` are the host names of this server
    (by default the loopback and its own address); `allowed_origins` turns on CORS for these origins. `recorder`
    captures provenance on request; `tasks` runs durable operations as tasks.
    """
    served = registry if settings.expose_errors else registry.with_policy(Policy(expose_errors=False))
    pages = None
    if tasks is not None:
        from enfold.surfaces.http.tasks import TaskPages  # where there are no tasks, nothing of them is loaded

        tasks = tasks.with_registry(served)
        pages = TaskPages(tasks)
    introduce(registry, surface_paths(mounts or {}), recorder, tasks)
    if tokens is not None:
        registry.require_authentication(allow_anonymous=allow_anonymous)
    hosts = Hosts(allowed_hosts, allowed_origins)
    authentication = Authentication(registry, tokens, hosts, allow_anonymous=allow_anonymous)
    streams = Streams(authentication, registry.services.observers, settings.heartbeat)
    chosen = FunctionSettings(
        settings.format,
        settings.max_body,
        recorder,
        settings.title,
        settings.version,
        tokens is not None,
        tasks is not None,
    )
    live = LiveCalls(registry.services, settings.heartbeat)
    choose = partial(_choose, streams, pages)
    guarded = served.guarded(has_identities=tokens is not None, surface="http")
    functions = Functions(guarded, chosen, _DIALECT, choose, live.follow)
    service = service_pages(functions, authentication, streams, has_console=settings.console)
    own = [
        operation_pages(functions),
        live.pages(functions),
        *([] if pages is None else [task_pages(pages, functions, streams)]),
    ]
    router = Router(functions, first_of(service, *own), hosts, is_closed=authentication.is_closed)
    anonymous: Handler[HTTPRequest] = router
    if authentication.is_closed:
        public = Functions(served.public().guarded(surface="http"), chosen, _DIALECT, choose, live.follow)
        found = first_of(service, operation_pages(public, is_public=True), live.pages(public))
        anonymous = PublicRouter(public, found, hosts, is_closed=True)
    stack = RequestStack(functions, authentication, router, anonymous)
    mounted = [Mount(prefix, app, authentication) for prefix, app in sorted_mounts(mounts or {})]
    return HTTPApp(functions, stack, [streams.stop, live.stop], mounted, settings.body_timeout)


def _choose(streams: Streams, tasks: TaskPages | None, prepared: PreparedOperation) -> Run:
    """How an operation is run: as a stream, as a task where its caller prefers one, or to its end."""
    if prepared.is_stream:
        return streams.subscribe
    may_be_task = prepared.spec.durable != "never" or prepared.operation.origin.kind == "mcp"
    return Functions.call if tasks is None or not may_be_task else tasks.call


class HTTPApp:
    """A registry over HTTP. `stop` ends its streams, so that the server can shut down."""

    def __init__(
        self,
        functions: Functions,
        stack: RequestStack,
        endings: Sequence[Callable[[], None]],
        mounts: Sequence[Mount],
        body_timeout: float,
    ) -> None:
        self._functions = functions
        self._stack = stack
        self._endings = endings
        self._mounts = mounts
        self._body_timeout = body_timeout
        self._observers = functions.registry.services.observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the startup and shutdown of the server."""
        if scope["type"] == "lifespan":
            apps = [mount.app for mount in self._mounts]
            await run_lifespan(scope, receive, send, self._functions.registry.services.lifetime, self.stop, apps)
            return
        request = self._read(scope, receive, send)
        if self._mounts and (mount := self._find_mount(request)) is not None:
            await self._forward(mount, request)
        elif scope["type"] != "http":
            await close_websocket(receive, send)
        elif self._observers.is_on:
            await self._observed(request)
        else:
            await self._stack.answer(request)

    def stop(self) -> None:
        """End every stream with an error that gives the reason; running calls finish, and their questions are refused."""
        for end in self._endings:
            end()

    def _read(self, scope: Scope, receive: Receive, send: Send) -> HTTPRequest:
        method, root = scope.get("method", "GET"), scope.get("root_path", "")  # a websocket has no method
        exchange = Exchange(receive, self._body_timeout, method in WITH_BODY, scope=scope, send=send)
        path, query, headers = scope["path"].removeprefix(root), scope.get("query_string", b""), header_table(scope)
        return HTTPRequest(method, path, query, headers, exchange, self._functions.format, root)

    async def _observed(self, request: HTTPRequest) -> None:
        """Handle a request and report it to the observers."""
        span = partial(http_span, request.exchange.scope, request.headers) if self._is_call(request) else None
        watch, answer = self._observers.begin(span), None
        try:
            answer = await self._stack.answer(request)
        finally:
            report(watch, request, "http", answer)

    def _find_mount(self, request: HTTPRequest) -> Mount | None:
        """The app mounted at the path of a request; one at `/` gets what no REST route leads to."""
        mount = find_mount(self._mounts, request.path)
        is_ours = mount is not None and mount.is_root and self._functions.has_route(request)
        return None if is_ours else mount

    def _is_call(self, request: HTTPRequest) -> bool:
        """Whether a request is one for an operation, and so has a span."""
        if request.method == "OPTIONS":
            return False
        return request.path.startswith(PREFIX) or request.path == "/call" or self._functions.has_route(request)

    async def _forward(self, mount: Mount, request: HTTPRequest) -> None:
        """Let a mounted app answer, and answer for it where the request is refused."""
        exchange = request.exchange
        try:
            answer = await mount.forward(request)
        except CallError as error:
            if exchange.is_started:
                raise
            if exchange.scope["type"] != "http":
                await exchange.send({"type": "websocket.close", "code": 1008})
                return
            answer = self._stack.failure(request, error, exchange.scope["path"])
            self._observers.refused("http", error.code, request_id=request.known_id())
        if answer is not None:
            await send(answer, request)
