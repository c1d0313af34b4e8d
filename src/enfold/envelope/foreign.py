"""Detects results in foreign envelope formats, and reads the failures they describe.

`__ENVELOPE_V1__:` begins the second block of a ToolEnvelope V1, `schema_version` identifies an `mcp.envelope.v0.1`, and
another Enfold server sends its code in `_meta`. The formats of the same names read the rest.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.errors import CODES, ERROR_KEY, CallError, FormatError, code_row

ENVELOPE_VERSION: Final = "mcp.envelope.v0.1"
BLOCK_VERSION: Final = 1

_BLOCK_PREFIX: Final = "__ENVELOPE_V"
_MAX_DIGITS: Final = 9  # of a version
_CODE_PREFIX: Final = "ENFOLD."


def described_failure(structured: Any, texts: Iterable[str], meta: Any = None) -> CallError | None:
    """Return the failure that a result describes in an envelope or in `_meta`, if any."""
    given = list(texts)
    for text in given:
        if is_encoded_block(text):
            return _failure_in_block(text)
    value = structured if names_itself(structured) else parse_envelope(given)
    return _failure_in_meta(meta, given) if value is None else _failure_in_envelope(value)


# --- ToolEnvelope V1 ----------------------------------------------------------------------------------------------


class ToolEnvelope(msgspec.Struct, frozen=True):
    """The content of the second block; unknown fields of payload and meta are kept."""

    payload: Any
    meta: dict[str, Any]


class ErrorPayload(msgspec.Struct, frozen=True, rename="camel"):
    """The payload of a failed tool; an unknown category is accepted."""

    category: str
    code: str
    message: str
    recoverable: bool
    details: str | UnsetType = UNSET
    suggested_action: str | UnsetType = UNSET
    next_tool: str | UnsetType = UNSET


class UnknownVersionError(FormatError):
    """The envelope has an unsupported version."""


def is_encoded_block(text: str) -> bool:
    """Whether a text is the encoded block of a ToolEnvelope, of any version."""
    return _split_block(text) is not None


def parse_block(text: str) -> ToolEnvelope:
    """Decode the second block; raise FormatError for other text, invalid base64 or an unsupported version."""
    found = _split_block(text)
    if found is None:
        raise FormatError("Not a ToolEnvelope block: it must begin with __ENVELOPE_V1__:")
    version, encoded = found
    if version != BLOCK_VERSION:
        raise UnknownVersionError(f"ToolEnvelope version {version} is not supported, only version 1")
    return _check_block(_decode("".join(encoded.split())))  # some encoders wrap lines


def _split_block(text: str) -> tuple[int, str] | None:
    """Return the version in the prefix of a block and the encoded rest; None for other text."""
    text = text.lstrip()
    if not text.startswith(_BLOCK_PREFIX):
        return None
    digits, mark, encoded = text[len(_BLOCK_PREFIX) :].partition("__:")
    is_version = mark and len(digits) <= _MAX_DIGITS and digits.isascii() and digits.isdigit()
    return (int(digits), encoded) if is_version else None


def _decode(text: str) -> Any:
    import json  # for the few texts that hold such a block

    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise FormatError(f"Not a ToolEnvelope block: invalid base64 ({error})") from error
    try:
        return json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"Not a ToolEnvelope block: its content is not JSON ({error})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_block(value: Any) -> ToolEnvelope:
    meta = value.get("meta") if isinstance(value, Mapping) else None
    if not isinstance(meta, Mapping) or "payload" not in value:
        raise FormatError("Not a ToolEnvelope block: it requires `payload` and `meta`")
    version = meta.get("version")
    if not isinstance(version, int | float) or isinstance(version, bool):
        raise FormatError("Not a ToolEnvelope block: its meta has no version")
    if version != BLOCK_VERSION:
        raise UnknownVersionError(f"ToolEnvelope version {version} is not supported, only version 1")
    if not isinstance(meta.get("tool"), str) or not isinstance(meta.get("ts"), str):
        raise FormatError("Not a ToolEnvelope block: its meta requires `tool` and `ts`")
    return ToolEnvelope(value["payload"], dict(meta))


def read_error_payload(payload: Any) -> ErrorPayload | None:
    """Return the value as an error payload; None if it is not one."""
    try:
        return msgspec.convert(payload, ErrorPayload)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for an unpaired surrogate
        return None


def failure_of_payload(payload: ErrorPayload) -> CallError:
    """Return the error of an error payload, with the tool's own category and `recoverable`."""
    details = _read_details(payload.details)
    if payload.suggested_action is not UNSET:
        details["suggested_action"] = payload.suggested_action
    if payload.next_tool is not UNSET:
        details["next_tool"] = payload.next_tool
    # For our own codes the table decides whether a retry is safe; `recoverable` only means that the caller can act.
    error = CallError(payload.code, payload.message, details, None if payload.code in CODES else payload.recoverable)
    error.row = msgspec.structs.replace(error.row, category=payload.category, recoverable=payload.recoverable)
    return error


def _read_details(text: str | UnsetType) -> dict[str, Any]:
    """Return the details: a JSON object in the text, or the text itself."""
    if text is UNSET:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"details": text}


def _failure_in_block(text: str) -> CallError | None:
    try:
        payload = read_error_payload(parse_block(text).payload)
    except FormatError:
        return None
    return None if payload is None else failure_of_payload(payload)


# --- mcp.envelope.v0.1 --------------------------------------------------------------------------------------------


def names_itself(value: Any) -> bool:
    """Whether a value declares itself an `mcp.envelope.v0.1`."""
    return isinstance(value, Mapping) and value.get("schema_version") == ENVELOPE_VERSION


def parse_envelope(texts: Iterable[str]) -> dict[str, Any] | None:
    """Return the `mcp.envelope.v0.1` that is the single text of a result, if any."""
    given = list(texts)
    if len(given) != 1 or ENVELOPE_VERSION not in given[0]:
        return None
    try:
        value = msgspec.json.decode(given[0])
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if names_itself(value) else None


def own_code(code: str) -> str:
    """Return the code for a code on the wire: X for `ENFOLD.X`, otherwise unchanged."""
    return "EXECUTION_ERROR" if code == code_row("EXECUTION_ERROR").envelope_code else code.removeprefix(_CODE_PREFIX)


class _Error(msgspec.Struct, frozen=True):
    """The fields read from one entry of `errors`."""

    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False


def _failure_in_envelope(wire: Mapping[str, Any]) -> CallError | None:
    try:
        errors = msgspec.convert(wire.get("errors"), list[_Error])
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None
    if not errors:
        return None
    first = errors[0]
    return CallError(own_code(first.code), first.message, dict(first.details), first.retryable)


# --- another Enfold -----------------------------------------------------------------------------------------------


class _MetaError(msgspec.Struct, frozen=True):
    """The value of `_meta["enfold/error"]`; its message is in the text block."""

    code: str
    details: dict[str, Any] = {}
    retryable: bool = False


def _failure_in_meta(meta: Any, texts: list[str]) -> CallError | None:
    try:
        found = msgspec.convert(meta[ERROR_KEY], _MetaError)
    except (TypeError, KeyError, msgspec.ValidationError, UnicodeEncodeError):
        return None
    return CallError(found.code, _sentence("\n".join(texts)) or found.code, dict(found.details), found.retryable)


def _sentence(text: str) -> str:
    """Return the message of `{"error": "…"}` or `{"error": {"message": "…"}}`; other text unchanged."""
    try:
        error = msgspec.json.decode(text)["error"]
        found = error if isinstance(error, str) else error["message"]
    except (msgspec.DecodeError, RecursionError, TypeError, KeyError):
        return text
    return found if isinstance(found, str) else text
