"""A request and its response, shared by HTTP and CGI, and the record of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from enfold.envelope import ResultWarning
from enfold.errors import CallError, invalid_argument
from enfold.formats import Format, find_format
from enfold.observability.records import OK
from enfold.operations import Identity, Operation, OperationSpec, new_request_id
from enfold.operations.context import DIRECT, Invocation
from enfold.operations.http_route import WITH_BODY
from enfold.schema.nodes import Node, TooLargeError, read_nodes

if TYPE_CHECKING:
    from enfold.observability.observers import Watch
    from enfold.observability.records import CallRecord
    from enfold.operations import Context
    from enfold.operations.context import Notify
    from enfold.operations.operation import RecordedRun


class Exchange(Protocol):
    """The way that a request came by, as its handlers need it: its body."""

    async def body(self, limit: int) -> bytes | bytearray:
        """Read the whole body; raise PAYLOAD_TOO_LARGE if it exceeds the limit."""


class Response(msgspec.Struct, frozen=True):
    """What goes back: a body, a status, and headers besides those of every answer."""

    body: bytes
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    media_type: bytes = b"application/json"


class Request(msgspec.Struct, eq=False):
    """What is asked, by whom, and in which format the answer goes."""

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    exchange: Exchange
    format: Format
    root: str = ""  # the path below which the client sees the server
    identity: Identity | None = None
    operation: Operation | None = None
    recording: RecordedRun | None = None  # of this call, where it is recorded
    context: Context | None = None  # of this call, where it needs one
    rest_path: str | None = None  # of the REST route that it came by, as the route has it
    path_arguments: dict[str, str] = {}  # those in the path of a REST route
    notify: Notify | None = None  # gets progress and log messages of the call
    invocation: Invocation = DIRECT  # who answers its questions
    # Set by `known_id` on first use.
    request_id: str | None = None
    # For observers: the size of its body, how it ended.
    size: int | None = None
    sent: int | None = None  # of a stream: bytes, and items
    items: int | None = None
    code: str = OK
    warnings: Sequence[ResultWarning] = ()

    @property
    def spec(self) -> OperationSpec | None:
        return None if self.operation is None else self.operation.spec

    def segments(self) -> list[str]:
        """The parts of the path, decoded."""
        try:
            self.path.encode()  # CGI passes bytes that are not UTF-8 as surrogates
        except UnicodeEncodeError:
            raise unreadable_path() from None
        return self.path[1:].split("/")

    def run_header(self) -> list[tuple[bytes, bytes]]:
        """Return the header with the run id under which the call was recorded."""
        if self.recording is None or not self.recording.is_kept:
            return []
        return [(b"enfold-run-id", self.recording.run_id.encode())]

    def reply_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that the call adds to its response: its run id, and those of handler and middleware."""
        added = {} if self.context is None else self.context.reply_headers or {}
        return [*self.run_header(), *((name.encode(), value.encode()) for name, value in added.items())]

    def known_id(self) -> str:
        """The id of this request, for its context, its log and its answer: that of its caller, or a new one."""
        if self.request_id is None:
            given = self.headers.get(b"x-request-id")
            self.request_id = new_request_id() if given is None else _checked_id(given) or new_request_id()
        return self.request_id


def unreadable_path() -> CallError:
    return invalid_argument("", "type", "UTF-8 text", "The path cannot be read")


def _checked_id(given: bytes) -> str | None:
    # What is made of these characters alone can go into every log and header.
    is_fit = 0 < len(given) <= _MAX_REQUEST_ID and not given.translate(None, _IN_REQUEST_IDS)
    return given.decode() if is_fit else None


def id_header(request: Request) -> tuple[bytes, bytes]:
    return b"x-request-id", request.known_id().encode()


def report(watch: Watch, request: Request, surface: str, answer: Response | None) -> None:
    """Report a request that has ended to the observers; one for a page is no call, and leaves no record."""
    if (request.operation is None and request.code == OK) or request.method == "OPTIONS":
        watch.drop()
        return
    watch.code, watch.warnings, watch.items = request.code, request.warnings, request.items
    watch.request_bytes, watch.response_bytes = request.size, request.sent if answer is None else len(answer.body)
    watch.request_id = request.known_id()

    def outcome(record: CallRecord) -> Mapping[str, Any]:
        from enfold.observability.spans import http_outcome  # where calls are traced

        return http_outcome(request.method, record, None if answer is None else answer.status, request.rest_path)

    watch.end(surface, request.operation, None, request.identity, outcome)


Headers: TypeAlias = Mapping[bytes, bytes]
StreamType: TypeAlias = Literal["text/event-stream", "application/x-ndjson"]

_IN_REQUEST_IDS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_MAX_REQUEST_ID: Final = 128

CAPTURE_HEADER: Final = b"enfold-capture-provenance"
KEY_HEADER: Final = b"idempotency-key"
SELECT_HEADER: Final = b"enfold-select"

PROBLEM: Final = "application/problem+json"

MAX_WAIT: Final = 60.0  # seconds that a caller may prefer to wait for a better answer

_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MILLISECONDS: Final = re.compile(rb"0{0,20}[1-9][0-9]{0,11}")


def read_timeout(headers: Headers) -> float | None:
    """Return the seconds that the caller waits; the operation's own limit still applies."""
    given = headers.get(b"enfold-timeout-ms")
    if given is None:
        return None
    if not _MILLISECONDS.fullmatch(given.strip()):
        raise invalid_argument("Enfold-Timeout-Ms", "type", "a whole number of milliseconds above zero")
    return int(given) / 1_000


def read_idempotency_key(headers: Headers) -> str | None:
    """Return the idempotency key of the headers; quotes (structured fields) are removed."""
    given = headers.get(KEY_HEADER)
    if given is None:
        return None
    text = given.strip()
    is_quoted = len(text) > 1 and text[:1] == text[-1:] == b'"'
    return (text[1:-1] if is_quoted else text).decode("latin-1")


class Prefer(NamedTuple):
    """What the caller would like (RFC 7240): an answer before the work is done, and how long to wait for a better one."""

    is_async: bool = False
    wait: float = 0.0


def read_prefer(headers: Headers) -> Prefer:
    """Return the preferences that we support; others are ignored (RFC 7240)."""
    is_async, wait = False, 0.0
    for part in headers.get(b"prefer", b"").decode("latin-1").split(","):
        name, _, value = part.partition(";")[0].lower().partition("=")
        is_async = is_async or name.strip() == "respond-async"
        if name.strip() == "wait" and (number := value.strip().strip('"')).isdecimal():
            wait = min(float(number[:9]), MAX_WAIT)
    return Prefer(is_async, wait)


def read_wait(text: str, longest: float) -> float:
    """Parse the seconds that a request waits for news."""
    if not _SECONDS.fullmatch(text):
        raise invalid_argument("wait", "type", "a number of seconds")
    return min(float(text), longest)


def read_format(request: Request) -> None:
    """Set the format that the caller names, in a header or, where the arguments are in the body, in the query string."""
    named = request.headers.get(b"enfold-format")
    if named is not None:
        request.format = find_format(named.decode("latin-1"))
    elif request.method in WITH_BODY and (name := query_value(request.query, "format")) is not None:
        request.format = find_format(name)


def query_value(query: bytes, name: str) -> str | None:
    """Return the last value of a name in a query string."""
    return dict(query_pairs(query)).get(name) if query else None


def is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def accepts_json(accept: bytes) -> bool:
    """Whether a result may be JSON; who names the JSON of failures takes that of results, too."""
    ranges = _ranges(accept)
    return _preference("application/json", ranges)[0] > 0 or ranges.get(PROBLEM, 0.0) > 0


def prefers_problem(accept: bytes) -> bool:
    """Whether a failure is to be problem details (RFC 9457): they are named, and not below JSON."""
    ranges = _ranges(accept)
    weight = ranges.get(PROBLEM, 0.0)
    return weight > 0 and weight >= _preference("application/json", ranges)[0]


def prefers_page(accept: bytes) -> bool:
    """Whether who asks is a browser; a program that takes anything, or JSON as gladly, gets JSON."""
    ranges = _ranges(accept)
    return ranges.get("text/html", 0.0) > ranges.get("application/json", 0.0)


def prefers_file(accept: bytes, kinds: Iterable[str]) -> bool:
    """Whether a caller prefers one of these media types, which may be ranges, to JSON."""
    ranges = _ranges(accept)
    weight = max((_file_weight(kind.partition(";")[0].strip().lower(), ranges) for kind in kinds), default=0.0)
    return weight > _preference("application/json", ranges)[0]


def _file_weight(kind: str, ranges: Mapping[str, float]) -> float:
    if not kind.endswith("/*"):
        return _preference(kind, ranges)[0]
    named = [weight for name, weight in ranges.items() if kind == "*/*" or name.startswith(kind[:-1])]
    return max([*named, _preference(kind, ranges)[0]])


def stream_type(accept: bytes | None) -> StreamType | None:
    """Choose how to send a stream: events, unless lines are preferred; None if neither is accepted."""
    ranges = _ranges(accept or b"")
    events, lines = _preference("text/event-stream", ranges), _preference("application/x-ndjson", ranges)
    if max(events, lines)[0] <= 0:
        return None
    return "application/x-ndjson" if lines > events else "text/event-stream"


def _ranges(accept: bytes) -> dict[str, float]:
    """Return the media ranges of an `Accept` header with their weights; an empty one accepts everything."""
    ranges: dict[str, float] = {}
    for part in (accept.decode("latin-1").lower().strip() or "*/*").split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        ranges[kind] = next((_weight(text[2:]) for text in parameters if text.startswith("q=")), 1.0)
    return ranges


def _weight(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 1.0


def _preference(kind: str, ranges: Mapping[str, float]) -> tuple[float, int]:
    """Return the weight of the most specific matching range, and how specific it is."""
    for specific, name in ((2, kind), (1, f"{kind.partition('/')[0]}/*"), (0, "*/*")):
        if name in ranges:
            return ranges[name], specific
    return 0.0, 0


decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
NOT_AN_OBJECT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def invalid_body(body: bytes | bytearray) -> CallError:
    """Return the error for a body that is not JSON, or not an object."""
    why = ": an object of arguments is expected" if _is_json_text(body) else ""
    return invalid_argument("", "type", "a JSON object", f"Invalid JSON body{why}")


def _is_json_text(body: bytes | bytearray) -> bool:
    try:
        msgspec.json.decode(body)
    except NOT_AN_OBJECT:
        return False
    return True


ArgumentKind: TypeAlias = Literal["text", "texts", "json", "jsons"]
QueryReader: TypeAlias = Callable[[bytes], dict[str, Any]]
FieldReader: TypeAlias = Callable[[dict[str, list[str]]], dict[str, Any]]

MAX_FIELDS: Final = 1_000


def query_reader(spec: OperationSpec) -> QueryReader:
    """Return a function that reads one operation's arguments from a query string; the registry converts types."""
    read = field_reader(spec)
    return lambda query: read(query_fields(query))


def field_reader(spec: OperationSpec) -> FieldReader:
    """Return a function that reads one operation's arguments from the texts of fields, by their names."""
    kinds = argument_kinds(spec)
    return lambda fields: {name: _READERS[kinds.get(name, "text")](values) for name, values in fields.items()}


def argument_kinds(spec: OperationSpec) -> dict[str, ArgumentKind]:
    """Return how each argument of the schema is written in a query string."""
    try:
        root = read_nodes(spec.input_schema)[0]
    except TooLargeError:
        return {}
    parts = (*root.all_of, root)
    return {name: _kind(node) for part in parts for name, node in (part.properties or {}).items()}


def query_pairs(query: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a query string, in order."""
    from urllib.parse import parse_qsl  # slow to load, and many programs are only posted to

    try:
        text = query.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        expected = f"at most {MAX_FIELDS} fields of UTF-8 text"
        raise invalid_argument("", "type", expected, "The query string cannot be read") from None


def query_fields(query: bytes) -> dict[str, list[str]]:
    """Return the values of a query string by their names."""
    fields: dict[str, list[str]] = {}
    for name, value in query_pairs(query):
        fields.setdefault(name, []).append(value)
    return fields


def _kind(node: Node) -> ArgumentKind:
    if _may_be("string", node):
        return "text"
    if _may_be("array", node):
        return "jsons" if _holds_containers(node) else "texts"
    return "json" if _may_be("object", node) else "text"


def _holds_containers(node: Node) -> bool:
    """Whether the items of an array can only be written as JSON text."""
    parts = (node, *node.any_of, *node.one_of, *node.all_of)
    items = [item for part in parts for item in (*part.prefix, part.items) if item is not None]
    return bool(items) and all(_is_container(item) for item in items)


def _is_container(node: Node) -> bool:
    return not _may_be("string", node) and (_may_be("object", node) or _may_be("array", node))


def _may_be(kind: Literal["string", "array", "object"], node: Node, depth: int = 0) -> bool:
    """Whether a value of this JSON type could fit, as far as types and variants tell."""
    if node.never or (node.types is not None and kind not in node.types):
        return False
    if node.enum is not None and not any(isinstance(value, _PYTHON[kind]) for value in node.enum):
        return False
    if depth > _DEEPEST:
        return True
    variants = [variants for variants in (node.any_of, node.one_of) if variants]
    return all(_may_be(kind, part, depth + 1) for part in node.all_of) and all(
        any(_may_be(kind, part, depth + 1) for part in choices) for choices in variants
    )


_DEEPEST: Final = 20
_PYTHON: Final[dict[str, type]] = {"string": str, "array": list, "object": dict}


def _one_or_many(values: list[str]) -> Any:
    return values[0] if len(values) == 1 else values


_READERS: Final[dict[ArgumentKind, Callable[[list[str]], Any]]] = {
    "text": _one_or_many,
    "texts": lambda values: values,
    "json": lambda values: _parse_json(values[0]) if len(values) == 1 else values,
    "jsons": lambda values: _whole_or_items([_parse_json(value) for value in values]),
}


def _whole_or_items(values: list[Any]) -> list[Any]:
    """Read an array of objects or arrays: each as JSON text, or all in one."""
    (first, *others) = values
    is_whole = not others and isinstance(first, list) and all(isinstance(item, dict | list) for item in first)
    return first if is_whole else values


def _parse_json(text: str) -> Any:
    """Parse JSON text; return invalid text as it is, so that the registry rejects it by argument name."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
