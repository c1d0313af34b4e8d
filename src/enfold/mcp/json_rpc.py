"""JSON-RPC messages as values: reading, writing, and the errors of the protocol. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

FORMAT_KEY: Final = "enfold/format"
SHAPE_KEY: Final = "enfold/shape"  # how a format wrote a result, where readers cannot see it
IDEMPOTENCY_KEY: Final = "enfold/idempotencyKey"
NAMESPACE_KEY: Final = "enfold/namespace"  # in a request for a list: only what lies in this namespace
MAX_BATCH: Final = 10_000  # of a server that we have chosen ourselves

# Of a `_meta` key's prefix these labels are the protocol's own: `io.modelcontextprotocol/…`, `com.mcp.tools/…`.
_PROTOCOL_LABELS: Final = ("modelcontextprotocol", "mcp")
# Fields of `_meta` for the server that answers the request; they are not passed on.
_OWN_KEYS: Final = ("progressToken", "capture_provenance", "capture_artifacts", "provenance_mode")

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002  # until 2025-11-25; later it is INVALID_PARAMS
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

# What a stateless request says about itself, in its `_meta`.
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
# What a server says about itself and its streams, likewise.
SERVER_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"

RequestId: TypeAlias = int | str


class ProtocolError(Exception):
    """A message that cannot be answered with a result; the peer gets the code, the sentence and the data."""

    def __init__(self, code: int, message: str, data: Any = UNSET, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id  # where the message that failed to be read had one


class RPCMessage(msgspec.Struct, frozen=True):
    """A request, a notification, or the answer to one of our own requests."""

    jsonrpc: Literal["2.0"]
    id: RequestId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: dict[str, Any] = {}
    result: dict[str, Any] | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET

    @property
    def is_complete(self) -> bool:
        """Whether it is a request, a notification or an answer."""
        return self.method is not UNSET or self.is_answer

    @property
    def is_request(self) -> bool:
        return self.method is not UNSET and self.id is not UNSET

    @property
    def is_answer(self) -> bool:
        return self.id is not UNSET and (self.result is not UNSET or self.error is not UNSET)

    @property
    def request_id(self) -> RequestId:
        """The id under which it is answered; 0 where it has none."""
        return 0 if self.id is UNSET else self.id

    @property
    def meta(self) -> dict[str, Any]:
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


def fields_of(value: Any) -> Mapping[str, Any]:
    """Return the fields of a received value; empty if it is not an object."""
    return value if isinstance(value, Mapping) else {}


# --- reading ------------------------------------------------------------------------------------------------------

_decode: Final = msgspec.json.Decoder(RPCMessage).decode


def parse(text: bytes | bytearray) -> RPCMessage:
    """Parse one message; raise ProtocolError for anything else."""
    try:
        message = _decode(text)
    except msgspec.ValidationError as error:
        raise ProtocolError(INVALID_REQUEST, f"Not a message: {error}", request_id=_id_of(text)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(PARSE_ERROR, f"Not JSON: {error}") from None
    if message.method is UNSET and not message.is_answer:
        request_id = None if message.id is UNSET else message.id
        raise ProtocolError(
            INVALID_REQUEST, "Not a message: it has neither a method nor a result or an error", request_id=request_id
        )
    return message


def parse_batch(text: bytes | bytearray, most: int = MAX_BATCH) -> list[RPCMessage]:
    """Parse the messages of an array, up to a maximum number."""
    try:
        if len(_count(text)) > most:
            raise ProtocolError(INVALID_REQUEST, f"An array may have at most {most} messages: send several arrays")
        parts = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise ProtocolError(INVALID_REQUEST, f"Not an array of messages: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(PARSE_ERROR, f"Not JSON: {error}") from None
    if not parts:
        raise ProtocolError(INVALID_REQUEST, "An array of messages must not be empty")
    return [parse(bytes(part)) for part in parts]


class _CountedMessage(msgspec.Struct, frozen=True):
    """The least that a message in an array has: decoding only this counts the messages cheaply."""

    jsonrpc: Literal["2.0"]


_count: Final = msgspec.json.Decoder(list[_CountedMessage]).decode


def _id_of(text: bytes | bytearray) -> RequestId | None:
    """Return the id of a malformed message, so that its sender gets the error."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    request_id = found.get("id") if isinstance(found, dict) else None
    return request_id if isinstance(request_id, str | int) and not isinstance(request_id, bool) else None


# --- writing ------------------------------------------------------------------------------------------------------

encode: Final = msgspec.json.Encoder().encode


class RPCRequest(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """A request that we send."""

    id: RequestId
    method: str
    params: Any


class RPCNotification(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    method: str
    params: Any = UNSET


class RPCResponse(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """The response to a request that succeeded."""

    id: RequestId
    result: Any


class ErrorObject(msgspec.Struct, frozen=True):
    """What a failed response says: a code of the protocol, a sentence, and optional data."""

    code: int = 0
    message: str = ""
    data: Any = UNSET


class RPCErrorResponse(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """The response to a request that failed; the id is null where it could not be read."""

    id: RequestId | None
    error: ErrorObject


AnyResponse: TypeAlias = RPCResponse | RPCErrorResponse
OutgoingMessage: TypeAlias = RPCRequest | RPCNotification | AnyResponse


def error_response(request_id: RequestId | None, error: ProtocolError) -> RPCErrorResponse:
    return RPCErrorResponse(request_id, ErrorObject(error.code, error.message, error.data))


def passed_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` to pass on upstream: without keys of the protocol and of ours."""
    return {key: value for key, value in meta.items() if not _is_between_two(key)}


def _is_between_two(key: str) -> bool:
    """Whether a key of `_meta` is only for the client and the server of one connection, and is not passed on."""
    prefix = key.partition("/")[0] if "/" in key else ""
    labels = prefix.split(".")
    return key in _OWN_KEYS or labels[0] == "enfold" or any(label in _PROTOCOL_LABELS for label in labels[1:2])
