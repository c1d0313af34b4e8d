"""The envelope of every result: types, factories, detection and wire form, independent of operations."""

from __future__ import annotations

import sys
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    get_origin,
)

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope.content import TextContent, content_block, json_text
from enfold.errors import CallError, FormatError

if TYPE_CHECKING:
    from enfold.envelope.content import ContentBlock
else:
    ContentBlock = Any  # for msgspec, which reads these annotations at run time: a meta may hold blocks of new kinds

# Imports inside functions: needed only in rare cases.

T = TypeVar("T")
M = TypeVar("M")

RESPONSE_SOURCES: Final = ("local", "http", "mcp")

# The result as a whole does not match its schema.
ROOT_MISMATCH: Final = "root_mismatch"
# The result has more faults than one repair processes.
REPAIR_LIMIT: Final = "repair_limit"
# Warnings about data that was kept although it does not match the schema.
MISFITS: Final = frozenset({"type_mismatch", "missing", "constraint", ROOT_MISMATCH, "unrepairable", REPAIR_LIMIT})

# HTTP statuses of responses without content.
BODILESS: Final = frozenset({204, 205, 304})

_MAX_WARNINGS: Final = 50
_MAX_NAME: Final = 200

# Headers between an upstream and Enfold, which are not forwarded to callers.
PRIVATE_HEADERS: Final = frozenset({"set-cookie", "set-cookie2", "www-authenticate"})
PRIVATE_HEADER_PREFIX: Final = "proxy-"


# The message of each warning code, those of repair first.
REPAIRS: Final[dict[str, str]] = {
    "strip": "An undeclared property was removed",
    "convert": "A value was converted without loss",
    "default": "A declared default was filled in",
    "null_dropped": "A null that the schema does not allow was removed",
    "type_mismatch": "A value of another type was kept",
    "missing": "A required property is missing",
    "constraint": "A value that violates a constraint was kept",
    ROOT_MISMATCH: "The result as a whole does not match the schema",
    "unrepairable": "A part could not be made to match the schema",
    REPAIR_LIMIT: "Too many faults to repair: undeclared properties were removed, the rest is unchanged",
    "more": "There are more warnings than listed",
}
_OTHER_WARNINGS: Final[dict[str, str]] = {
    "detected": "A mapping returned by a handler was interpreted as an envelope",
    "envelope_extra": "A field other than data and meta was omitted",
    "envelope_meta": "A field of meta had the wrong type and was replaced by its default",
    "meta_extra": "An unknown field of meta was omitted",
    "envelope_block": "The encoded block of a ToolEnvelope could not be read",
    "envelope_invalid": "An invalid mcp.envelope.v0.1 was left unchanged",
    "envelope_version": "A ToolEnvelope of an unknown version was left unchanged",
    "invalid_json": "Malformed JSON was kept as text",
    "parsed_text": "The data was JSON in a text block",
    "content_block": "Content that was not a list of blocks was converted to a block",
    "not_a_number": "NaN or Infinity became null",
    "half_character": "An unpaired surrogate was replaced",
    "large_number": "A number that is too large was kept as text",
    "left_out": "Fields were omitted by the selection",
}


class ResultWarning(msgspec.Struct, frozen=True):
    """A change made to a result, or a remaining mismatch. `old` and `new` are never sent to callers."""

    code: str
    path: str
    old: Any = None
    new: Any = None
    type: str = "null"  # the JSON type of the old value
    size: int = 0  # the length of the old value as JSON text
    count: int = 1  # the number of array siblings this entry represents

    @property
    def sentence(self) -> str:
        """The message with the path but without the value."""
        known = REPAIRS.get(self.code) or _OTHER_WARNINGS.get(self.code)
        return f"{known or self.code.replace('_', ' ').capitalize()}: {self.path or '/'}"

    def to_wire(self) -> dict[str, Any]:
        """Return the wire form without values, because a stripped property may be secret."""
        wire: dict[str, Any] = {"code": self.code, "path": self.path, "type": self.type, "size": self.size}
        if self.count > 1:
            wire["count"] = self.count
        return wire


# --- meta ---------------------------------------------------------------------------------------------------------


class LocalResponseMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a function in this process."""

    source: ClassVar[Literal["local"]] = "local"
    operation_id: str
    timestamp: int  # Unix milliseconds of wrapping


class HTTPResponseMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The result is an HTTP response or one event of an event stream."""

    source: ClassVar[Literal["http"]] = "http"
    status_code: int = 200
    headers: dict[str, str] = {}
    content_type: str = ""
    event_type: str | UnsetType = UNSET
    last_event_id: str | UnsetType = UNSET
    private_headers: tuple[str, ...] = ()  # additional headers that are never written to the wire


class MCPResponseMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The result came from an MCP server; `is_error` marks a failure reported by the tool."""

    source: ClassVar[Literal["mcp"]] = "mcp"
    is_error: bool = False
    content: tuple[ContentBlock, ...] = ()
    structured_content: Any = UNSET
    _meta: dict[str, Any] | UnsetType = UNSET


ResponseMeta: TypeAlias = LocalResponseMeta | HTTPResponseMeta | MCPResponseMeta


# --- the envelope -------------------------------------------------------------------------------------------------


class ResponseEnvelope(msgspec.Struct, Generic[T], frozen=True):
    """A result and its source; warnings and provenance are not part of the two wire fields."""

    data: T
    meta: ResponseMeta
    warnings: tuple[ResultWarning, ...] = ()
    provenance: dict[str, Any] | None = None

    @property
    def is_error(self) -> bool:
        """Whether the result is a failure: an MCP error, an HTTP error status, or data that does not match the schema."""
        meta = self.meta
        if isinstance(meta, LocalResponseMeta):
            return False
        if meta.is_error if isinstance(meta, MCPResponseMeta) else meta.status_code >= 400:
            return True
        return bool(self.warnings) and any(warning.code == ROOT_MISMATCH for warning in self.warnings)

    def replace(self, **changes: Any) -> ResponseEnvelope[Any]:
        """Return a copy with some fields changed, such as `data` or `warnings`."""
        return msgspec.structs.replace(self, **changes)

    def as_(self, model: type[M]) -> M:
        """Convert the data to a dataclass, TypedDict, msgspec Struct, pydantic model, or a container of these."""
        try:
            return cast("M", _typed(self.data, model))
        except (ValueError, TypeError) as error:
            name = model if get_origin(model) else getattr(model, "__qualname__", model)
            raise FormatError(f"The data is not a {name}: {error}") from error

    def text(self) -> str:
        """Return the text blocks of an MCP result, joined with newlines; otherwise the data as text or JSON."""
        if isinstance(self.meta, MCPResponseMeta):
            return "\n".join(_texts(self.meta))
        if isinstance(self.data, bytes):
            return self.data.decode("utf-8", "replace")
        if isinstance(self.data, str):
            return self.data
        return json_text(self.data)

    def json(self) -> Any:
        """Parse `text()` as JSON; raise FormatError, a ValueError, if it is not JSON."""
        return _parse(self.text())

    def to_wire(self) -> dict[str, Any]:
        return to_wire(self)

    def to_bytes(self) -> bytes:
        """Return the wire form as JSON text."""
        return msgspec.json.encode(to_wire(self))


def _texts(meta: MCPResponseMeta) -> list[str]:
    """Return the text blocks without the encoded block of a ToolEnvelope."""
    from enfold.envelope.foreign import is_encoded_block

    texts = [block.text for block in meta.content if isinstance(block, TextContent)]
    return [text for text in texts if not is_encoded_block(text)]


def _typed(data: Any, model: Any) -> Any:
    """Convert data to a type with msgspec, or with pydantic for models and types that msgspec does not support."""
    if not hasattr(model, "__pydantic_validator__"):
        try:
            return msgspec.convert(data, model, dec_hook=_build_model, str_keys=True)
        except TypeError:
            if "pydantic" not in sys.modules:
                raise
    return sys.modules["pydantic"].TypeAdapter(model).validate_python(data)


def _build_model(model: Any, value: Any) -> Any:
    if isinstance(value, model):
        return value
    validate = getattr(model, "model_validate", None)
    if validate is not None:
        return validate(value)
    package = model.__module__.partition(".")[0]  # from Python 3.13 on, `Path` is in a submodule
    if package in _WRITTEN_AS_TEXT and isinstance(value, str):
        return model(value)
    raise TypeError(f"{model.__name__} cannot be built from JSON data")


_WRITTEN_AS_TEXT: Final = frozenset({"pathlib", "ipaddress"})


def local_envelope(data: T, operation_id: str) -> ResponseEnvelope[T]:
    return ResponseEnvelope(data, LocalResponseMeta(operation_id, time.time_ns() // 1_000_000))


def http_envelope(
    data: T,
    *,
    status_code: int = 200,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    content_type: str | None = None,
    event_type: str | UnsetType = UNSET,
    last_event_id: str | UnsetType = UNSET,
    private_headers: Iterable[str] = (),
) -> ResponseEnvelope[T]:
    """Wrap an HTTP response; header names become lower-case, repeated ones are joined with `, `."""
    if isinstance(data, bytearray | memoryview):
        data = cast("T", bytes(data))
    joined = _join_headers(headers.items() if isinstance(headers, Mapping) else headers)
    kind = joined.get("content-type", "") if content_type is None else content_type
    private = tuple(name.lower() for name in private_headers)
    return ResponseEnvelope(data, HTTPResponseMeta(status_code, joined, kind, event_type, last_event_id, private))


def _join_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.lower(), []).append(value)
    return {name: ", ".join(found) for name, found in values.items()}


def mcp_envelope(
    data: T,
    *,
    is_error: bool = False,
    content: Iterable[Any] = (),
    structured_content: Any = UNSET,
    _meta: dict[str, Any] | UnsetType = UNSET,
) -> ResponseEnvelope[T]:
    """Wrap the result of an MCP tool; blocks may be typed or in wire form."""
    given = content if isinstance(content, list) else list(content)
    blocks = tuple(map(content_block, given))
    meta = MCPResponseMeta(is_error, blocks, structured_content, _meta)
    return ResponseEnvelope(_mapped_data(data, given, blocks) if isinstance(data, list) else data, meta)


def _mapped_data(data: list[Any], given: list[Any], blocks: tuple[ContentBlock, ...]) -> Any:
    """Return the data; if it is the content list itself, return the blocks of the meta."""
    try:
        is_content = bool(blocks) and data == given
    except RecursionError:  # too deep to be content
        return data
    return [block.to_wire() for block in blocks] if is_content else data


def has_no_content(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether it is an HTTP response whose status allows no content, so that no schema applies."""
    meta = envelope.meta
    return isinstance(meta, HTTPResponseMeta) and meta.status_code in BODILESS and envelope.data is None


def has_own_schema(value: Any) -> bool:
    """Whether a value names its own schema in `schema_version`."""
    return isinstance(value, Mapping) and isinstance(value.get("schema_version"), str)


def is_response_envelope(value: object) -> TypeGuard[ResponseEnvelope[Any] | Mapping[str, Any]]:
    """Whether a value is an envelope: an instance, or a mapping with `data` and a `meta` of a known source."""
    return isinstance(value, ResponseEnvelope) or _is_wire_form(value)


def _is_wire_form(value: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(value, Mapping) or "data" not in value:
        return False
    meta = value.get("meta")
    return isinstance(meta, Mapping) and _is_source(meta.get("source"))


def _is_source(source: object) -> bool:
    return isinstance(source, str) and source in RESPONSE_SOURCES


def unwrap(envelope: ResponseEnvelope[T] | Mapping[str, Any], *, raise_on_error: bool = False) -> T:
    """Return the data; with `raise_on_error` raise a failed result as a CallError."""
    if not isinstance(envelope, ResponseEnvelope):
        envelope = cast("ResponseEnvelope[T]", from_wire(envelope))
    if raise_on_error and envelope.is_error:
        error = error_of(envelope)
        if not error.details and isinstance(envelope.meta, MCPResponseMeta):
            error.details["content"] = [block.to_wire() for block in envelope.meta.content]
        raise error
    return envelope.data


def error_text(envelope: ResponseEnvelope[Any]) -> str:
    """Return the error message of a failed result."""
    return error_of(envelope).message


def error_of(envelope: ResponseEnvelope[Any]) -> CallError:
    """Return the error of a failed result, with its own code and details if it contains a known error envelope."""
    meta = envelope.meta
    if isinstance(meta, HTTPResponseMeta):
        details = {"status": meta.status_code, "content_type": meta.content_type}
        is_status = meta.status_code >= 400
        sentence = f"HTTP {meta.status_code}" if is_status else _broken_promise(envelope, "The service")
        return CallError("EXECUTION_ERROR", sentence, details)
    if isinstance(meta, MCPResponseMeta) and meta.is_error:
        return _failed_tool(meta)
    return CallError("EXECUTION_ERROR", _broken_promise(envelope, "The tool"))


def _failed_tool(meta: MCPResponseMeta) -> CallError:
    from enfold.envelope.foreign import described_failure

    texts = [block.text for block in meta.content if isinstance(block, TextContent)]
    described = described_failure(meta.structured_content, texts, meta._meta)
    return described or CallError("EXECUTION_ERROR", "\n".join(_texts(meta)) or "The tool reported an error")


def _broken_promise(envelope: ResponseEnvelope[Any], who: str) -> str:
    """Return the message for a result that does not match its schema or content type."""
    kind = envelope.meta.content_type.partition(";")[0] if isinstance(envelope.meta, HTTPResponseMeta) else ""
    if kind and "json" not in kind.lower():
        return f"{who} returned {kind[:_MAX_NAME]} instead of application/json"
    if any(warning.code == "invalid_json" for warning in envelope.warnings):
        return f"{who} returned invalid JSON"
    found = next((each.type for each in envelope.warnings if each.code == ROOT_MISMATCH), "null")
    return f"{who} returned {_FOUND.get(found, 'a number')}, which does not match its schema"


_FOUND: Final = {
    "object": "an object without any of the declared fields",
    "array": "an array",
    "string": "text",
    "boolean": "true or false",
    "null": "nothing",
}


# --- wire form ----------------------------------------------------------------------------------------------------


def to_wire(envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
    """Return the envelope as JSON data: exactly `data` and `meta`, camelCase, bytes as base64 text."""
    data, meta = envelope.data, envelope.meta
    wire: dict[str, Any] = {"source": meta.source}
    if isinstance(meta, LocalResponseMeta):
        wire["operationId"], wire["timestamp"] = meta.operation_id, meta.timestamp
    else:
        fields = zip(meta.__struct_encode_fields__, msgspec.structs.astuple(meta), strict=True)
        wire.update((name, value) for name, value in fields if value is not UNSET)
    if isinstance(meta, HTTPResponseMeta):
        wire["headers"] = public_headers(meta)
        del wire["privateHeaders"]
    elif isinstance(meta, MCPResponseMeta):
        wire["content"] = [block.to_wire() for block in meta.content]
    if isinstance(meta, HTTPResponseMeta) and isinstance(data, bytes | bytearray | memoryview):
        wire["dataEncoding"] = "base64"
    return {"data": wire_data(data), "meta": wire}


def wire_data(data: Any) -> Any:
    """Return the data as JSON has it: bytes become base64 text."""
    return b2a_base64(data, newline=False).decode() if isinstance(data, bytes | bytearray | memoryview) else data


def public_headers(meta: HTTPResponseMeta) -> dict[str, str]:
    """Return the upstream's headers that may be forwarded."""
    return {name: value for name, value in meta.headers.items() if not _is_private(name, meta.private_headers)}


def _is_private(name: str, listed: tuple[str, ...]) -> bool:
    return name in PRIVATE_HEADERS or name.startswith(PRIVATE_HEADER_PREFIX) or name in listed


def from_wire(wire: ResponseEnvelope[Any] | Mapping[str, Any] | bytes | str) -> ResponseEnvelope[Any]:
    """Read an envelope from its wire form; missing or malformed meta fields get the factory's defaults."""
    value = _parse(wire) if isinstance(wire, bytes | str) else wire
    if isinstance(value, ResponseEnvelope):
        return value
    if not _is_wire_form(value):
        raise FormatError("Not an envelope: it needs `data` and a `meta` whose `source` is local, http or mcp")
    fields = dict(value["meta"])
    meta, warned = _read_meta(fields)
    data = _read_data(value["data"], meta, fields, warned)
    extra = [_warning_at("envelope_extra", key) for key in value if key not in ("data", "meta")]
    return ResponseEnvelope(data, meta, bounded_warnings([*extra, *warned]))


def _warning_at(code: str, *path: Any) -> ResultWarning:
    from enfold.schema.json_pointer import escape

    return ResultWarning(code, "".join(f"/{escape(str(name)[:_MAX_NAME])}" for name in path))


def bounded_warnings(warnings: list[ResultWarning]) -> tuple[ResultWarning, ...]:
    """Return at most 50 warnings; those about remaining mismatches are omitted last."""
    if len(warnings) <= _MAX_WARNINGS:
        return tuple(warnings)
    shown = sorted(warnings, key=lambda warning: warning.code not in MISFITS)[: _MAX_WARNINGS - 1]
    return (*shown, ResultWarning("more", "", count=len(warnings) - len(shown)))


def _parse(text: bytes | str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FormatError(f"Not JSON: {error}") from error


def _read_data(data: Any, meta: ResponseMeta, fields: Mapping[str, Any], warned: list[ResultWarning]) -> Any:
    if isinstance(meta, MCPResponseMeta):
        return _mapped_data(data, fields.get("content", []), meta.content) if isinstance(data, list) else data
    if meta.source != "http" or fields.get("dataEncoding") != "base64" or not isinstance(data, str):
        return data
    try:
        return a2b_base64(data, strict_mode=True)
    except ValueError:
        warned.append(_warning_at("envelope_meta", "meta", "dataEncoding"))  # not base64: the text is kept
        return data


def _read_meta(given: Mapping[str, Any]) -> tuple[ResponseMeta, list[ResultWarning]]:
    """Return the meta that a mapping describes, and warnings for unknown or malformed fields."""
    kind = _METAS[given["source"]]
    known = _meta_fields(kind)
    fields: dict[str, Any] = {}
    warned: list[ResultWarning] = []
    for wire_name, (name, expected) in known.items():
        if wire_name in given:
            try:
                fields[name] = msgspec.convert(given[wire_name], expected)
            except msgspec.ValidationError:
                warned.append(_warning_at("envelope_meta", "meta", wire_name))
    if kind is LocalResponseMeta:
        fields = {"operation_id": "", "timestamp": time.time_ns() // 1_000_000, **fields}
    elif kind is HTTPResponseMeta:
        fields["headers"] = _join_headers(fields.get("headers", {}).items())
    else:
        fields["content"] = tuple(map(content_block, fields.get("content", ())))
    beside = ("source", "dataEncoding") if kind is HTTPResponseMeta else ("source",)
    warned += [_warning_at("meta_extra", "meta", name) for name in given if name not in known and name not in beside]
    return kind(**fields), warned


_METAS: Final[dict[str, type[ResponseMeta]]] = {
    "local": LocalResponseMeta,
    "http": HTTPResponseMeta,
    "mcp": MCPResponseMeta,
}


@cache
def _meta_fields(kind: Any) -> dict[str, tuple[str, Any]]:
    """Return the fields of a meta by their names on the wire, each with its attribute and type."""
    fields = msgspec.structs.fields(kind)
    return {each.encode_name: (each.name, each.type) for each in fields if each.name != "private_headers"}
