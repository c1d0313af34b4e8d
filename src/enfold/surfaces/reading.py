"""What a request says about how it wants to be answered, as plain values. Pure functions, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from enfold.errors import CallError, invalid_argument
from enfold.surfaces.query_string import query_pairs

Headers: TypeAlias = Mapping[bytes, bytes]
StreamType: TypeAlias = Literal["text/event-stream", "application/x-ndjson"]

CAPTURE_HEADER: Final = b"enfold-capture-provenance"
KEY_HEADER: Final = b"idempotency-key"
SELECT_HEADER: Final = b"enfold-select"

MAX_WAIT: Final = 60.0  # seconds that a caller may prefer to wait for a better answer

_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MILLISECONDS: Final = re.compile(rb"0{0,20}[1-9][0-9]{0,11}")


def timeout(headers: Headers) -> float | None:
    """The seconds the caller is ready to wait; the operation's own limit stays as it is."""
    given = headers.get(b"enfold-timeout-ms")
    if given is None:
        return None
    if not _MILLISECONDS.fullmatch(given.strip()):
        raise invalid_argument("Enfold-Timeout-Ms", "type", "a whole number of milliseconds above zero")
    return int(given) / 1_000


def idempotency_key(headers: Headers) -> str | None:
    """The key under which the caller may repeat the call; one in quotes, as structured fields have it, is the same."""
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
    """The preferences that we know; what cannot be read is ignored, as RFC 7240 asks."""
    is_async, wait = False, 0.0
    for part in headers.get(b"prefer", b"").decode("latin-1").split(","):
        name, _, value = (piece.strip().lower() for piece in part.partition(";")[0].partition("="))
        is_async = is_async or name == "respond-async"
        if name == "wait" and (number := value.strip('"')).isdecimal():
            wait = min(float(number[:9]), MAX_WAIT)
    return Prefer(is_async, wait)


def read_wait(text: str, longest: float) -> float:
    """The seconds that a request waits for news."""
    if not _SECONDS.fullmatch(text):
        raise invalid_argument("wait", "type", "a number of seconds")
    return min(float(text), longest)


def format_name(headers: Headers, method: str, query: bytes) -> str | None:
    """The format the caller names, in a header or, where the arguments are in the body, in the query string."""
    named = headers.get(b"enfold-format")
    if named is not None:
        return named.decode("latin-1")
    return query_value(query, "format") if method == "POST" else None


def query_value(query: bytes, name: str) -> str | None:
    """What a query string says under a name; what it says last counts."""
    return dict(query_pairs(query)).get(name) if query else None


def is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def accepts_json(accept: bytes) -> bool:
    return accept in (b"*/*", b"application/json") or _preference("application/json", _ranges(accept))[0] > 0


def prefers_page(accept: bytes) -> bool:
    """Whether who asks is a browser; a program that takes anything, or JSON as gladly, gets JSON."""
    ranges = _ranges(accept)
    return ranges.get("text/html", 0.0) > ranges.get("application/json", 0.0)


def stream_type(accept: bytes | None) -> StreamType | None:
    """How a stream is sent: as events, unless lines are preferred; None where the caller takes neither."""
    ranges = _ranges(accept or b"")
    events, lines = _preference("text/event-stream", ranges), _preference("application/x-ndjson", ranges)
    if max(events, lines)[0] <= 0:
        return None
    return "application/x-ndjson" if lines > events else "text/event-stream"


def _ranges(accept: bytes) -> dict[str, float]:
    """The media ranges of an `Accept` header and their weights; one that says nothing takes everything."""
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
    """The weight of the most specific range that fits, and how specific it is."""
    for specific, name in ((2, kind), (1, f"{kind.partition('/')[0]}/*"), (0, "*/*")):
        if name in ranges:
            return ranges[name], specific
    return 0.0, 0


decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
NOT_AN_OBJECT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def invalid_body(body: bytes | bytearray) -> CallError:
    """The error for a body that is not JSON, or not an object."""
    why = ": an object of arguments is expected" if _is_json_text(body) else ""
    return invalid_argument("", "type", "a JSON object", f"Invalid JSON body{why}")


def _is_json_text(body: bytes | bytearray) -> bool:
    try:
        msgspec.json.decode(body)
    except NOT_AN_OBJECT:
        return False
    return True
