"""Calls by method and path: which operation, with which arguments, under which context, and how its answer is written.

HTTP and CGI are two ways to carry the request and the answer; their few differences are the fields of `Dialect`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.access import check_access, may_list
from enfold.application import Application
from enfold.envelope import LocalResponseMeta, ResponseEnvelope, error_of
from enfold.errors import CallError, invalid_argument, safe_code
from enfold.formats import find_format
from enfold.observing.call_record import code_of
from enfold.operation import Context, OperationSpec
from enfold.registry import Registry
from enfold.surfaces import reading
from enfold.surfaces.failures import (
    check_length,
    error_headers,
    not_acceptable,
    not_allowed,
    status_of,
    unsupported_body,
    with_prefix,
)
from enfold.surfaces.functions.request import FunctionAnswer, FunctionRequest
from enfold.surfaces.functions.routes import Route, Routes
from enfold.surfaces.writing import UNWRITABLE, encode, encode_failure, encode_result, unwritable

if TYPE_CHECKING:
    from enfold.operation.ports import RecordedRun
    from enfold.provenance import Recorder

# Headers by which a caller says who they are, or how they want to be answered. Nearly all requests have none of them.
OPTION_HEADERS: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"enfold-format",
        b"enfold-timeout-ms",
        b"origin",
        b"x-request-id",
        reading.CAPTURE_HEADER,
        reading.KEY_HEADER,
        reading.SELECT_HEADER,
    }
)
has_no_options: Final = OPTION_HEADERS.isdisjoint  # with the headers of a request
_TAKES_JSON: Final = (None, b"*/*", b"application/json")

_IN_REQUEST_IDS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_MAX_REQUEST_ID: Final = 128


class Dialect(msgspec.Struct, frozen=True):
    """What differs between HTTP and CGI, which carry the same requests and answers."""

    adapter: str  # the name of the surface in provenance
    prefix: str  # before the words of a handler that failed, in formats that have no place for a code
    missing: str  # before the name of an operation that is not there
    body_types: tuple[bytes | None, ...]  # the content types of a JSON body that need no closer look
    read_object: Callable[[bytes | bytearray], dict[str, Any]]
    runs_in_place: bool = False  # a `def` runs on the thread that reads the request


class FunctionSettings(msgspec.Struct, frozen=True):
    """What the operator chose."""

    format: str
    max_body: int
    recorder: Recorder | None
    title: str | None = None  # of the application, where it is not the registry's own
    version: str | None = None
    knows_callers: bool = False  # whether callers can have identities here
    has_tasks: bool = False  # whether durable operations are run as tasks for those who ask


class Functions:
    """The operations of a registry, called by method and path."""

    def __init__(self, registry: Registry, settings: FunctionSettings, dialect: Dialect) -> None:
        """`registry` is a guarded view: every call is checked."""
        self.registry = registry
        self._settings = settings
        self._dialect = dialect
        self._body_types = dialect.body_types
        self._read_object = dialect.read_object
        self._records_unasked = settings.recorder is not None and settings.recorder.record != "asked"
        self._needs_context = dialect.runs_in_place or self._records_unasked
        # A length of fewer digits than the limit's is below it.
        self._most_digits = len(str(settings.max_body))
        self.format = find_format(settings.format)
        self.routes = Routes(registry, takes_structs=self.format.takes_structs)

    @property
    def application(self) -> Application:
        """The name and version of the application, as the document has them."""
        return self.registry.application(self._settings.title, self._settings.version)

    # before the call

    def read_options(self, request: FunctionRequest) -> None:
        """Set the id that the caller gave to the request, and the format that they want their answer in."""
        headers = request.headers
        given = headers.get(b"x-request-id")
        # What is made of these characters alone can go into every log and header.
        if given and len(given) <= _MAX_REQUEST_ID and not given.translate(None, _IN_REQUEST_IDS):
            request.request_id = given.decode()
        if request.query or b"enfold-format" in headers:
            name = reading.format_name(headers, request.method, request.query)
            if name is not None:
                request.format = find_format(name)

    def find(self, request: FunctionRequest) -> Route | None:
        """The route of a request's path, for one of its methods; None where it is not the path of an operation."""
        try:
            route = self.routes.find(request.path, request.identity)
        except CallError as error:
            raise CallError(
                error.code, error.message.replace("Operation not found", self._dialect.missing, 1)
            ) from None
        if route is not None:
            request.operation = route.prepared.operation
            if request.method not in route.methods:
                raise not_allowed(request.method, route.methods)
        return route

    def admit(self, route: Route, request: FunctionRequest) -> None:
        """Refuse who may not call this operation with any input, before a body is read for nothing."""
        if request.identity is None:
            check_access(route.spec, None, {})
        elif not may_list(route.spec.access_control, request.identity):
            request.operation = None
            self.find(request)  # which says that there is no such operation

    # the call

    async def call(self, route: Route, request: FunctionRequest) -> FunctionAnswer:
        """Run an operation and write its result; whatever fails is raised."""
        headers, prepared = request.headers, route.prepared
        read, write = self._read_object, request.format.write  # to call a field takes longer
        if headers.get(b"accept") not in _TAKES_JSON and not reading.accepts_json(headers[b"accept"]):
            raise not_acceptable("application/json")
        if request.method == "POST":
            if (
                headers.get(b"content-type") not in self._body_types
                or (request.has_options and b"content-encoding" in headers)
                or len(headers.get(b"content-length", b"")) >= self._most_digits
            ):
                self._check_body(request)
            body = await request.source.body(self._settings.max_body)
            request.size = len(body)
            try:
                given = read(body)
            except reading.NOT_AN_OBJECT:
                raise reading.invalid_body(body) from None
            if route.known is not self.routes.known:
                # The registry has changed while we waited: what required nothing of its caller may do so now.
                route = self.routes.route_to(self.registry.get_spec(route.spec.id))
                prepared = route.prepared
        else:
            given = route.read_query(request.query)
        context = None
        if request.has_options or route.needs_context or self._needs_context:
            context = self.context(route, request)
        if request.format is self.format:
            prepared = route.for_writing
        envelope = await prepared.execute(given, context)
        try:
            text = encode(write(envelope, route.spec))
        except UNWRITABLE as error:
            raise unwritable(envelope.data, error) from error
        is_plain = not envelope.warnings and type(envelope.meta) is LocalResponseMeta and request.recording is None
        if is_plain and (context is None or context.reply_headers is None):
            return FunctionAnswer(text)
        return _answer_with_headers(text, envelope, request)

    def answer_with_result(self, envelope: ResponseEnvelope[Any], request: FunctionRequest) -> FunctionAnswer:
        """The answer that holds the result of a task, as a call would have it."""
        answer = _answer_with_headers(encode_result(request.format.write, envelope, request.spec), envelope, request)
        if envelope.provenance is None or request.run_header():
            return answer
        run_id = (b"enfold-run-id", str(envelope.provenance.get("run_id")).encode())
        return msgspec.structs.replace(answer, headers=[*answer.headers, run_id])

    async def arguments(self, route: Route, request: FunctionRequest) -> dict[str, Any]:
        """The arguments in the body, or in the query string."""
        if request.method != "POST":
            return route.read_query(request.query)
        return await self.body_object(request)

    def context(self, route: Route, request: FunctionRequest) -> Context:
        """The context of a call, of what the headers ask for."""
        headers = request.headers
        resumes = headers.get(b"last-event-id") if route.spec.resumable else None
        context = Context(
            request_id=request.request_id or request.known_id(),
            identity=request.identity,
            timeout=reading.timeout(headers) if b"enfold-timeout-ms" in headers else None,
            last_event_id=None if resumes is None else resumes.decode("utf-8", "replace"),
            inline=self._dialect.runs_in_place,
            idempotency_key=self._key(request) if reading.KEY_HEADER in headers else None,
        )
        if reading.SELECT_HEADER in headers:
            context.select = headers[reading.SELECT_HEADER].decode("utf-8", "replace")
        if self._settings.recorder is not None and (self._records_unasked or reading.CAPTURE_HEADER in headers):
            context.recording = request.recording = self._recording(route.spec, request, self._settings.recorder)
        request.context = context
        return context

    def _key(self, request: FunctionRequest) -> str | None:
        """The key under which the call may be repeated; a program that ends with its request keeps nothing."""
        key = reading.idempotency_key(request.headers)
        if key is None:
            return None
        if self._dialect.runs_in_place:
            message = "Idempotency-Key needs a server that stays: nothing is kept here"
            raise invalid_argument("Idempotency-Key", "unknown", None, message)
        from enfold.operation.repeats import checked_key

        return checked_key(key, request.identity, vouched=self._settings.knows_callers)

    async def body_object(self, request: FunctionRequest) -> dict[str, Any]:
        """The JSON object in the body."""
        self._check_body(request)
        body = await request.source.body(self._settings.max_body)
        request.size = len(body)
        try:
            return self._read_object(body)
        except reading.NOT_AN_OBJECT:
            raise reading.invalid_body(body) from None

    def _check_body(self, request: FunctionRequest) -> None:
        """Refuse a body for its headers, before it is read: it is of another type, compressed, or too large."""
        headers = request.headers
        kind = headers.get(b"content-type")
        if kind is None and None not in self._body_types and _has_body(headers):
            raise unsupported_body("A body needs a Content-Type: application/json")
        if kind is not None and not reading.is_json(kind):
            raise unsupported_body()
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise unsupported_body("The body must not be compressed")
        check_length(headers, self._settings.max_body)

    def _recording(self, spec: OperationSpec, request: FunctionRequest, recorder: Recorder) -> RecordedRun | None:
        from enfold.provenance import options_from_mode

        return recorder.begin(
            options_from_mode(request.headers.get(reading.CAPTURE_HEADER, b"").decode("latin-1")),
            operation=spec,
            adapter=self._dialect.adapter,
            identity=request.identity.id if request.identity else "",
            writer=request.format,
        )

    async def collect(self, route: Route, request: FunctionRequest) -> FunctionAnswer:
        """A subscription as one answer, the list of its items."""
        from enfold.surfaces.collecting import collect

        given, context = await self.arguments(route, request), self.context(route, request)
        collected = await collect(self.registry, route.spec.id, given, context)
        text = encode_result(request.format.write, collected.envelope, route.spec)
        answer = _answer_with_headers(text, collected.envelope, request)
        return msgspec.structs.replace(answer, headers=[*answer.headers, _TRUNCATED]) if collected.truncated else answer

    async def call_request(self, request: FunctionRequest) -> FunctionAnswer:
        """Run the `mcp.request.v0.1` in the body; its answer is always in the format that goes with it."""
        from enfold.formats.mcp_request_v0_1 import ANSWER_FORMAT
        from enfold.surfaces.tool_requests import RequestCall

        if request.method != "POST":
            raise not_allowed(request.method, ("POST", "OPTIONS"))
        request.format = find_format(ANSWER_FORMAT)
        wire = await self.body_object(request)
        asked = RequestCall(
            self.registry,
            wire,
            adapter=self._dialect.adapter,
            identity=request.identity,
            request_id=request.known_id(),
            timeout=reading.timeout(request.headers),
            inline=self._dialect.runs_in_place,
            recorder=self._settings.recorder,
        )
        request.operation, request.recording = self.registry.get(asked.spec.id), asked.context.recording
        asked.context.unused_key = self._key(request)
        try:
            envelope = await self.registry.execute(asked.spec.id, asked.input, asked.context)
            request.code, request.warnings = code_of(envelope), envelope.warnings
            return FunctionAnswer(encode_result(asked.write, envelope), headers=request.run_header())
        except CallError as error:
            return self.failure(request, error, asked.write_error(error))

    # other answers

    def search(self, request: FunctionRequest) -> Awaitable[FunctionAnswer]:
        """The operations that fit a query, of those that the caller may call."""
        return self.call(self._search, request)

    @cached_property
    def _search(self) -> Route:
        from enfold.surfaces.functions.searching import search_registry  # which a server nobody searches can do without

        registry = search_registry(self.registry)
        return Routes(registry, takes_structs=self.format.takes_structs).route_to(registry.get_spec("operations"))

    def document(self, request: FunctionRequest, place: str) -> FunctionAnswer:
        """The OpenAPI document of what the caller may call."""
        from enfold.surfaces.openapi import to_openapi

        document = to_openapi(
            self.registry,
            format=request.format.name,
            identity=request.identity,
            namespace=reading.query_value(request.query, "namespace"),
            operation=reading.query_value(request.query, "operation"),
            outline=reading.query_value(request.query, "outline") == "true",
            servers=[place or "/"],
            title=self._settings.title,
            version=self._settings.version,
            has_tasks=self._settings.has_tasks,
        )
        return FunctionAnswer(msgspec.json.encode(document, enc_hook=str), 200, [NO_STORE])

    def failure(self, request: FunctionRequest, error: CallError, wire: Any = None) -> FunctionAnswer:
        """A failure in the format that the caller asked for; `wire` where it has been written already."""
        request.code = safe_code(error.code)
        if request.request_id is None:
            request.request_id = error.request_id  # our log has the rest of the story under this one
        status = status_of(error, request.spec, has_identity=request.identity is not None)
        text = self.failure_text(request, error) if wire is None else encode_failure(wire)
        return FunctionAnswer(text, status, [*error_headers(error, status), *request.reply_headers()])

    def failure_text(self, request: FunctionRequest, error: CallError) -> bytes:
        request.code = safe_code(error.code)
        shown = with_prefix(error, self._dialect.prefix) if request.format.has_prefixes else error
        return encode_failure(request.format.write_error(shown, "" if request.spec is None else request.spec.id))


NO_STORE: Final = (b"cache-control", b"no-store")
_TRUNCATED: Final = (b"enfold-truncated", b"true")


def _answer_with_headers(text: bytes, envelope: ResponseEnvelope[Any], request: FunctionRequest) -> FunctionAnswer:
    """An answer whose headers tell of its run and of warnings; where the format cannot tell of an error result, the status does."""
    request.code, request.warnings = code_of(envelope), envelope.warnings
    headers = request.reply_headers()
    if envelope.warnings:
        first = safe_code(envelope.warnings[0].code)
        headers.append((b"enfold-warnings", f'{len(envelope.warnings)}; first="{first}"'.encode()))
    if envelope.is_error and not request.format.holds_errors:
        return FunctionAnswer(text, 502, [*headers, (b"enfold-code", safe_code(error_of(envelope).code).encode())])
    return FunctionAnswer(text, 200, headers)


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
