"""The operation of a path, and what a web server needs to know about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakMethod

import msgspec
from msgspec.structs import replace

from enfold.envelope import LocalResponseMeta, ResponseEnvelope, error_of
from enfold.errors import CallError, invalid_argument, safe_code
from enfold.formats import JSON, Format, find_format
from enfold.observability.records import OK, code_of
from enfold.operations import Context, Identity, OperationSpec, OperationType
from enfold.operations.access import check_access, may_list
from enfold.operations.http_route import WITH_BODY
from enfold.operations.outcomes import envelope_of
from enfold.runtime.application import Application
from enfold.runtime.prepared import PreparedOperation
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import is_reserved
from enfold.schema.files import media_types
from enfold.schema.structs import encode
from enfold.surfaces.files import VARY, ResultFile, result_file
from enfold.surfaces.request import (
    CAPTURE_HEADER,
    KEY_HEADER,
    NOT_AN_OBJECT,
    SELECT_HEADER,
    QueryReader,
    Request,
    Response,
    accepts_json,
    invalid_body,
    is_json,
    prefers_file,
    prefers_problem,
    query_reader,
    query_value,
    read_idempotency_key,
    read_timeout,
)
from enfold.surfaces.responses import (
    UNWRITABLE,
    check_length,
    encode_failure,
    encode_result,
    error_headers,
    for_http,
    not_acceptable,
    status_of,
    unsupported_body,
    unwritable,
    with_prefix,
)
from enfold.surfaces.rest import RestPaths, merged, with_routes

# Imports inside functions: few requests need them, and CGI starts anew for each.

if TYPE_CHECKING:
    from enfold.operations.operation import RecordedRun
    from enfold.provenance import Recorder
    from enfold.surfaces.uploads import UploadReader


PREFIX: Final = "/functions/"


Run: TypeAlias = "Callable[[Functions, Route, Any], Awaitable[Response | None]]"
Choose: TypeAlias = Callable[[PreparedOperation], Run]  # how the calls of an operation are run


class Route(msgspec.Struct, eq=False):
    """An operation as a web server sees it; how its query string is read is worked out when one comes."""

    spec: OperationSpec
    prepared: PreparedOperation
    # The same for an answer in the surface's own format, where that takes structs.
    for_writing: PreparedOperation
    methods: tuple[str, ...]
    known: dict[str, Route]  # the table it stands in, which is replaced when the registry changes
    run: Run  # as a plain call, as a task, or as a stream
    is_open: bool  # nothing is required of its callers
    needs_context: bool  # its handler takes one, or something is required of its callers
    file_types: tuple[str, ...]  # media types of a result that may be sent as a file
    _read_query: QueryReader | None = None

    def read_query(self, query: bytes) -> dict[str, Any]:
        if self._read_query is None:
            self._read_query = query_reader(self.spec)
        return self._read_query(query)


class Routes:
    """The routes by path, found when they are first asked for; `known` is emptied whenever the registry changes."""

    __slots__ = ("__weakref__", "_choose", "_registry", "_rest", "_rest_paths", "_takes_structs", "known")

    def __init__(self, registry: Registry, choose: Choose, *, takes_structs: bool) -> None:
        self._registry = registry
        self._choose = choose
        self._takes_structs = takes_structs
        self.known: dict[str, Route] = {}
        self._rest: dict[tuple[str, tuple[str, ...]], Route] = {}
        self._rest_paths: RestPaths | None = None
        forget = WeakMethod(self._forget)  # A registry may outlive many apps.
        registry.watch(lambda: (living := forget()) and living())

    def _forget(self) -> None:
        self.known, self._rest, self._rest_paths = {}, {}, None

    def find(self, path: str, identity: Identity | None) -> Route:
        """Return the route of an operation's path; raise if the caller may not see the operation."""
        name = path.removeprefix(PREFIX)
        spec = self._registry.find(name, identity)
        route = self.known.get(path)
        if route is not None and route.spec is spec:
            return route
        route = self.route_to(spec)
        if self._is_same_for_all(name):
            self.known[path] = route
        return route

    def find_rest(self, request: Request) -> Route | None:
        """The REST route of a request, which gets the arguments in its path; None where there is none at this path."""
        if self._rest_paths is None:
            self._rest_paths = RestPaths(with_routes(self._registry))
        if self._rest_paths.is_empty:
            return None
        match = self._rest_paths.find(request.method, request.segments(), request.identity)
        if match is None:
            return None
        request.rest_path, request.path_arguments = match.path, match.arguments
        key = match.spec.id, match.methods
        if key not in self._rest:
            self._rest[key] = replace(self.route_to(match.spec), methods=match.methods)
        return self._rest[key]

    def _is_same_for_all(self, name: str) -> bool:
        """Whether a name means the same operation for every caller who finds one."""
        return is_reserved(name) or sum(name in (spec.id, spec.name) for spec in self._registry.list()) == 1

    def route_to(self, spec: OperationSpec) -> Route:
        prepared = self._registry.prepared(spec.id)
        writes = prepared.variant(for_writing=True) if self._takes_structs else prepared
        is_open, run = prepared.is_open, self._choose(prepared)
        needs_context = prepared.needs_context or not is_open
        types = media_types(spec.output_schema)
        return Route(spec, prepared, writes, methods_of(spec), self.known, run, is_open, needs_context, types)


def methods_of(spec: OperationSpec) -> tuple[str, ...]:
    """Return the HTTP methods of an operation: GET only if it changes nothing."""
    return ("POST", "OPTIONS") if spec.type is OperationType.MUTATION else ("GET", "HEAD", "POST", "OPTIONS")


# Headers that need a context. Nearly all requests have none of them.
OPTION_HEADERS: Final = frozenset(
    {
        b"enfold-timeout-ms",
        b"x-request-id",
        CAPTURE_HEADER,
        KEY_HEADER,
        SELECT_HEADER,
    }
)
_TAKES_JSON: Final = (None, b"*/*", b"application/json")


class Dialect(msgspec.Struct, frozen=True):
    """What differs between HTTP and CGI, which carry the same requests and answers."""

    adapter: str  # the name of the surface in provenance
    prefix: str  # before the words of a handler that failed, in formats that have no place for a code
    missing: str  # before the name of an operation that is not there
    body_types: tuple[bytes | None, ...]  # the content types of a JSON body that need no closer look
    read_object: Callable[[bytes | bytearray], dict[str, Any]]
    runs_in_place: bool = False  # a `def` runs on the thread that reads the request


class FunctionSettings(msgspec.Struct, frozen=True):
    """Settings of the MCP server."""

    format: str
    max_body: int
    recorder: Recorder | None
    title: str | None = None  # of the application, where it is not the registry's own
    version: str | None = None
    knows_callers: bool = False  # whether callers can have identities here
    has_tasks: bool = False  # whether durable operations are run as tasks for those who ask


class Functions:
    """The operations of a registry, called by method and path."""

    def __init__(
        self,
        registry: Registry,
        settings: FunctionSettings,
        dialect: Dialect,
        choose: Choose | None = None,
        follow: Run | None = None,
    ) -> None:
        """`registry` is a guarded view: every call is checked. `choose` says how operations are run: by default `call`.

        `follow` runs a call for a client that does not accept JSON; by default such a call is refused.
        """
        self.registry = registry
        self._settings = settings
        self._dialect = dialect
        self._body_types = dialect.body_types
        self._max_digits = len(str(settings.max_body))
        self._read_object = dialect.read_object
        self._records_unasked = settings.recorder is not None and settings.recorder.record != "asked"
        self._needs_context = dialect.runs_in_place or self._records_unasked
        self.format = find_format(settings.format)
        self._follow = follow or _refuse
        choose = choose or (lambda _: Functions.call)
        self.routes = Routes(registry, choose, takes_structs=self.format.takes_structs)

    @property
    def application(self) -> Application:
        """The name and version of the application, as the document has them."""
        return self.registry.application(self._settings.title, self._settings.version)

    # before the call

    def find(self, request: Request) -> Route | None:
        """Return the route of a request's path; None if it is not the path of an operation.

        A known route need not be visible to the caller: `admit` checks that.
        """
        route = self.routes.known.get(request.path)
        if route is None:
            if request.path.startswith(PREFIX):
                route = self._visible(request)
            elif (route := self.routes.find_rest(request)) is None:
                return None
        request.operation = route.prepared.operation
        return route

    def has_route(self, request: Request) -> bool:
        """Whether a REST route leads to an operation by this method and path."""
        with suppress(CallError):  # a path that cannot be read
            route = self.routes.find_rest(request)
            return route is not None and request.method in route.methods
        return False

    def _visible(self, request: Request) -> Route:
        try:
            return self.routes.find(request.path, request.identity)
        except CallError as error:
            missing = error.message.replace("Operation not found", self._dialect.missing, 1)
            raise CallError(error.code, missing) from None

    def admit(self, route: Route, request: Request) -> None:
        """Refuse a caller who may not call this operation with any input, before the body is read."""
        if request.identity is None:
            if request.method != "OPTIONS":
                check_access(route.spec, None, {})
        elif not may_list(route.spec.access_control, request.identity):
            request.operation = None
            request.operation = self._visible(request).prepared.operation  # unless there is no such operation for them

    # the call

    async def call(self, route: Route, request: Request) -> Response | None:
        """Run an operation and write its result; whatever fails is raised."""
        headers, write = request.headers, request.format.write
        accept, wants_file = headers.get(b"accept"), False
        if accept not in _TAKES_JSON:
            wants_file = bool(route.file_types) and prefers_file(headers[b"accept"], route.file_types)
            if not wants_file and not accepts_json(headers[b"accept"]):
                return await self._follow(self, route, request)
        route, given = await self.arguments(route, request)
        prepared = route.prepared
        context = None
        if route.needs_context or self._needs_context or not OPTION_HEADERS.isdisjoint(headers):
            context = self.context(route, request)
        if request.format is self.format:
            prepared = route.for_writing
        outcome = await prepared.execute(given, context)
        envelope = outcome if isinstance(outcome, ResponseEnvelope) else envelope_of(outcome)
        if wants_file and (file := result_file(envelope, route.spec)) is not None:
            return self._answer_with_file(file, envelope, request)
        try:
            text = encode(write(envelope, route.spec))
        except UNWRITABLE as error:
            raise unwritable(envelope.data, error) from error
        is_success = type(envelope.meta) is LocalResponseMeta or not envelope.is_error
        is_bare = is_success and not envelope.warnings and request.recording is None
        has_no_headers = (context is None or context.reply_headers is None) and not route.file_types
        if is_bare and has_no_headers and request.format.shape is None:
            return Response(text)
        answer = self._answer_with_headers(text, envelope, request)
        return replace(answer, headers=[*answer.headers, VARY]) if route.file_types else answer

    def answer_with_result(self, envelope: ResponseEnvelope[Any], request: Request) -> Response:
        """The answer that holds the result of a task, as a call would have it."""
        spec = request.spec
        file = None if spec is None or not _wants_file(request, spec) else result_file(envelope, spec)
        if file is not None:
            answer = self._answer_with_file(file, envelope, request)
        else:
            text = encode_result(request.format.write, envelope, spec)
            answer = self._answer_with_headers(text, envelope, request)
        if envelope.provenance is None or request.run_header():
            return answer
        run_id = (b"enfold-run-id", str(envelope.provenance.get("run_id")).encode())
        return replace(answer, headers=[*answer.headers, run_id])

    def _answer_with_headers(self, text: bytes, envelope: ResponseEnvelope[Any], request: Request) -> Response:
        """An answer whose headers report its run and warnings; where the format cannot report an error result, the status does."""
        error = error_of(envelope) if envelope.is_error else None
        request.code, request.warnings = OK if error is None else safe_code(error.code), envelope.warnings
        headers = request.reply_headers()
        if envelope.warnings:
            first = safe_code(envelope.warnings[0].code)
            headers.append((b"enfold-warnings", f'{len(envelope.warnings)}; first="{first}"'.encode()))
        if error is not None and not request.format.holds_errors:
            writer = self._failure_format(request)
            if writer.error_media_type != JSON:
                text = self._failure_text(writer, request, error, 502)
            headers.append((b"enfold-code", safe_code(error.code).encode()))
            return Response(text, 502, headers, writer.error_media_type.encode())
        if request.format.shape is not None:
            headers += _shape_headers(request.format.name, request.format.shape(envelope, request.spec))
        return Response(text, 200, headers)

    def _answer_with_file(self, file: ResultFile, envelope: ResponseEnvelope[Any], request: Request) -> Response:
        """An answer that is the file itself, for a caller who prefers its media type to JSON."""
        answer = self._answer_with_headers(file.content, envelope, request)
        own = [header for header in answer.headers if header[0] not in _OF_JSON]
        names = {name for name, _ in own}  # what the handler sets replaces ours: browsers refuse two dispositions
        headers = [*own, *(header for header in file.headers() if header[0] not in names)]
        return replace(answer, headers=headers, media_type=file.media_type.encode())

    async def arguments(self, route: Route, request: Request) -> tuple[Route, dict[str, Any]]:
        """The arguments in path, query string and body; and the route, which may be another once the body has been read.

        A JSON body for `/functions/{id}` has all arguments; beside any other body, some may be in the query string.
        """
        headers, is_rest = request.headers, request.rest_path is not None
        if request.method not in WITH_BODY:
            given = route.read_query(request.query)
            if is_rest and _has_body(headers):  # arguments in it would be ignored
                message = f"{request.method} requests cannot have a body here: pass arguments in the query string"
                raise invalid_argument("", "unknown", None, message)
            return route, merged(request.path_arguments, given, {}) if is_rest else given
        body, read_upload = await self._body(request, route.spec)
        if read_upload is not None:
            given = read_upload(body)
        else:
            given = {} if is_rest and not body.strip() else self._read_body(body)
        if is_rest or read_upload is not None:
            in_query = route.read_query(request.query)
            in_query.pop("format", None)  # that of the answer
            given = merged(request.path_arguments, in_query, given)
        if route.known is not self.routes.known:
            # The registry has changed while we waited: what required nothing of its caller may do so now.
            route = self.routes.route_to(self.registry.get_spec(route.spec.id))
        return route, given

    def context(self, route: Route, request: Request) -> Context:
        """Create the context of a call from its headers."""
        headers = request.headers
        resumes = headers.get(b"last-event-id") if route.spec.resumable else None
        context = Context(
            request_id=request.known_id(),
            identity=request.identity,
            timeout=read_timeout(headers) if b"enfold-timeout-ms" in headers else None,
            last_event_id=None if resumes is None else resumes.decode("utf-8", "replace"),
            inline=self._dialect.runs_in_place,
            idempotency_key=self._key(request) if KEY_HEADER in headers else None,
            notify=request.notify,
            invocation=request.invocation,
        )
        if SELECT_HEADER in headers:
            context.select = headers[SELECT_HEADER].decode("utf-8", "replace")
        if self._settings.recorder is not None and (self._records_unasked or CAPTURE_HEADER in headers):
            context.recording = request.recording = self._recording(route.spec, request, self._settings.recorder)
        request.context = context
        return context

    def _key(self, request: Request) -> str | None:
        """Return the idempotency key; None in a program that ends with its request."""
        key = read_idempotency_key(request.headers)
        if key is None:
            return None
        if self._dialect.runs_in_place:
            message = "Idempotency-Key requires a running server: a CGI program stores nothing"
            raise invalid_argument("Idempotency-Key", "unknown", None, message)
        from enfold.operations.idempotency import checked_key

        return checked_key(key, request.identity, vouched=self._settings.knows_callers)

    async def body_object(self, request: Request) -> dict[str, Any]:
        """The JSON object in the body, which is refused for its headers before it is read."""
        body, _ = await self._body(request)
        return self._read_body(body)

    def _read_body(self, body: bytes | bytearray) -> dict[str, Any]:
        try:
            return self._read_object(body)
        except NOT_AN_OBJECT:
            raise invalid_body(body) from None

    async def _body(
        self, request: Request, spec: OperationSpec | None = None
    ) -> tuple[bytes | bytearray, UploadReader | None]:
        """The body, and what reads one that is not JSON.

        A body of another type, a compressed one, and one that says itself that it is too large is refused unread.
        """
        headers, limit = request.headers, self._settings.max_body
        kind = headers.get(b"content-type")
        read_upload = None
        if kind not in self._body_types and (_has_body(headers) if kind is None else not is_json(kind)):
            read_upload = None if spec is None else _upload_reader(spec, kind or b"")
            if read_upload is None:
                needed = "A request body needs the header Content-Type: application/json"
                raise unsupported_body(needed if kind is None else "The body must be application/json")
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            raise unsupported_body("The body must not be compressed")
        if len(headers.get(b"content-length", b"")) >= self._max_digits:  # a shorter number cannot be too large
            check_length(headers, limit)
        body = await request.exchange.body(limit)
        request.size = len(body)
        return body, read_upload

    def _recording(self, spec: OperationSpec, request: Request, recorder: Recorder) -> RecordedRun | None:
        from enfold.provenance import options_from_mode

        return recorder.begin(
            options_from_mode(request.headers.get(CAPTURE_HEADER, b"").decode("latin-1")),
            operation=spec,
            adapter=self._dialect.adapter,
            identity=request.identity.id if request.identity else "",
            writer=request.format,
        )

    async def collect(self, route: Route, request: Request) -> Response:
        """Run a subscription and return all items as one list."""
        from enfold.surfaces.collection import collect

        route, given = await self.arguments(route, request)
        context = self.context(route, request)
        collected = await collect(self.registry, route.spec.id, given, context)
        envelope = envelope_of(collected.outcome)
        text = encode_result(request.format.write, envelope, route.spec)
        answer = self._answer_with_headers(text, envelope, request)
        return replace(answer, headers=[*answer.headers, _TRUNCATED]) if collected.truncated else answer

    async def call_request(self, request: Request) -> Response:
        """Run the `mcp.request.v0.1` in the body; its answer is always in the format that goes with it."""
        from enfold.formats.mcp_envelope_v0_1 import ANSWER_FORMAT
        from enfold.surfaces.tool_requests import RequestCall

        request.format = find_format(ANSWER_FORMAT)
        wire = await self.body_object(request)
        asked = RequestCall(
            self.registry,
            wire,
            adapter=self._dialect.adapter,
            identity=request.identity,
            request_id=request.known_id(),
            timeout=read_timeout(request.headers),
            inline=self._dialect.runs_in_place,
            recorder=self._settings.recorder,
        )
        request.operation, request.recording = self.registry.get(asked.spec.id), asked.context.recording
        asked.context.unused_key = self._key(request)
        try:
            envelope = await self.registry.execute(asked.spec.id, asked.input, asked.context)
            request.code, request.warnings = code_of(envelope), envelope.warnings
            return Response(encode_result(asked.write, envelope), headers=request.run_header())
        except CallError as error:
            return self.failure(request, error, asked.write_error(error))

    # other answers

    def search(self, request: Request) -> Awaitable[Response | None]:
        """Search the operations that the caller may call."""
        return self.call(self._search, request)

    @cached_property
    def _search(self) -> Route:
        from enfold.search.finder import search_registry  # which needs SQLite

        registry = search_registry(self.registry)
        routes = Routes(registry, lambda _: Functions.call, takes_structs=self.format.takes_structs)
        return routes.route_to(registry.get_spec("operations"))

    def document(self, request: Request, place: str) -> Response:
        """Return the OpenAPI document of the operations that the caller may call."""
        from enfold.surfaces.openapi import Excerpt, to_openapi

        document = to_openapi(
            self.registry,
            format=request.format.name,
            identity=request.identity,
            excerpt=Excerpt(
                query_value(request.query, "namespace"),
                query_value(request.query, "operation"),
                query_value(request.query, "outline") == "true",
            ),
            servers=[place or "/"],
            title=self._settings.title,
            version=self._settings.version,
            has_tasks=self._settings.has_tasks,
        )
        return Response(msgspec.json.encode(document, enc_hook=str), 200, [NO_STORE])

    def failure(self, request: Request, error: CallError, wire: Any = None) -> Response:
        """Build a failure in the caller's format; `wire` if it is written already."""
        request.code = safe_code(error.code)
        if request.request_id is None:
            request.request_id = error.request_id  # the log has the details under this id
        status = status_of(error, request.spec, has_identity=request.identity is not None)
        headers = [*error_headers(error, status), *request.reply_headers()]
        if wire is not None:
            return Response(encode_failure(wire), status, headers)
        writer = self._failure_format(request)
        text = self._failure_text(writer, request, error, status)
        return Response(text, status, headers, writer.error_media_type.encode())

    def failure_text(self, request: Request, error: CallError) -> bytes:
        """The failure of a stream that has begun, in the format of its items."""
        request.code = safe_code(error.code)
        status = status_of(error, request.spec, has_identity=request.identity is not None)
        return self._failure_text(request.format, request, error, status)

    def _failure_format(self, request: Request) -> Format:
        """The format that the caller has named, or problem details where `Accept` prefers them."""
        accept = request.headers.get(b"accept")
        if accept is None or request.format is not self.format or not prefers_problem(accept):
            return request.format
        return find_format("problem")

    def _failure_text(self, writer: Format, request: Request, error: CallError, status: int) -> bytes:
        if writer.has_prefixes:
            error = with_prefix(error, self._dialect.prefix)
        if writer.error_media_type != JSON:
            error = for_http(error, status, request.known_id())
        return encode_failure(writer.write_error(error, "" if request.spec is None else request.spec.id))


async def _refuse(functions: Functions, route: Route, request: Request) -> Response | None:  # noqa: ARG001  # as `follow`
    raise not_acceptable("application/json")


NO_STORE: Final = (b"cache-control", b"no-store")
_TRUNCATED: Final = (b"enfold-truncated", b"true")


_OF_JSON: Final = (b"enfold-format", b"enfold-shape")


def _wants_file(request: Request, spec: OperationSpec) -> bool:
    """Whether the caller prefers a media type that the operation declares for its result."""
    return prefers_file(request.headers.get(b"accept", b""), media_types(spec.output_schema))


def _upload_reader(spec: OperationSpec, content_type: bytes) -> UploadReader | None:
    from enfold.surfaces.uploads import upload_reader

    return upload_reader(spec, content_type)


def _shape_headers(format: str, shape: str) -> list[tuple[bytes, bytes]]:
    """Return the headers that say how the format wrote the value; text is wrapped in JSON here."""
    told = "result" if shape == "text" else shape
    return [(b"enfold-format", format.encode()), (b"enfold-shape", told.encode())]


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
