"""Operations as a CGI program: it reads one request from the environment and stdin, and writes the response to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, contextmanager, redirect_stdout, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import msgspec

from enfold.errors import CallError, invalid_argument, status_phrase
from enfold.formats import DEFAULT_FORMAT
from enfold.observability.log import Log
from enfold.operations import RESERVED_IDS, Identity
from enfold.runtime.application import Lifetime
from enfold.runtime.handlers import drive
from enfold.runtime.prepared import PreparedOperation
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.surfaces.endpoints import Dialect, Functions, FunctionSettings, Route, Run
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.introspection import introduce
from enfold.surfaces.request import Request, Response, read_format, report
from enfold.surfaces.responses import MAX_BODY, body_too_large
from enfold.surfaces.router import Router, operation_pages

if TYPE_CHECKING:
    from enfold.observability.records import SpanStart
    from enfold.provenance import Recorder
    from enfold.tasks import Tasks

__all__ = ["refuse", "to_cgi"]


OpenTasks: TypeAlias = "Callable[[], AbstractAsyncContextManager[Tasks | None]]"

_MAX_DIGITS: Final = 100  # of a number that a web server could mean


def _web_user(name: str) -> Identity:
    """Return the identity of a web server's user; reject a reserved id."""
    if name in RESERVED_IDS:
        raise CallError("ACCESS_DENIED", f"The id {name!r} is reserved for this server", {"reason": "reserved_id"})
    return Identity(name)


def to_cgi(
    registry: Registry,
    *,
    format: str = DEFAULT_FORMAT,
    identity_variable: str = "REMOTE_USER",
    identify: Callable[[str], Identity | None] = _web_user,
    max_body: int = MAX_BODY,
    recorder: Recorder | None = None,
    tasks: OpenTasks | None = None,
    environ: MutableMapping[str, str] | None = None,
    stdin: BinaryIO | None = None,
    stdout: BinaryIO | None = None,
) -> int:
    """Handle the request that a web server put into the environment. The exit code is always 0.

    `identify` says who is behind the name that the web server vouches for in `identity_variable`; `tasks` opens what runs
    operations that must be tasks, for as long as one of them is waited for.
    """
    if identity_variable.startswith("HTTP_"):
        raise ValueError(
            f"{identity_variable} is set by the client: take the identity from a variable of the web server, such as REMOTE_USER"
        )
    variables = os.environ if environ is None else environ
    # A client's `Proxy` header would arrive under the name by which HTTP clients find their proxy.
    variables.pop("HTTP_PROXY", None)
    introduce(registry, {"cgi": "functions/{id}", "document": "openapi.json"}, recorder)
    user = variables.get(identity_variable)
    guarded = registry.guarded(has_identities=bool(user), surface="cgi")
    functions = Functions(guarded, FunctionSettings(format, max_body, recorder), _DIALECT, _choose)
    request = _read_request(variables, stdin or sys.stdin.buffer, functions)
    watch = functions.registry.services.observers.begin(partial(_span, request))
    request.root = variables.get("SCRIPT_NAME", "")
    with _own_output(stdout) as out:
        answer = _answer(functions, request, lambda: identify(user) if user else None, tasks)
        _send(answer, request, out)
    report(watch, request, "cgi", answer)
    return 0


def _span(request: Request) -> SpanStart:
    from enfold.observability.spans import cgi_span  # where calls are traced

    return cgi_span(request.method, request.path, request.headers)


def refuse() -> int:
    """Respond for a program that failed to start; the reason is only in the web server's log."""
    functions = Functions(OperationRegistry(), FunctionSettings(DEFAULT_FORMAT, 0, None), _DIALECT)
    request = _read_request(os.environ, sys.stdin.buffer, functions)
    failure = functions.failure(request, CallError("UNKNOWN_ERROR", "The server failed to start"))
    _send(failure, request, sys.stdout.buffer)
    return 0


# --- the request --------------------------------------------------------------------------------------------------


def _read_request(variables: Mapping[str, str], stdin: BinaryIO, functions: Functions) -> Request:
    """Read one request from the environment (RFC 3875)."""
    headers = {
        name[5:].lower().replace("_", "-").encode(): _bytes_of(value)
        for name, value in variables.items()
        if name.startswith("HTTP_")
    }
    if kind := variables.get("CONTENT_TYPE"):
        headers[b"content-type"] = _bytes_of(kind)
    given = variables.get("PATH_INFO", "").strip("/")
    request = Request(
        variables.get("REQUEST_METHOD", "POST").upper(),
        f"/{given}",
        _bytes_of(variables.get("QUERY_STRING", "")),
        headers,
        _Stdin(stdin, variables.get("CONTENT_LENGTH", "")),
        functions.format,
    )
    if given not in ("openapi.json", "call") and not functions.has_route(request):
        # Here an operation may be named without `functions/` before it.
        request.path = f"/functions/{given.removeprefix('functions/')}"
    return request


def _bytes_of(text: str) -> bytes:
    """Return the bytes that the web server passed, which Python decoded as UTF-8."""
    return text.encode("utf-8", "surrogateescape")


class _Stdin:
    """The body of the request; without a length it is read to its end."""

    def __init__(self, stdin: BinaryIO, length: str) -> None:
        self._stdin = stdin
        self._length = length

    async def body(self, limit: int) -> bytes:
        length = self._content_length()
        if length is not None and length > limit:
            raise body_too_large(limit)
        text = self._stdin.read(limit + 1 if length is None else length)
        if len(text) > limit:
            raise body_too_large(limit)
        return text

    def _content_length(self) -> int | None:
        if not self._length.strip():
            return None
        if not (self._length.isascii() and self._length.isdecimal() and len(self._length) < _MAX_DIGITS):
            raise CallError("VALIDATION_ERROR", "CONTENT_LENGTH must be a whole number")
        return int(self._length)


def _read_object(text: bytes | bytearray) -> dict[str, Any]:
    """Read the arguments from stdin; an empty body has none."""
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
    return invalid_argument("", "type", "a JSON object", f"Invalid JSON: {why}")


_DIALECT: Final = Dialect(
    adapter="cgi",
    prefix="Error: ",
    missing="Function not found",
    body_types=(b"application/json", None),
    read_object=_read_object,
    runs_in_place=True,
)


# --- the answer ---------------------------------------------------------------------------------------------------


def _answer(
    functions: Functions, request: Request, identify: Callable[[], Identity | None], tasks: OpenTasks | None
) -> Response:
    """Return the response to a request; any failure becomes one too."""
    hosts = Hosts(["*"])  # which hosts there are is up to the web server; pages of other origins are refused
    try:
        read_format(request)
        hosts.check({}, request.headers)
        request.identity = identify()
        router = Router(functions, operation_pages(functions), hosts, is_closed=False)
        return _run(router, functions.registry.services.lifetime, request, tasks)
    except CallError as error:
        return functions.failure(request, error)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the caller gets the format's error and no stack
        _log_failure(request, error)
        return functions.failure(request, CallError("UNKNOWN_ERROR", "The server failed to respond"))


def _log_failure(request: Request, error: BaseException) -> None:
    own = request.known_id()
    Log("enfold.cgi").error("Failed to respond (request %s)", own, error=error, request_id=own)


def _choose(prepared: PreparedOperation) -> Run:
    return Functions.collect if prepared.is_stream else Functions.call


def _run(router: Router[Request], lifetime: Lifetime, request: Request, tasks: OpenTasks | None) -> Response:
    """Return the router's response; start an event loop only if the operation needs one."""
    found = router.find(request)
    work: Any = router.answer(found, request)
    if isinstance(found, Route):
        needs_loop, may_be_task = found.prepared.needs_loop or lifetime.needs_loop, found.spec.durable == "required"
    else:
        needs_loop = may_be_task = found.runs_operations
    answer: Response = drive(lifetime.during(_with_tasks(tasks, work) if may_be_task else work), needs_loop)
    return answer


async def _with_tasks(tasks: OpenTasks | None, work: Awaitable[Response]) -> Response:
    """Return the response of an operation that may become a task, which then runs here."""
    if tasks is None:
        return await work
    async with tasks():
        return await work


def _send(answer: Response, request: Request, out: BinaryIO) -> None:
    lines = [
        f"Status: {answer.status} {status_phrase(answer.status) or 'Error'}",
        f"Content-Type: {answer.media_type.decode()}",
        *(f"{name.decode().title()}: {value.decode('latin-1')}" for name, value in answer.headers),
        f"X-Request-Id: {request.known_id()}",
    ]
    head = "\r\n".join(lines) + "\r\n\r\n"
    end = b"\n" if answer.media_type.endswith(b"json") else b""  # a file stays as it is
    out.write(head.encode("latin-1", "replace") + (b"" if request.method == "HEAD" else answer.body + end))
    out.flush()


@contextmanager
def _own_output(given: BinaryIO | None) -> Iterator[BinaryIO]:
    """Return the stream for the response. What handlers or their child processes print goes to the web server's log."""
    with redirect_stdout(sys.stderr):
        if given is not None:
            yield given
            return
        sys.__stdout__.flush() if sys.__stdout__ else None
        own = os.dup(1)
        with suppress(OSError):  # a server may have closed stderr
            os.dup2(2, 1)
        with os.fdopen(own, "wb") as out:
            yield out
