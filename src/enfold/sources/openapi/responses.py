"""A received response into an envelope, or into the CallError it tells of. No I/O: the body is here already."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.envelope import BODILESS, ResponseEnvelope, ResultWarning, http_envelope
from enfold.errors import CallError
from enfold.sources.lenient_json import read_json
from enfold.sources.openapi import media
from enfold.sources.openapi.explanations import explanation
from enfold.sources.web.status_errors import status_error

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
        """The first header of a name, in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)


def to_envelope(
    answer: ReceivedResponse, *, expects_json: bool, private_headers: tuple[str, ...] = ()
) -> ResponseEnvelope[Any]:
    """The envelope of a success."""
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
    """No body is nothing; but an empty text is a text, and empty bytes are bytes."""
    if answer.status in BODILESS or answer.method == "HEAD" or not content_type or media.is_json(content_type):
        return None
    return "" if media.is_text(content_type) else b""


def read_content(content: bytes, content_type: str, *, expects_json: bool) -> tuple[Any, tuple[ResultWarning, ...]]:
    """A body by its content type: JSON, text or bytes. JSON that is broken stays text, with a warning."""
    if media.is_json(content_type):
        return _read_json(content, content_type)
    if not content_type:
        return _read_untyped(content, expects_json=expects_json)
    if media.is_text(content_type):
        text = _text(content, content_type)
        # JSON was promised and something else was named: many servers call their JSON text/plain.
        if expects_json and media.bare(content_type) in ("text/plain", "text/html"):
            return _parsed_or(text, text)
        return text, NO_WARNINGS
    if expects_json and media.bare(content_type) in ("application/octet-stream", "binary/octet-stream"):
        return _parsed_or(content, content)
    return content, NO_WARNINGS


def _read_json(content: bytes, content_type: str) -> tuple[Any, tuple[ResultWarning, ...]]:
    charset = (media.parameter(content_type, "charset") or "utf-8").lower()
    try:
        source: Any = content if charset in ("utf-8", "utf8", "us-ascii") else _text(content, content_type)
        return read_json(source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return read_json(content.removeprefix(b"\xef\xbb\xbf"))
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
        return content.decode(media.parameter(content_type, "charset") or "utf-8", "replace").removeprefix("\ufeff")
    except LookupError:  # a charset nobody knows
        return content.decode("utf-8", "replace")


# --- errors -------------------------------------------------------------------------------------------------------


def to_error(answer: ReceivedResponse) -> CallError:
    """The error an HTTP error status tells of: status, content type, bounded body, and when to try again."""
    content_type = answer.header("content-type") or ""
    return status_error(
        answer.status,
        explanation(answer.content, content_type) or answer.reason or _phrase(answer.status),
        reason=answer.reason,
        content_type=content_type,
        body=error_body(answer.content, content_type),
        retry_after=answer.header("retry-after"),
    )


def _phrase(status: int) -> str:
    from http import HTTPStatus  # slow to import, and only for failures

    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "the server gave no reason"


def error_body(content: bytes, content_type: str) -> Any:
    """The body of a failure as JSON data where it is JSON, else as text, cut to a bound."""
    if not content:
        return None
    if len(content) <= MAX_ERROR_BODY and (media.is_json(content_type) or not content_type):
        return _parsed_or(content, _text(content, content_type))[0]
    return _text(content[:MAX_ERROR_BODY], content_type)
