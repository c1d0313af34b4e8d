"""Responses: those an operation declares, and a received one as an envelope or a CallError. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from json import detect_encoding
from typing import Any, Final

import msgspec

from enfold.envelope import BODILESS, ResponseEnvelope, ResultWarning, http_envelope
from enfold.errors import CallError, status_phrase
from enfold.http_client.errors import code_of, status_error
from enfold.operations import ErrorSchema
from enfold.sources.decoders import read_json
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.openapi.media_types import (
    EVENT_STREAM,
    bare,
    is_bytes,
    is_json,
    is_range,
    is_stream,
    is_text,
    is_within,
    json_first,
    parameter,
)
from enfold.sources.openapi.operations import FoundOperation, declared_content, listed_types
from enfold.sources.openapi.schemas import ANYTHING, Schema, Schemas, any_of
from enfold.sources.reports import Problem

MAX_ERROR_BODY: Final = 16_384
NO_WARNINGS: Final[tuple[ResultWarning, ...]] = ()


class ReceivedResponse(msgspec.Struct, frozen=True):
    """A response with its body read and decompressed."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    content: bytes
    method: str = "GET"

    def header(self, name: str) -> str | None:
        """Return the first header with this name, in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)


def to_envelope(
    answer: ReceivedResponse, *, expects_json: bool, private_headers: tuple[str, ...] = ()
) -> ResponseEnvelope[Any]:
    """Return the envelope of a success."""
    content_type = answer.header("content-type") or ""
    if answer.status in BODILESS or answer.method == "HEAD" or not answer.content:
        data, warnings = _empty(answer, content_type), NO_WARNINGS
    else:
        data, warnings = read_content(answer.content, content_type, expects_json=expects_json)
    envelope = http_envelope(
        data,
        status_code=answer.status,
        headers=answer.headers,
        content_type=content_type,
        private_headers=private_headers,
    )
    return msgspec.structs.replace(envelope, warnings=warnings) if warnings else envelope


def _empty(answer: ReceivedResponse, content_type: str) -> Any:
    """Return the value of an empty body: None, but empty text or bytes for those types."""
    if answer.status in BODILESS or answer.method == "HEAD" or not content_type or is_json(content_type):
        return None
    return "" if is_text(content_type) else b""


def read_content(content: bytes, content_type: str, *, expects_json: bool) -> tuple[Any, tuple[ResultWarning, ...]]:
    """Read a body by its content type: JSON, text or bytes. Broken JSON stays text, with a warning."""
    if is_json(content_type):
        return _read_json(content, content_type)
    if not content_type:
        return _read_untyped(content, expects_json=expects_json)
    if is_text(content_type):
        text = _text(content, content_type)
        # JSON was promised and something else was named: many servers call their JSON text/plain.
        if expects_json and bare(content_type) in ("text/plain", "text/html"):
            return _parsed_or(text, text)
        return text, NO_WARNINGS
    if expects_json and bare(content_type) in ("application/octet-stream", "binary/octet-stream"):
        return _parsed_or(content, content)
    return content, NO_WARNINGS


def _read_json(content: bytes, content_type: str) -> tuple[Any, tuple[ResultWarning, ...]]:
    charset = (parameter(content_type, "charset") or "utf-8").lower()
    try:
        source: Any = content if charset in ("utf-8", "utf8", "us-ascii") else _text(content, content_type)
        return read_json(source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # A byte order mark, or the zeros of UTF-16 and UTF-32, show what no charset says.
        return read_json(content.decode(detect_encoding(content)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = _text(content, content_type)
        return text, (ResultWarning("invalid_json", "", new=str(error), type="string", size=len(content)),)


def _read_untyped(content: bytes, *, expects_json: bool) -> tuple[Any, tuple[ResultWarning, ...]]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content, NO_WARNINGS
    looks_like_json = text.lstrip()[:1] in ("{", "[")
    return _parsed_or(text, text) if expects_json or looks_like_json else (text, NO_WARNINGS)


def _parsed_or(text: str | bytes, otherwise: Any) -> tuple[Any, tuple[ResultWarning, ...]]:
    try:
        return read_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return otherwise, NO_WARNINGS


def _text(content: bytes, content_type: str) -> str:
    try:
        return content.decode(parameter(content_type, "charset") or "utf-8", "replace").removeprefix("\ufeff")
    except LookupError:  # an unknown charset
        return content.decode("utf-8", "replace")


# --- errors -------------------------------------------------------------------------------------------------------


def to_error(answer: ReceivedResponse) -> CallError:
    """Return the error for an HTTP error status: status, content type, truncated body and retry delay."""
    content_type = answer.header("content-type") or ""
    return status_error(
        answer.status,
        explanation(answer.content, content_type)
        or answer.reason
        or status_phrase(answer.status)
        or "the server gave no reason",
        reason=answer.reason,
        content_type=content_type,
        body=error_body(answer.content, content_type),
        retry_after=answer.header("retry-after"),
    )


def error_body(content: bytes, content_type: str) -> Any:
    """Return the body of a failure as JSON if possible, else as text, truncated."""
    if not content:
        return None
    if len(content) <= MAX_ERROR_BODY and (is_json(content_type) or not content_type):
        return _parsed_or(content, _text(content, content_type))[0]
    return _text(content[:MAX_ERROR_BODY], content_type)


_NOTHING: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string"}


class DeclaredResponse(msgspec.Struct, frozen=True):
    """One declared response: its status as written (`200`, `2XX`, `default`) and its media types, JSON first."""

    status: str
    place: DocumentPlace
    media: dict[str, DocumentPlace]

    @property
    def plain_types(self) -> list[str]:
        return [each for each in self.media if not is_stream(each)]

    @property
    def stream_types(self) -> list[str]:
        return [each for each in self.media if is_stream(each)]

    @property
    def promises_json(self) -> bool:
        return any(map(is_json, self.media))

    def kind_for(self, content_type: str) -> str:
        """Return the declared type of content: by name, within a range, else the first of JSON; empty if there is none."""
        kinds = self.plain_types
        by_name = {bare(each): each for each in reversed(kinds)}
        of_json = next((each for each in kinds if is_json(each)), "")
        found = by_name.get(bare(content_type)) or (of_json if is_json(content_type) else "")
        found = found or next((each for each in kinds if is_within(content_type, each)), "")
        return found or of_json or next(iter(kinds), "")

    def schema(self, method: str, schemas: Schemas, kind: str = "") -> Any:
        """Return the schema of the data, in one media type or in any; anything if none is declared."""
        if method == "HEAD" or self.status in ("204", "205", "304"):
            return _NOTHING
        kinds = [kind] if kind else self.plain_types
        return any_of(_media_schema(each, self.media[each], schemas) for each in kinds)

    def error_schema(self, schemas: Schemas) -> ErrorSchema:
        """Return the declared failure, with the schema of its JSON."""
        places = (self.media[each].child("schema") for each in self.plain_types if is_json(each))
        declared = next((each for each in places if each.node is not None), None)
        body = {} if declared is None else schemas.bundle(schemas.convert(declared))
        status = int(self.status) if self.status.isdecimal() else None
        return ErrorSchema(code_of(status or 0), self.place.text("description"), body, status)


class Responses(msgspec.Struct, frozen=True):
    """The declared responses of an operation: those that mean success, which a lone default does, and those of errors."""

    successes: tuple[DeclaredResponse, ...]
    errors: tuple[DeclaredResponse, ...]

    def success(self, status: int) -> DeclaredResponse | None:
        """Return the declared response for an actual status."""
        by_status = {each.status.upper(): each for each in self.successes}
        return by_status.get(str(status)) or by_status.get(f"{status // 100}XX") or by_status.get("DEFAULT")

    def output_schema(self, method: str, schemas: Schemas) -> Schema:
        """Return the schema of any success as one self-contained schema."""
        return schemas.bundle(any_of(each.schema(method, schemas) for each in self.successes))

    def item_schema(self, schemas: Schemas) -> Schema:
        """Return the schema of one item of a stream."""
        media = ((kind, each.media[kind]) for each in self.successes for kind in each.stream_types)
        return schemas.bundle(any_of(_item_schema(kind, place, schemas) for kind, place in media))


def read_responses(library: Library, found: FoundOperation, problems: list[Problem]) -> Responses:
    """Read the responses of an operation; one that cannot be read counts as undeclared, and is a problem."""
    read: list[DeclaredResponse] = []
    for status, place in found.place.child("responses").items():
        if status.startswith("x-"):
            continue
        try:
            target = library.follow_described(place)
            read.append(DeclaredResponse(status, target, _media(library, found, target)))
        except BrokenReferenceError as error:
            problems.append(Problem(place.where, str(error)))
    successes = tuple(each for each in read if each.status.upper().startswith("2"))
    successes = successes or tuple(each for each in read if each.status == "default")
    return Responses(
        successes, tuple(each for each in read if each not in successes and not each.status.startswith(("1", "3")))
    )


def _media(library: Library, found: FoundOperation, place: DocumentPlace) -> dict[str, DocumentPlace]:
    if isinstance(place.child("content").node, dict):
        return declared_content(library, place)
    if library.version == "2.0" and "schema" in place.fields:
        return dict.fromkeys(json_first(listed_types(library, found, "produces")) or ["application/json"], place)
    return {}


# --- schemas ------------------------------------------------------------------------------------------------------


def _media_schema(kind: str, place: DocumentPlace, schemas: Schemas) -> Any:
    """Return the schema of the data in one media type; bytes are base64 text."""
    if is_json(kind) or (is_range(kind) and not is_bytes(kind) and not is_text(kind)):
        return schemas.convert_if_given(place.child("schema"))
    return _TEXT if is_text(kind) else {**_TEXT, "contentEncoding": "base64", "contentMediaType": bare(kind)}


def _item_schema(kind: str, place: DocumentPlace, schemas: Schemas) -> Any:
    item, whole = place.child("itemSchema"), place.child("schema")
    if bare(kind) == EVENT_STREAM:
        return _event_schema(item if item.node is not None else whole, schemas)
    if item.node is None:
        target = schemas.library.follow_if_possible(whole)
        if target.fields.get("type") == "array" and "items" in target.fields:
            item = target.child("items")
    return schemas.convert_if_given(whole if item.node is None else item)


def _event_schema(place: DocumentPlace, schemas: Schemas) -> Any:
    """Return the schema of a server-sent event's data; if the schema describes the event, that of its `data`."""
    target = schemas.library.follow_if_possible(place)
    node = target.node
    if not isinstance(node, dict):
        return ANYTHING
    for keyword in ("oneOf", "anyOf"):
        variants = list(target.child(keyword).elements())
        if variants and all(_is_event(schemas.library.follow_if_possible(each)) for each in variants):
            return any_of(_event_schema(each, schemas) for each in variants)
    if not _is_event(target):
        return schemas.convert(place)
    # That an event's data is a string is true of every event, and says nothing of what is in it.
    return schemas.convert_if_given(target.child("properties", "data", "contentSchema"))


def _is_event(place: DocumentPlace) -> bool:
    """Whether a schema speaks of the event and not of its payload: `data` beside only the fields an event has."""
    properties = place.child("properties").node
    if not isinstance(properties, dict) or "data" not in properties:
        return False
    return set(properties) <= {"data", "event", "id", "retry", "comment"}


MAX_LENGTH: Final = 300

_MAX_ERRORS: Final = 5
_MAX_DEPTH: Final = 4
_MAX_BYTES: Final = 1_000_000
_WORDS: Final = ("detail", "title", "message", "error")
_OTHER_WORDS: Final = (
    "error_description", "error_message", "errormessage", "errordescription", "msg", "description", "reason",
    "fault", "faultstring", "status",
)  # fmt: skip
_TITLE: Final = re.compile(r"<title[^<>]*>([^<]*)</title", re.IGNORECASE)
_XML_WORD: Final = re.compile(
    r"<(?:\w+:)?(?:detail|title|message|error|description|faultstring|reason)(?:\s[^<>]*)?>([^<]+)<", re.IGNORECASE
)
_HTML: Final = re.compile(r"\s*<(?:!doctype html|html|head|body)\b", re.IGNORECASE)


def explanation(content: bytes, content_type: str) -> str:
    """Return the upstream's explanation, at most 300 characters on one line; empty if there is none."""
    text = content[:_MAX_BYTES].decode("utf-8", "replace")
    if bare(content_type) in ("text/html", "application/xhtml+xml") or _HTML.match(text):
        return _line(_first(_TITLE, text))
    if text.lstrip().startswith("<"):
        return _line(_first(_XML_WORD, text))
    try:
        return _line(_words(msgspec.json.decode(text), 0))
    except (msgspec.DecodeError, RecursionError):
        is_readable = not content_type or is_text(content_type)
        return _line(text[: 4 * MAX_LENGTH]) if is_readable and "\ufffd" not in text[: 4 * MAX_LENGTH] else ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return unescape(found[1]) if found else ""


def _line(text: str) -> str:
    shown = "".join(each if each.isprintable() else " " for each in text[: 10 * MAX_LENGTH])
    line = " ".join(shown.split())
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…"


def _words(value: Any, depth: int) -> str:
    """Find the explanation in a JSON value, wherever common servers put it."""
    if isinstance(value, str):
        return value
    if depth >= _MAX_DEPTH:
        return ""
    if isinstance(value, list):
        return _joined(_item(each, depth) for each in value[:_MAX_ERRORS])
    return _of_object({str(key).lower(): each for key, each in value.items()}, depth) if isinstance(value, dict) else ""


def _of_object(value: Mapping[str, Any], depth: int) -> str:
    main = _named(value, _WORDS, depth)
    each = _errors(value.get("errors"), depth)
    if main and each:
        return main if each in main else f"{main.rstrip('.:')}: {each}"
    if main and " " not in main and isinstance(value.get("error_description"), str):
        return f"{main}: {value['error_description']}"  # OAuth: a code, and what it means
    return main or each or _named(value, _OTHER_WORDS, depth)


def _named(value: Mapping[str, Any], words: Iterable[str], depth: int) -> str:
    return next((text for word in words if (text := _words(value.get(word), depth + 1).strip())), "")


def _errors(value: Any, depth: int) -> str:
    """Read a list of errors, or errors by name."""
    if isinstance(value, dict) and not any(isinstance(value.get(word), str) for word in _WORDS):
        named = list(value.items())[:_MAX_ERRORS]
        return _joined(f"{name}: {text}" for name, each in named if (text := _words(each, depth + 1)))
    return _words(value, depth + 1)


def _item(value: Any, depth: int) -> str:
    """Read one of several errors, with the name of what is wrong if it has one."""
    text = _words(value, depth + 1)
    if not isinstance(value, dict):
        return text
    where = next((value[key] for key in ("loc", "field", "path", "property", "param", "name") if value.get(key)), "")
    place = ".".join(map(str, where)) if isinstance(where, list) else str(where)
    text = text or str(value.get("code") or value.get("type") or "")
    return f"{place}: {text}" if place and text and place not in text else text


def _joined(texts: Iterator[str]) -> str:
    return "; ".join(text for text in texts if text)
