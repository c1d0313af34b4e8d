"""Operations as a CGI program: one request in the environment and on stdin, one answer on stdout, then the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import redirect_stdout
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.formats import Format, find_format
from enfold.log import Log
from enfold.operation import Context, Identity, OperationSpec, OperationType, Recording
from enfold.registry import Registry
from enfold.surfaces import reading
from enfold.surfaces.failures import RefusedError, error_headers, status_of, with_prefix
from enfold.surfaces.writing import encode_failure, encode_result

if TYPE_CHECKING:
    from enfold.provenance import Recorder

__all__ = ["refuse", "to_cgi"]

MAX_BODY: Final = 8 * 1024 * 1024

_PREFIX: Final = "functions/"
_MOST_DIGITS: Final = 100  # of a number that a web server could mean


def to_cgi(
    registry: Registry,
    *,
    format: str = "result",
    identity_variable: str = "REMOTE_USER",
    identify: Callable[[str], Identity | None] = Identity,
    max_body: int = MAX_BODY,
    recorder: Recorder | None = None,
    environ: MutableMapping[str, str] | None = None,
    stdin: BinaryIO | None = None,
    stdout: BinaryIO | None = None,
) -> int:
    """Answer the request that a web server put into the environment; the exit code is always 0.

    `identify` says who is behind the name that the web server vouches for in `identity_variable`.
    """
    if identity_variable.startswith("HTTP_"):
        raise ValueError(f"{identity_variable} is what the client says: an identity comes from the web server alone")
    variables = os.environ if environ is None else environ
    # A client's `Proxy` header would arrive under the name by which HTTP clients find their proxy.
    variables.pop("HTTP_PROXY", None)
    user = variables.get(identity_variable)
    request = Request(variables, stdin or sys.stdin.buffer, max_body)
    out = stdout or sys.stdout.buffer
    registry = registry.guarded()
    with redirect_stdout(sys.stderr):  # What a handler prints is for the web server's log.
        found = answer(registry, request, lambda: identify(user) if user else None, format, recorder)
    _send(found, out, request.method)
    return 0


def refuse() -> int:
    """Answer for a program that failed to start; why it did is for the web server's log, and not for the caller."""
    request = Request(os.environ, sys.stdin.buffer, 0)
    error = CallError("UNKNOWN_ERROR", "The server failed to start")
    _send(_failure(error, None, request, find_format("result"), "result"), sys.stdout.buffer, request.method)
    return 0


class Request:
    """One request, as RFC 3875 puts it into the environment."""

    def __init__(self, variables: Mapping[str, str], stdin: BinaryIO, max_body: int) -> None:
        self.method = variables.get("REQUEST_METHOD", "GET").upper()
        self.path = variables.get("PATH_INFO", "").strip("/")
        self.place = variables.get("SCRIPT_NAME", "")
        self.query = _bytes_of(variables.get("QUERY_STRING", ""))
        self.identity: Identity | None = None  # until the web server's word has been looked at
        self.headers = {
            name[5:].lower().replace("_", "-").encode(): _bytes_of(value)
            for name, value in variables.items()
            if name.startswith("HTTP_")
        }
        self._content_type = variables.get("CONTENT_TYPE", "")
        self._length = variables.get("CONTENT_LENGTH", "")
        self._stdin = stdin
        self._max_body = max_body

    @property
    def name(self) -> str:
        return self.path.removeprefix(_PREFIX)

    def body(self) -> dict[str, Any]:
        """The arguments on stdin; an empty body is no argument at all."""
        if self._content_type and not reading.is_json(_bytes_of(self._content_type)):
            details = {"reason": "content_type", "expected": "application/json"}
            raise RefusedError(415, "Only JSON bodies are read", details)
        return _read_object(self._bytes())

    def _bytes(self) -> bytes:
        length = self._body_length()
        if length is not None and length > self._max_body:
            raise self._too_large()
        text = self._stdin.read(self._max_body + 1 if length is None else length)
        if len(text) > self._max_body:
            raise self._too_large()
        return text

    def _body_length(self) -> int | None:
        if not self._length.strip():
            return None
        if not (self._length.isascii() and self._length.isdecimal() and len(self._length) < _MOST_DIGITS):
            raise CallError("VALIDATION_ERROR", "CONTENT_LENGTH must be a whole number")
        return int(self._length)

    def _too_large(self) -> CallError:
        return CallError("PAYLOAD_TOO_LARGE", f"The body is larger than {self._max_body} bytes")


def _bytes_of(text: str) -> bytes:
    """The bytes that the web server gave, which Python took for UTF-8."""
    return text.encode("utf-8", "surrogateescape")


class Answer(msgspec.Struct):
    """What goes back: a status, headers and JSON."""

    status: int
    body: bytes
    headers: list[tuple[str, str]]


def answer(
    registry: Registry,
    request: Request,
    identify: Callable[[], Identity | None],
    format: str,
    recorder: Recorder | None = None,
) -> Answer:
    """The answer to a request; whatever goes wrong on the way becomes one too."""
    chosen, spec = find_format(format), None
    name, request_id = format, reading.request_id(request.headers)
    try:
        name = _format_name(request) or format
        chosen = find_format(name)
        request.identity = identify()
        if request.path == "openapi.json":
            found = _document(registry, request, name)
        elif request.path == "call":
            return _answer_request(registry, request, request_id, recorder)
        else:
            spec = _find(registry, request)
            found = _call(registry, spec, request, chosen, name, request_id, recorder)
    except CallError as error:
        found = _failure(error, spec, request, chosen, name)
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the caller gets the format's error and no stack
        Log("enfold.cgi").error("The answer failed (request %s)", request_id, error=error)
        found = _failure(CallError("UNKNOWN_ERROR", "The server failed to answer"), spec, request, chosen, name)
    found.headers.append(("X-Request-Id", request_id))
    return found


def _format_name(request: Request) -> str | None:
    if request.path == "call":
        return "mcp_envelope_v0_1"
    return reading.format_name(request.headers, request.method, request.query)


def _find(registry: Registry, request: Request) -> OperationSpec:
    try:
        return registry.find(request.name)
    except CallError as error:
        raise CallError(error.code, error.message.replace("Operation not found", "Function not found", 1)) from None


def _document(registry: Registry, request: Request, format: str) -> Answer:
    from enfold.surfaces.openapi import to_openapi

    if request.method not in ("GET", "HEAD"):
        raise _wrong_method(request.method, "GET, HEAD")
    document = to_openapi(registry, format=format, identity=request.identity, servers=[request.place or "/"])
    return Answer(200, msgspec.json.encode(document, enc_hook=str), [])


def _call(
    registry: Registry,
    spec: OperationSpec,
    request: Request,
    chosen: Format,
    name: str,
    request_id: str,
    recorder: Recorder | None,
) -> Answer:
    given = _arguments(spec, request)
    context = Context(
        request_id=request_id,
        identity=request.identity,
        timeout=reading.timeout(request.headers),
        inline=True,
    )
    if recorder is not None and reading.CAPTURE_HEADER in request.headers:
        context.recording = _recording(recorder, request, name)
    headers: list[tuple[str, str]] = []
    if spec.type is OperationType.SUBSCRIPTION:
        envelope = _collected(registry, spec, given, context, headers)
    else:
        envelope = registry.execute_now(spec.id, given, context)
    if envelope.warnings:
        headers.append(("Enfold-Warnings", str(len(envelope.warnings))))
    return _success(envelope, spec, chosen, name, headers)


def _recording(recorder: Recorder, request: Request, name: str) -> Recording | None:
    from enfold.provenance import options_from_mode

    return recorder.begin(
        options_from_mode(request.headers[reading.CAPTURE_HEADER].decode("latin-1")),
        adapter="cgi",
        identity=request.identity.id if request.identity else "",
        writer=find_format(name),
    )


def _answer_request(registry: Registry, request: Request, request_id: str, recorder: Recorder | None) -> Answer:
    """Run an `mcp.request.v0.1`; its answer is always in the format that goes with it."""
    from enfold.surfaces.requests import RequestCall

    if request.method != "POST":
        raise _wrong_method(request.method, "POST")
    asked = RequestCall(
        registry,
        request.body(),
        adapter="cgi",
        identity=request.identity,
        request_id=request_id,
        timeout=reading.timeout(request.headers),
        inline=True,
        recorder=recorder,
    )
    headers = [("X-Request-Id", request_id)]
    try:
        envelope = registry.execute_now(asked.spec.id, asked.input, asked.context)
        return Answer(200, encode_result(asked.answer(envelope)), headers)
    except CallError as error:
        status = status_of(error, asked.spec, has_identity=request.identity is not None)
        told = [(key.title(), value) for key, value in error_headers(error, status)]
        return Answer(status, encode_failure(asked.refusal(error)), [*headers, *told])


def _success(
    envelope: ResponseEnvelope[Any], spec: OperationSpec, chosen: Format, name: str, headers: list[tuple[str, str]]
) -> Answer:
    told_as_failure = envelope.is_error and name == "result"
    if told_as_failure:
        headers.append(("Enfold-Code", "EXECUTION_ERROR"))
    return Answer(502 if told_as_failure else 200, encode_result(chosen.write(envelope, spec)), headers)


def _collected(
    registry: Registry, spec: OperationSpec, given: dict[str, Any], context: Context, headers: list[tuple[str, str]]
) -> ResponseEnvelope[Any]:
    import asyncio

    from enfold.surfaces.collecting import collect

    collected = asyncio.run(collect(registry, spec.id, given, context))
    if collected.truncated:
        headers.append(("Enfold-Truncated", "true"))
    return collected.envelope


def _arguments(spec: OperationSpec, request: Request) -> dict[str, Any]:
    if request.method == "POST":
        return request.body()
    reads = spec.type is not OperationType.MUTATION
    if not reads or request.method not in ("GET", "HEAD"):
        raise _wrong_method(request.method, "GET, HEAD, POST" if reads else "POST")
    from enfold.surfaces.query_string import query_reader

    return query_reader(spec)(request.query)


def _wrong_method(method: str, allowed: str) -> CallError:
    details = {"reason": "method", "expected": allowed}
    return RefusedError(405, f"{method} is not for this: use {allowed}", details, [("allow", allowed)])


def _read_object(text: bytes) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(str(error)) from None
    if not isinstance(given, dict):
        raise _invalid("the body must be an object")
    return given


def _invalid(why: str) -> CallError:
    details = {"argument": "", "reason": "type", "expected": "a JSON object"}
    return CallError("VALIDATION_ERROR", f"Invalid JSON: {why}", details)


def _failure(error: CallError, spec: OperationSpec | None, request: Request, chosen: Format, name: str) -> Answer:
    status = status_of(error, spec, has_identity=request.identity is not None)
    told = with_prefix(error, "Error: ") if name == "result" else error
    wire = chosen.write_error(told, spec.id if spec else request.name)
    return Answer(status, encode_failure(wire), [(key.title(), value) for key, value in error_headers(error, status)])


def _send(found: Answer, out: BinaryIO, method: str) -> None:
    lines = [
        f"Status: {found.status} {_phrase(found.status)}",
        "Content-Type: application/json",
        *(f"{name}: {value}" for name, value in found.headers),
    ]
    head = "\r\n".join(lines) + "\r\n\r\n"
    out.write(head.encode("latin-1", "replace") + (b"" if method == "HEAD" else found.body + b"\n"))
    out.flush()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Client Closed Request" if status == 499 else "Error"
