"""The ASGI app: what is asked for, by whom, and which part answers."""

from __future__ import annotations

from asyncio import CancelledError, current_task
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.access import check_access, may_list
from enfold.errors import CallError
from enfold.formats import find_format
from enfold.log import Log
from enfold.operation import Context, OperationSpec, Policy, Recording, new_request_id
from enfold.registry import Registry
from enfold.surfaces import reading
from enfold.surfaces.failures import RefusedError
from enfold.surfaces.http.exchange import Answer, Exchange, Receive, Scope, Send, answer_of, rest_of_body, start_message
from enfold.surfaces.http.guard import Guard, Header
from enfold.surfaces.http.lifespan import ASGIApp, run_lifespan
from enfold.surfaces.http.mounts import Mount, below, close_websocket, mount_of, own_path, with_headers
from enfold.surfaces.http.plain import plain_route
from enfold.surfaces.http.routes import Route, Routes
from enfold.surfaces.http.stream import Envelopes, Stream
from enfold.surfaces.http.watch import Ended, Watch, Watchman, late_body
from enfold.surfaces.openapi import to_openapi
from enfold.surfaces.writing import encode_result
from enfold.tokens import Verifier, bearer_token

if TYPE_CHECKING:
    from enfold.provenance import Recorder

__all__ = ["HTTPApp", "to_http"]

MAX_BODY: Final = 8 * 1024 * 1024
BODY_TIMEOUT: Final = 30.0
HEARTBEAT: Final = 15.0

_NO_STORE: Final[Header] = (b"cache-control", b"no-store")

_log: Final = Log("enfold.http")


def to_http(
    registry: Registry,
    *,
    format: str = "result",
    tokens: Verifier | None = None,
    mounts: Mapping[str, ASGIApp] | None = None,
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    max_body: int = MAX_BODY,
    body_timeout: float = BODY_TIMEOUT,
    heartbeat: float = HEARTBEAT,
    expose_errors: bool = True,
    recorder: Recorder | None = None,
    title: str = "Enfold",
    version: str = "1.0.0",
) -> HTTPApp:
    """Serve a registry as an ASGI app.

    `mounts` are other ASGI apps by path; `allowed_hosts` the names this server goes by (the loopback and its own
    address if none are given); `allowed_origins` the origins whose pages may call it, which switches CORS on;
    `recorder` captures provenance for callers who ask for it.
    """
    settings = Settings(
        format=format,
        tokens=tokens,
        mounts=tuple((f"/{path.strip('/')}".rstrip("/"), app) for path, app in (mounts or {}).items()),
        max_body=max_body,
        body_timeout=body_timeout,
        heartbeat=heartbeat,
        recorder=recorder,
        title=title,
        version=version,
    )
    served = registry if expose_errors else registry.with_policy(Policy(expose_errors=False))
    return HTTPApp(served.guarded(), settings, Guard(allowed_hosts, allowed_origins))


class Settings(msgspec.Struct, frozen=True):
    """What the operator chose."""

    format: str
    tokens: Any  # a Verifier, or None
    mounts: tuple[tuple[str, Any], ...]
    max_body: int
    body_timeout: float
    heartbeat: float
    recorder: Any  # a provenance.Recorder, or None
    title: str
    version: str


class HTTPApp:
    """A registry over HTTP. It lives as long as its server; `stop` ends the streams, so that the server can end."""

    def __init__(self, registry: Registry, settings: Settings, guard: Guard) -> None:
        self._registry = registry
        self._settings = settings
        self._guard = guard
        self._format = find_format(settings.format)
        # The format `result` does not look into what it wraps.
        self._watchman = Watchman(settings.body_timeout)
        self._routes = Routes(registry, takes_structs=settings.format == "result")
        self._streams: set[Stream] = set()
        self._is_stopping = False
        # A plain call that succeeded is in no log: its id only has to be its own.
        self._plain_id = b"%s%%x" % new_request_id()[:24].encode()
        self._plain_numbers = count()
        # A length of fewer digits than the limit is below it. With origins, every answer says that it depends on them.
        self._plain_digits = -1 if guard.has_origins else len(str(settings.max_body)) - 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a plain call with as little as keeps the promise; anything else, and every failure, has its own way."""
        route = plain_route(scope, self._routes, self._guard, self._plain_digits)
        if route is None:
            await self._serve(scope, receive, send)
            return
        task, watchman = current_task(), self._watchman
        if task is None:
            raise RuntimeError("an ASGI app runs in a task")
        watchman.calls[task] = None
        if not watchman.is_awake:
            watchman.wake()
        failed: BaseException | None = None
        headers: Sequence[Header]
        try:
            message = await receive()
            body = message.get("body")
            if body is None or message.get("more_body"):
                body = await rest_of_body(message, receive, self._settings.max_body)
            watchman.calls[task] = receive
            given = reading.read_object(body)
            if route.execute is not None and self._routes.known.get(scope["path"]) is route:
                envelope = await route.execute(given, None)
            else:
                # The registry has changed while we waited: what required nothing of its caller may do so now.
                envelope = await self._registry.execute(route.id, given, Context())
            if isinstance(envelope.data, msgspec.Struct):  # only a clean result of our own comes as one
                text, status, headers = encode_result(self._format.write(envelope, route.spec)), 200, ()
            else:
                text, status, headers = answer_of(envelope, route.spec, self._settings.format, self._format)
        except (Exception, CancelledError) as error:  # noqa: BLE001  # it is told, and logged, where all are
            failed = error
        finally:
            del watchman.calls[task]
            ended = watchman.leave(task) if watchman.cares else None
        if failed is not None:
            await self._fail_plain(self._exchange(scope, receive, send, route), failed, ended)
            return
        await send(start_message(self._plain_id % next(self._plain_numbers), len(text), status, headers))
        await send({"type": "http.response.body", "body": text})

    async def _fail_plain(self, exchange: Exchange, error: BaseException, ended: Ended | None) -> None:
        """Tell of a failure; a client who has gone hears nothing, and who gave up on us is told by the exception."""
        if isinstance(error, Exception):
            await self._fail(exchange, error)
        elif ended is None:
            raise error
        elif ended == "late":
            await exchange.fail(late_body())

    def stop(self) -> None:
        """End every stream with an error that says why; calls go on to their end."""
        self._is_stopping = True
        for stream in list(self._streams):
            stream.stop()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await run_lifespan(scope, receive, send, [app for _, app in self._settings.mounts], self.stop)
        elif (mount := mount_of(self._settings.mounts, scope)) is not None:
            await self._pass_on(mount, scope, receive, send)
        elif scope["type"] == "http":
            exchange = self._exchange(scope, receive, send)
            await self._guarded(exchange, self._answer(exchange))
        else:
            await close_websocket(receive, send)

    # one request

    def _exchange(self, scope: Scope, receive: Receive, send: Send, route: Route | None = None) -> Exchange:
        exchange = Exchange(scope, receive, send, self._settings.format, self._format)
        if route is not None:
            exchange.operation = route.spec
        return exchange

    async def _guarded(self, exchange: Exchange, answer: Awaitable[None]) -> None:
        try:
            await answer
        except Exception as error:  # noqa: BLE001  # whatever went wrong, the caller gets the format's error and no stack
            await self._fail(exchange, error)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, CallError):
            await exchange.fail(error)
            return
        _log.error("The answer failed (request %s)", exchange.request_id, error=error)
        await exchange.fail(CallError("UNKNOWN_ERROR", "The server failed to answer"))

    async def _answer(self, exchange: Exchange) -> None:
        self._admit(exchange)
        self._choose_format(exchange)
        route = self._routes.find(own_path(exchange.scope))
        if route is None:
            await self._answer_page(exchange)
            return
        exchange.operation = route.spec
        if exchange.method not in route.methods:
            raise _not_allowed(exchange.method, route.methods)
        if exchange.method == "OPTIONS":
            await self._answer_options(exchange, route.methods)
            return
        self._identify(exchange)
        if not route.is_open and not may_list(route.spec.access_control, exchange.identity):
            check_access(route.spec, exchange.identity, {})  # raises, before a body is read for nothing
        await (self._follow if route.is_stream else self._call)(exchange, route)

    def _admit(self, exchange: Exchange) -> None:
        self._guard.check(exchange.scope, exchange.headers)
        if self._guard.has_origins:
            exchange.extra_headers = self._guard.cors_headers(exchange.headers)

    def _choose_format(self, exchange: Exchange) -> None:
        name = reading.format_name(exchange.headers, exchange.method, exchange.scope["query_string"])
        if name is not None:
            exchange.format = find_format(name)
            exchange.format_name = name

    def _identify(self, exchange: Exchange) -> None:
        """Who calls; a token that stands for nobody is refused even where none is needed."""
        tokens: Verifier | None = self._settings.tokens
        header = exchange.headers.get(b"authorization")
        if header is None or tokens is None:
            return
        token = bearer_token(header.decode("latin-1"))
        exchange.identity = None if token is None else tokens.identify(token)
        if exchange.identity is None:
            raise CallError("ACCESS_DENIED", "The token is not valid", {"reason": "invalid_token"})

    # operations

    async def _call(self, exchange: Exchange, route: Route) -> None:
        accept = exchange.headers.get(b"accept", b"*/*")
        if not reading.accepts_json(accept):
            raise _not_acceptable("application/json")
        await exchange.send_result(self._result(exchange, route), self._watch(exchange))

    def _watch(self, exchange: Exchange) -> Watch:
        return Watch(exchange.receive, self._settings.body_timeout if exchange.method == "POST" else None)

    async def _result(self, exchange: Exchange, route: Route) -> Answer:
        context = Context(
            request_id=exchange.request_id, identity=exchange.identity, timeout=reading.timeout(exchange.headers)
        )
        if self._settings.recorder is not None and reading.CAPTURE_HEADER in exchange.headers:
            context.recording = self._recording(exchange)
        given = await self._arguments(exchange, route)
        return exchange.answer(await self._registry.execute(route.id, given, context))

    async def _arguments(self, exchange: Exchange, route: Route) -> dict[str, Any]:
        if exchange.method == "POST":
            return await exchange.body(self._settings.max_body)
        return route.read_query(exchange.scope["query_string"])

    def _recording(self, exchange: Exchange) -> Recording | None:
        from enfold.provenance import options_from_mode

        recorder: Recorder = self._settings.recorder
        return recorder.begin(
            options_from_mode(exchange.headers[reading.CAPTURE_HEADER].decode("latin-1")),
            adapter="http",
            identity=exchange.identity.id if exchange.identity else "",
            writer=find_format(exchange.format_name),
        )

    async def _follow(self, exchange: Exchange, route: Route) -> None:
        media_type = reading.stream_type(exchange.headers.get(b"accept"))
        if media_type is None:
            raise _not_acceptable("text/event-stream or application/x-ndjson")
        if self._is_stopping:
            raise CallError("UNAVAILABLE", "The server is shutting down")
        context = self._stream_context(exchange, route.spec)
        given = await exchange.watch_over(self._arguments(exchange, route), self._watch(exchange))
        if given is None:
            return
        if exchange.method == "HEAD":
            check_access(route.spec, exchange.identity, given)
            await exchange.send_nothing(200, [(b"content-type", media_type.encode()), _NO_STORE])
            return
        await self._run_stream(
            Stream(exchange, media_type, context, resumable=route.spec.resumable, heartbeat=self._settings.heartbeat),
            self._registry.subscribe(route.id, given, context),
        )

    def _stream_context(self, exchange: Exchange, spec: OperationSpec) -> Context:
        last_event_id = exchange.headers.get(b"last-event-id") if spec.resumable else None
        return Context(
            request_id=exchange.request_id,
            identity=exchange.identity,
            timeout=reading.timeout(exchange.headers),
            last_event_id=None if last_event_id is None else last_event_id.decode("utf-8", "replace"),
        )

    async def _run_stream(self, stream: Stream, items: Envelopes) -> None:
        self._streams.add(stream)
        try:
            await stream.run(items)
        finally:
            self._streams.discard(stream)

    # pages

    async def _answer_page(self, exchange: Exchange) -> None:
        path = own_path(exchange.scope)
        methods = _PAGES.get(path)
        if methods is None:
            raise CallError("OPERATION_NOT_FOUND", f"There is nothing at {path[:200]}")
        if exchange.method not in methods:
            raise _not_allowed(exchange.method, methods)
        if exchange.method == "OPTIONS":
            await self._answer_options(exchange, methods)
        elif path == "/healthz":
            await exchange.send_json(b'{"status":"ok"}', 200, [_NO_STORE])
        else:
            self._identify(exchange)
            await (self._answer_request if path == "/call" else self._answer_document)(exchange)

    async def _answer_document(self, exchange: Exchange) -> None:
        await exchange.send_json(self._document(exchange), 200, [_NO_STORE])

    def _document(self, exchange: Exchange) -> bytes:
        document = to_openapi(
            self._registry,
            format=exchange.format_name,
            identity=exchange.identity,
            servers=[exchange.scope.get("root_path") or "/"],
            title=self._settings.title,
            version=self._settings.version,
        )
        return msgspec.json.encode(document, enc_hook=str)

    async def _answer_request(self, exchange: Exchange) -> None:
        """Run an `mcp.request.v0.1`; its answer is always in the format that goes with it."""
        exchange.format_name = "mcp_envelope_v0_1"
        exchange.format = find_format(exchange.format_name)
        await exchange.send_result(self._run_request(exchange), self._watch(exchange))

    async def _run_request(self, exchange: Exchange) -> Answer:
        from enfold.surfaces.requests import RequestCall

        wire = await exchange.body(self._settings.max_body)
        asked = RequestCall(
            self._registry,
            wire,
            adapter="http",
            identity=exchange.identity,
            request_id=exchange.request_id,
            timeout=reading.timeout(exchange.headers),
            recorder=self._settings.recorder,
        )
        exchange.operation = asked.spec
        try:
            envelope = await self._registry.execute(asked.spec.id, asked.input, asked.context)
            return encode_result(asked.answer(envelope)), 200, ()
        except CallError as error:
            return exchange.refusal(error, asked.refusal(error))

    async def _answer_options(self, exchange: Exchange, methods: tuple[str, ...]) -> None:
        allow = (b"allow", ", ".join(methods).encode())
        await exchange.send_nothing(204, [allow, *self._guard.preflight_headers(exchange.headers)])

    # mounted apps

    async def _pass_on(self, mount: Mount, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a mounted app answer, after the checks that all requests go through; it is told who calls."""
        prefix, app = mount
        is_http = scope["type"] == "http"
        exchange = self._exchange(scope if is_http else {**scope, "method": "GET"}, receive, send)
        try:
            self._admit(exchange)
            self._identify(exchange)
        except CallError as error:
            await (exchange.fail(error) if is_http else close_websocket(receive, send))
            return
        if exchange.method == "OPTIONS" and self._guard.preflight_headers(exchange.headers):
            await self._answer_options(exchange, _ALL_METHODS)
            return
        way_out = with_headers(send, exchange.extra_headers) if is_http else send
        await app(below(prefix, scope, exchange.identity), receive, way_out)


_PAGES: Final = {
    "/healthz": ("GET", "HEAD", "OPTIONS"),
    "/openapi.json": ("GET", "HEAD", "OPTIONS"),
    "/call": ("POST", "OPTIONS"),
}
_ALL_METHODS: Final = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


def _not_allowed(method: str, methods: tuple[str, ...]) -> RefusedError:
    allow = ", ".join(methods)
    details = {"reason": "method", "expected": allow}
    return RefusedError(405, f"The method {method[:20]} is not allowed here: use {allow}", details, [("allow", allow)])


def _not_acceptable(offered: str) -> RefusedError:
    return RefusedError(
        406, f"The answer is {offered}, which Accept does not allow", {"reason": "accept", "expected": offered}
    )
