"""One request and its answer: reading the body within its limits, and writing results and failures in a format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from enfold.envelope import LocalResponseMeta, ResponseEnvelope
from enfold.errors import CallError
from enfold.formats import Format
from enfold.operation import Identity, OperationSpec
from enfold.surfaces.failures import RefusedError, error_headers, status_of, with_prefix
from enfold.surfaces.http.guard import Header
from enfold.surfaces.http.watch import Receive, Watch
from enfold.surfaces.reading import is_json, read_object, request_id
from enfold.surfaces.writing import UNWRITABLE, encode, encode_failure, unwritable

__all__ = ["Answer", "Exchange", "Receive", "Scope", "Send", "answer_of", "rest_of_body", "start_message"]

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Answer: TypeAlias = tuple[bytes, int, Sequence[Header]]  # body, status, headers
T = TypeVar("T")

_JSON_HEADER: Final[Header] = (b"content-type", b"application/json")


class Exchange:
    """What is known about one request, and the way its answer goes out."""

    __slots__ = (
        "_is_started",
        "_send",
        "_watch",
        "extra_headers",
        "format",
        "format_name",
        "headers",
        "identity",
        "method",
        "operation",
        "receive",
        "request_id",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, format_name: str, format: Format) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self.method: str = scope["method"]
        self.headers = _joined(scope["headers"])
        self.request_id = request_id(self.headers)
        self.format_name = format_name
        self.format = format
        self.identity: Identity | None = None
        self.operation: OperationSpec | None = None
        self.extra_headers: Sequence[Header] = ()
        self._is_started = False
        self._watch: Watch | None = None

    async def watch_over(self, work: Awaitable[T], watch: Watch) -> T | None:
        """What the work gives, or None if the client has gone before; it is cancelled then."""
        self._watch = watch
        with watch:
            return await work
        return None

    async def send_result(self, work: Awaitable[Answer], watch: Watch) -> None:
        """Send what the work gives, if the client is still there."""
        answer = await self.watch_over(work, watch)
        if answer is not None:
            await self.send_json(*answer)

    # the body

    async def body(self, limit: int) -> dict[str, Any]:
        """The arguments in the body, if it is a JSON object and not too large."""
        self._check_body_headers(limit)
        body = await rest_of_body(await self.receive(), self.receive, limit)
        if self._watch is not None:
            self._watch.body_is_read()
        if body and b"content-type" not in self.headers:
            raise _unsupported("A body needs a Content-Type: application/json")
        return read_object(body)

    def _check_body_headers(self, limit: int) -> None:
        headers = self.headers
        if not is_json(headers.get(b"content-type", b"application/json")):
            raise _unsupported("The body must be application/json")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _unsupported("The body must not be compressed")
        length = headers.get(b"content-length", b"0")
        if len(length) > 15 or (length.isdigit() and int(length) > limit):
            raise _too_large(limit)

    # the answer

    def success(self, envelope: ResponseEnvelope[Any]) -> bytes:
        """A result in the format the caller asked for."""
        return self.answer(envelope)[0]

    def failure(self, error: CallError) -> bytes:
        """A failure in the format the caller asked for."""
        told = with_prefix(error, "Function error: ") if self.format_name == "result" else error
        return encode_failure(self.format.write_error(told, "" if self.operation is None else self.operation.id))

    def answer(self, envelope: ResponseEnvelope[Any]) -> Answer:
        """A result as body, status and headers."""
        return answer_of(envelope, self.operation, self.format_name, self.format)

    def refusal(self, error: CallError, wire: Any = None) -> Answer:
        """A failure as body, status and headers; `wire` where it has been written already."""
        status = status_of(error, self.operation, has_identity=self.identity is not None)
        headers = [(name.encode(), value.encode()) for name, value in error_headers(error, status)]
        return self.failure(error) if wire is None else encode_failure(wire), status, headers

    async def fail(self, error: CallError) -> None:
        """Send a failure; once an answer has begun, only the connection can tell of it."""
        if self._is_started:
            raise error
        if error.request_id is not None and b"x-request-id" not in self.headers:
            self.request_id = error.request_id  # our log has the rest of the story under this one
        await self.send_json(*self.refusal(error))

    async def send_json(self, body: bytes, status: int = 200, headers: Sequence[Header] = ()) -> None:
        self._is_started = True
        await self._send(start_message(self.request_id.encode(), len(body), status, [*headers, *self.extra_headers]))
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def send_nothing(self, status: int, headers: Sequence[Header] = ()) -> None:
        """An answer that has only headers."""
        await self._begin(status, headers)
        await self._send({"type": "http.response.body", "body": b""})

    async def begin_stream(self, media_type: str) -> None:
        kind = (b"content-type", media_type.encode())
        # Neither a cache nor a proxy in between may hold back what is meant to arrive at once.
        await self._begin(200, [kind, (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")])

    async def send_part(self, chunk: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _begin(self, status: int, headers: Sequence[Header]) -> None:
        self._is_started = True
        own = (b"x-request-id", self.request_id.encode())
        start = {"type": "http.response.start", "status": status, "headers": [*headers, own, *self.extra_headers]}
        await self._send(start)


def _joined(lines: Sequence[Header]) -> dict[bytes, bytes]:
    """The headers by name; one in several lines is the list of them."""
    headers: dict[bytes, bytes] = {}
    for name, value in lines:
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def answer_of(
    envelope: ResponseEnvelope[Any], operation: OperationSpec | None, format_name: str, format: Format
) -> Answer:
    """A result as body, status and headers; one that tells of a failure is an error where the format cannot say so."""
    try:
        body = encode(format.write(envelope, operation))
    except UNWRITABLE as error:
        raise unwritable(error) from error
    if not envelope.warnings and type(envelope.meta) is LocalResponseMeta:
        return body, 200, ()
    headers = [(b"enfold-warnings", str(len(envelope.warnings)).encode())] if envelope.warnings else []
    if format_name == "result" and envelope.is_error:
        return body, 502, [*headers, (b"enfold-code", b"EXECUTION_ERROR")]
    return body, 200, headers


def start_message(request_id: bytes, length: int, status: int, headers: Sequence[Header] = ()) -> dict[str, Any]:
    """What begins an answer in JSON."""
    own = [_JSON_HEADER, (b"content-length", b"%d" % length), (b"x-request-id", request_id)]
    return {"type": "http.response.start", "status": status, "headers": [*own, *headers] if headers else own}


async def rest_of_body(message: dict[str, Any], receive: Receive, limit: int) -> bytes | bytearray:
    """The whole body, of which a message is the first piece; never more is in memory than the limit and one piece."""
    body = bytearray()
    while message["type"] != "http.disconnect":
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return body
        message = await receive()
    raise CallError("ABORTED", "The client went away before its body was complete")


def _unsupported(message: str) -> RefusedError:
    return RefusedError(415, message, {"reason": "content_type", "expected": "application/json"})


def _too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The body is larger than {limit} bytes", {"limit": limit})
