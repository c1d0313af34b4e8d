"""The ASGI app: it checks who calls, and finds what answers: an operation, a page, or a mounted app."""

from __future__ import annotations

import os
from asyncio import CancelledError
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.auth.challenges import WELL_KNOWN
from enfold.auth.tokens import Verifier, no_identity
from enfold.errors import CallError, safe_code
from enfold.formats import DEFAULT_FORMAT
from enfold.log import Log
from enfold.observability.spans import http_span
from enfold.operations import Context, Identity, Policy
from enfold.operations.access import check_access, may_list
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import READERS
from enfold.surfaces.asgi import (
    BODY_TIMEOUT,
    JSON,
    ASGIApp,
    Ended,
    Exchange,
    Headers,
    Receive,
    Scope,
    Send,
    close_websocket,
    header_table,
    late_body,
    origin_of,
    present_task,
    respond,
    run_lifespan,
)
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.console import PARENTS, Console
from enfold.surfaces.endpoints import NO_STORE, PREFIX, Dialect, Functions, FunctionSettings, Route, has_no_options
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.http.mounts import (
    HEALTH,
    PAGES,
    Mount,
    find_mount,
    mounted_scope,
    own_path,
    sorted_mounts,
    with_headers,
)
from enfold.surfaces.http.streams import Envelopes, SubscriptionStream
from enfold.surfaces.introspection import introduce
from enfold.surfaces.request import Request, Response, decode_object, id_header, prefers_page, stream_type, tell_end
from enfold.surfaces.responses import MAX_BODY, not_acceptable, not_allowed

if TYPE_CHECKING:
    from enfold.observability.records import Trace
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

_log: Final = Log("enfold.http")


class HTTPSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator rarely changes about the HTTP surface."""

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
    introduce(registry, _surfaces(mounts or {}), recorder, tasks)
    if tokens is not None:
        registry.reserved.require_authentication()
    hosts = Hosts(allowed_hosts, allowed_origins)
    authentication = Authentication(registry, tokens, hosts, allow_anonymous=allow_anonymous)
    chosen = FunctionSettings(
        settings.format,
        settings.max_body,
        recorder,
        settings.title,
        settings.version,
        tokens is not None,
        tasks is not None,
    )
    functions = Functions(served.guarded(has_identities=tokens is not None, surface="http"), chosen, _DIALECT)
    public = Functions(served.public().guarded(surface="http"), chosen, _DIALECT) if authentication.is_closed else None
    return HTTPApp(
        functions,
        public,
        authentication,
        mounts=sorted_mounts(mounts or {}),
        body_timeout=settings.body_timeout,
        heartbeat=settings.heartbeat,
        console=Console() if settings.console else None,
        tasks=pages,
    )


def _surfaces(mounts: Mapping[str, ASGIApp]) -> dict[str, str]:
    """The addresses below that of the app, by what is there; mounted apps are called what their paths are."""
    paths = [path.strip("/") for path in mounts if not path.strip("/").startswith(".")]
    return {"http": "functions/{id}", "document": "openapi.json", **{path: path for path in paths}}


class HTTPApp:
    """A registry over HTTP. It lives as long as its server; `stop` ends the streams, so that the server can end."""

    def __init__(
        self,
        functions: Functions,
        public: Functions | None,
        authentication: Authentication,
        *,
        mounts: Sequence[Mount],
        body_timeout: float,
        heartbeat: float,
        console: Console | None,
        tasks: TaskPages | None,
    ) -> None:
        """`public` is what callers without a token get, where one is needed."""
        self._functions = functions
        self._public = public
        self._authentication = authentication
        self._mounts = mounts
        self._body_timeout = body_timeout
        self._heartbeat = heartbeat
        self._console = console
        self._tasks = tasks
        self._hosts = authentication.hosts
        self._authenticator = authentication.authenticator
        self._format = functions.format
        self._observers = functions.registry.observers
        self._streams: set[Exchange] = set()
        self._is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: every call of an operation comes this way."""
        path = scope.get("path", "")
        if path not in self._functions.routes.known or scope["type"] != "http":
            if scope["type"] == "lifespan":
                apps = [app for _, app in self._mounts]
                await run_lifespan(scope, receive, send, self._functions.registry.lifetime, self.stop, apps)
                return
            mount = find_mount(self._mounts, scope)
            if mount is not None:
                await self._forward_to_mount(mount, scope, receive, send)
                return
            if scope["type"] != "http":
                await close_websocket(receive, send)
                return
            path = own_path(scope)
        lines = scope["headers"]
        headers = dict(lines)
        if len(headers) != len(lines):
            headers = header_table(scope)
        method, query = scope["method"], scope["query_string"]
        has_options = not has_no_options(headers)
        observers, began = self._observers, 0.0
        trace: Trace | None = None
        if observers.is_on:
            began = perf_counter()
            observers.running += 1
            if observers.tracer is not None and _is_call(path, method):
                trace = observers.tracer.begin(http_span(scope, headers))
        keeper, task = present_task()
        exchange = Exchange(receive, self._body_timeout, method == "POST", keeper, task, scope=scope, send=send)
        request = Request(method, path, query, headers, exchange, self._format, has_options)
        answer: Response | None = None
        failed: BaseException | None = None
        keeper.running.add(exchange)
        try:
            hosts = self._hosts
            if headers.get(b"host") not in hosts.passed or (has_options and b"origin" in headers):
                exchange.extra_headers = hosts.admit(scope, headers)
            if b"sec-fetch-site" in headers:
                self._check_site(request)
            if has_options or query:
                self._functions.read_options(request)
                if self._authenticator is not None:
                    request.identity = await self._authentication.authenticate(scope, headers, receive)
            if self._public is not None and b"authorization" not in headers:
                answer = await self._answer_anonymous(exchange, request, self._public)
            else:
                answer = await self._answer(self._functions, exchange, request)
        except BaseException as error:  # noqa: BLE001  # `_failure` answers and logs it
            failed = error
        finally:
            ended = exchange.end()
        try:
            if failed is not None:
                answer = self._failure(exchange, request, failed, ended)
            if answer is not None:
                given = request.request_id
                # No other place knows the id of a call that succeeded: it only has to be unique.
                request_id = (_spare_ids or _refill_ids()).pop() if given is None else given.encode()
                if began and given is None:
                    request.request_id = request_id.decode()
                body = answer.body
                head = [JSON, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
                if answer.headers or exchange.extra_headers:
                    head += [*answer.headers, *exchange.extra_headers]
                await send({"type": "http.response.start", "status": answer.status, "headers": head})
                await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
        finally:
            if began:
                observers.running -= 1
                tell_end(observers, request, "http", began, trace, answer)
        if failed is not None and not isinstance(failed, Exception) and ended is None:
            raise failed  # the client has its answer; whoever runs us has to know
        failed = None  # it knows this frame: together they would keep the input until the collector comes

    def stop(self) -> None:
        """End every stream with an error that says why; calls go on to their end."""
        self._is_stopping = True
        for exchange in list(self._streams):
            exchange.stop()

    # one request

    def _check_site(self, request: Request) -> None:
        """Refuse what a page of another site asks for, where callers need no token; but it may link to the pages for people."""
        if self._public is not None or request.path in _HARMLESS:
            return
        is_link = request.headers.get(b"sec-fetch-dest") == b"document"
        if not is_link or self._console is None or self._console.page(request.path, "", request.headers) is None:
            self._hosts.check_site(request.headers)

    def _answer(self, functions: Functions, exchange: Exchange, request: Request) -> Awaitable[Response | None]:
        """The answer to a request that was let in; `functions` are the operations that its caller may see."""
        route = functions.routes.known.get(request.path)
        is_post = exchange.has_body  # which every operation takes
        if route is None or not (is_post or request.method in route.methods):
            route = functions.find(request)
        if route is None:
            return self._page(exchange, request, functions)
        request.operation = route.prepared.operation
        asks_for_methods = not is_post and request.method == "OPTIONS"
        if not route.prepared.is_open and (request.identity is not None or not asks_for_methods):
            functions.admit(route, request)
        if asks_for_methods:
            return self._options(exchange, request, route.methods)
        if route.prepared.is_stream:
            return self._subscribe(exchange, request, route)
        if self._tasks is not None and (
            route.spec.durable != "never"
            or (route.prepared.operation.origin.kind == "mcp" and b"prefer" in request.headers)
        ):
            return self._tasks.call(functions, route, request, exchange.scope.get("root_path", ""))
        return functions.call(route, request)

    async def _answer_anonymous(self, exchange: Exchange, request: Request, public: Functions) -> Response | None:
        """The answer to a caller without a token where one is needed: what is public; for the rest a 401, whether it exists or not."""
        if request.method == "OPTIONS" and self._hosts.preflight_headers(request.headers, _ALL_METHODS):
            await self._options(exchange, request, _ALL_METHODS)
            return None
        if request.path in ("/openapi.json", "/call", "/operations") and not len(public.registry):
            raise no_identity()
        try:
            return await self._answer(public, exchange, request)
        except CallError:
            if request.operation is None and request.path not in ("/healthz", HEALTH, "/readyz"):
                raise no_identity() from None
            raise

    def _failure(
        self, exchange: Exchange, request: Request, error: BaseException, ended: Ended | None
    ) -> Response | None:
        """The answer that tells of a failure; None for a client who has gone."""
        if isinstance(error, CancelledError):
            if ended == "late":
                return self._functions.failure(request, late_body())
            if ended is not None:
                request.code = "ABORTED"
                return None
            error = CallError("ABORTED", "The call was cancelled")  # by whoever runs us, or by itself
        if not isinstance(error, CallError):
            own = request.known_id()
            _log.error("The answer failed (request %s)", own, error=error, request_id=own)
            error = CallError("UNKNOWN_ERROR", "The server failed to answer")
        if exchange.is_started:  # only the connection can tell of it
            request.code = safe_code(error.code)
            raise error
        answer = self._functions.failure(request, error)
        if answer.status != 401 or self._authenticator is None:
            return answer
        headers = self._authentication.with_challenge(answer.headers, exchange.scope, request.headers)
        return msgspec.structs.replace(answer, headers=headers)

    # streams

    async def _subscribe(self, exchange: Exchange, request: Request, route: Route) -> None:
        media_type = stream_type(request.headers.get(b"accept"))
        if media_type is None:
            raise not_acceptable("text/event-stream or application/x-ndjson")
        if self._is_stopping:
            raise CallError("UNAVAILABLE", "The server is shutting down")
        context = self._functions.context(route, request)
        given = await self._functions.arguments(route, request)
        if request.method == "HEAD":
            check_access(route.spec, request.identity, given)
            await exchange.answer_empty(200, [(b"content-type", media_type.encode()), NO_STORE, id_header(request)])
            return
        await self._stream(exchange, request, context, media_type, route.prepared.subscribe(given, context))

    async def _stream(
        self, exchange: Exchange, request: Request, context: Context, media_type: str, items: Envelopes
    ) -> None:
        stream = SubscriptionStream(exchange, request, self._functions, media_type, context, self._heartbeat)
        self._streams.add(exchange)
        self._observers.streams += 1
        try:
            with self._authentication.while_admitted(request.headers, request.identity, exchange.refuse):
                await stream.run(items)
        finally:
            self._observers.streams -= 1
            self._streams.discard(exchange)
            request.sent, request.items = stream.sent, stream.items

    # pages

    async def _page(self, exchange: Exchange, request: Request, functions: Functions) -> Response | None:
        tasks = self._tasks if request.path.startswith("/tasks") else None
        if tasks is not None and functions is self._public:
            raise no_identity()
        if (
            self._authenticator is not None
            and request.path.startswith(WELL_KNOWN)
            and request.method in ("GET", "HEAD")
        ):
            resource = request.path.removeprefix(WELL_KNOWN) or "/"
            document = self._authentication.metadata(
                exchange.scope, request.headers, resource, functions.application.name
            )
            return Response(document, 200, [NO_STORE])
        if tasks is None and self._console is not None and request.method in ("GET", "HEAD"):
            page = self._console.page(request.path, exchange.scope.get("root_path", ""), request.headers)
            if page is not None:
                return await self._console_page(page, exchange, request)
        if tasks is None and request.path in PARENTS and request.method in ("GET", "HEAD"):
            place = f"{exchange.scope.get('root_path', '')}/openapi.json"
            return Response(b"", 307, [(b"location", place.encode())])
        path = "/healthz" if request.path == HEALTH else request.path
        methods = PAGES.get(path) if tasks is None else tasks.methods(path)
        if methods is None:
            message = f"There is nothing at {request.path[:200]}. Operations are called at /functions/{{id}}."
            raise CallError("OPERATION_NOT_FOUND", message)
        if request.method not in methods:
            raise not_allowed(request.method, methods)
        if request.method == "OPTIONS":
            await self._options(exchange, request, methods)
            return None
        if tasks is not None:
            return await self._task_page(tasks, exchange, request, functions)
        if path == "/healthz":
            return Response(b'{"status":"ok"}', 200, [NO_STORE])
        if request.path == "/readyz":
            return self._readiness(request.identity)
        if request.path == "/call":
            return await functions.call_request(request)
        if request.path == "/operations":
            return await functions.search(request)
        return functions.document(request, exchange.scope.get("root_path", ""))

    def _readiness(self, identity: Identity | None) -> Response:
        """200 and `ready`, or 503; why, only for who may know which sources there are: where nobody has an identity, all may."""
        missing = self._functions.registry.sources.missing
        word = "stopping" if self._is_stopping else "waiting" if missing else "ready"
        shown: dict[str, Any] = {"status": word}
        if self._authenticator is None or may_list(READERS, identity):
            shown["missing"] = [
                {"source": each.name, "kind": each.kind, "state": each.state, "why": each.why, "since": int(each.since)}
                for each in missing
            ]
        return Response(msgspec.json.encode(shown), 200 if word == "ready" else 503, [NO_STORE])

    async def _task_page(
        self, tasks: TaskPages, exchange: Exchange, request: Request, functions: Functions
    ) -> Response | None:
        """The answer to a request below `/tasks`, or the stream of what becomes of one task."""
        accept = request.headers.get(b"accept", b"")
        if not tasks.has_stream(request) or b"text/event-stream" not in accept:
            return await tasks.answer(functions, request)
        context = Context(identity=request.identity)
        await self._stream(exchange, request, context, "text/event-stream", tasks.follow(request))
        return None

    async def _console_page(self, page: Response, exchange: Exchange, request: Request) -> Response | None:
        """A file of the console; a program that asks at the root for no page is told where everything is."""
        if request.path == "/" and not prefers_page(request.headers.get(b"accept", b"")):
            return Response(msgspec.json.encode(self._addresses(exchange, request)), 200, [NO_STORE, _VARY])
        exchange.is_started = True
        headers = [*page.headers, *exchange.extra_headers, id_header(request)]
        await respond(exchange.send, page.status, page.body, headers, is_head=request.method == "HEAD")
        return None

    def _addresses(self, exchange: Exchange, request: Request) -> dict[str, str]:
        """Where everything is; without a token that is needed, only what is the same at every server."""
        base = f"{origin_of(exchange.scope, request.headers)}{exchange.scope.get('root_path', '')}/"
        is_anonymous = self._public is not None and request.identity is None
        named = _surfaces({}) if is_anonymous else self._functions.registry.reserved.surfaces
        return {"console": base, **{name: f"{base}{path}" for name, path in named.items()}, "health": f"{base}healthz"}

    async def _options(self, exchange: Exchange, request: Request, methods: tuple[str, ...]) -> None:
        allow = (b"allow", ", ".join(methods).encode())
        preflight = self._hosts.preflight_headers(request.headers, methods)
        await exchange.answer_empty(204, [allow, *preflight, id_header(request)])

    # mounted apps

    async def _forward_to_mount(self, mount: Mount, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a mounted app answer, after the checks of host, origin and token; its scope says who calls."""
        prefix, app = mount
        headers: Headers = dict(scope["headers"])
        if len(headers) != len(scope["headers"]):
            headers = header_table(scope)
        method = scope.get("method", "GET")  # a websocket has none
        exchange = Exchange(receive, scope=scope, send=send)
        request = Request(method, scope["path"], b"", headers, exchange, self._format)
        try:
            hosts = self._hosts
            if headers.get(b"host") not in hosts.passed or b"origin" in headers:
                exchange.extra_headers = hosts.admit(scope, headers)
            request.identity = await self._authentication.authenticate(scope, headers, receive)
        except CallError as error:
            await self._refuse_mounted(exchange, request, error)
            return
        if method == "OPTIONS" and hosts.preflight_headers(headers, _ALL_METHODS):
            await self._options(exchange, request, _ALL_METHODS)
            return
        if exchange.extra_headers:
            send = with_headers(send, exchange.extra_headers)
        verifier = None if self._authenticator is None else self._authenticator.verifier
        mounted = mounted_scope(prefix, scope, request.identity, verifier, is_closed=self._public is not None)
        await app(mounted, receive, send)

    async def _refuse_mounted(self, exchange: Exchange, request: Request, error: CallError) -> None:
        if exchange.scope["type"] != "http":
            await exchange.send({"type": "websocket.close", "code": 1008})
            return
        answer = self._functions.failure(request, error)
        scope = exchange.scope
        told = self._authentication.with_challenge(answer.headers, scope, request.headers, scope["path"])
        headers = [JSON, id_header(request), *told, *exchange.extra_headers]
        await respond(exchange.send, answer.status, answer.body, headers, is_head=request.method == "HEAD")
        self._observers.refused("http", error.code, request_id=request.known_id())


def _is_call(path: str, method: str) -> bool:
    """Whether a request is one for an operation, and so has a span."""
    return method != "OPTIONS" and (path.startswith(PREFIX) or path == "/call")


_HARMLESS: Final = ("/healthz", "/readyz", "/openapi.json")  # they run nothing, and a page cannot read them
_VARY: Final = (b"vary", b"accept")
_ALL_METHODS: Final = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


def _refill_ids() -> list[bytes]:
    """Request ids for callers who gave none, made many at once."""
    _spare_ids.extend(os.urandom(10 * 64).hex(" ", 10).encode().split())
    return _spare_ids


_spare_ids: Final[list[bytes]] = []

if hasattr(os, "register_at_fork"):  # a child that went on with its parent's ids would use them a second time
    os.register_at_fork(after_in_child=_spare_ids.clear)
