"""The `Mcp-*` headers of the stateless revisions, which repeat parts of a request's body. Pure functions, no I/O."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from enfold.mcp.json_rpc import HEADER_MISMATCH, ProtocolError, RPCMessage, fields_of
from enfold.mcp.tasks import TASK_METHODS

Headers: TypeAlias = Mapping[bytes, bytes]

ANNOTATION: Final = "x-mcp-header"

_PREFIX: Final = "=?base64?"
_SUFFIX: Final = "?="
_PLAIN: Final = re.compile(r"[\x20-\x7e\t]*")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,20}(\.0+)?")
_PRIMITIVES: Final = ("string", "integer", "boolean")

# The parameter that a request's `Mcp-Name` repeats.
NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys(TASK_METHODS, "taskId"),
}


# --- values -------------------------------------------------------------------------------------------------------


def write_value(text: str) -> str:
    """Encode a text as a header value; one that is not allowed there becomes marked base64."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _is_encoded(text):
        return text
    return f"{_PREFIX}{binascii.b2a_base64(text.encode(), newline=False).decode()}{_SUFFIX}"


def read_value(raw: bytes) -> str | None:
    """Decode a header value; None if it is invalid."""
    text = raw.decode("latin-1").strip(" \t")
    if not _is_encoded(text):
        return text if _PLAIN.fullmatch(text) else None
    try:
        return binascii.a2b_base64(text[len(_PREFIX) : -len(_SUFFIX)], strict_mode=True).decode()
    except ValueError:
        return None


def _is_encoded(text: str) -> bool:
    return text.startswith(_PREFIX) and text.endswith(_SUFFIX) and len(text) >= len(_PREFIX) + len(_SUFFIX)


# --- every request ------------------------------------------------------------------------------------------------


def check_headers(headers: Headers, message: RPCMessage, version: object) -> None:
    """Refuse a request whose headers say something else than its body."""
    method = str(message.method)
    if not isinstance(version, str) or headers.get(b"mcp-protocol-version") != version.encode():
        raise _mismatch("MCP-Protocol-Version does not repeat the version in the request's _meta")
    if headers.get(b"mcp-method") != method.encode():
        raise _mismatch("Mcp-Method does not repeat the request's method")
    parameter = NAMED_BY.get(method)
    raw = headers.get(b"mcp-name")
    # Of the clients we know one leaves the name out when it speaks of tasks: only a wrong one is refused there.
    if parameter is None or (raw is None and parameter == "taskId"):
        return
    name = message.params.get(parameter)
    # A request without a name is wrong in another way, which its method tells.
    if isinstance(name, str) and (raw is None or (raw != name.encode() and read_value(raw) != name)):
        raise _mismatch(f"Mcp-Name does not repeat the request's {parameter}")


# --- arguments of a tool ------------------------------------------------------------------------------------------


class Mirror(msgspec.Struct, frozen=True):
    """An argument that a header repeats."""

    path: tuple[str, ...]
    name: str
    type: str

    @property
    def header(self) -> bytes:
        return f"mcp-param-{self.name}".lower().encode()


def mirrors_of(schema: Any) -> tuple[Mirror, ...] | None:
    """Return the arguments that a tool's schema marks; None if a mark is wrong, because clients then drop the tool."""
    found = tuple(_find_mirrors(schema, ()))
    names = [mirror.name.lower() for mirror in found]
    is_legal = all(_TOKEN.fullmatch(mirror.name) and mirror.type in _PRIMITIVES for mirror in found)
    return found if is_legal and len(set(names)) == len(names) else None


def _find_mirrors(schema: Any, path: tuple[str, ...]) -> Iterator[Mirror]:
    for name, part in fields_of(fields_of(schema).get("properties")).items():
        if ANNOTATION in fields_of(part):
            yield Mirror((*path, name), str(part[ANNOTATION]), str(part.get("type")))
        yield from _find_mirrors(part, (*path, name))


def mirror_header(mirror: Mirror, arguments: Mapping[str, Any]) -> str | None:
    """Return the value of a mirrored header; None if the argument is absent."""
    value = _argument(mirror, arguments)
    return None if value is None else write_value(_to_text(value))


def check_argument_headers(mirrors: tuple[Mirror, ...], headers: Headers, arguments: Mapping[str, Any]) -> None:
    """Refuse a call whose headers and arguments differ, or of which only one is there."""
    for mirror in mirrors:
        raw, value = headers.get(mirror.header), _argument(mirror, arguments)
        if raw is None and value is None:
            continue
        repeated = None if raw is None else read_value(raw)
        if value is None or repeated is None or not _is_same(mirror, repeated, value):
            raise _mismatch(f"Mcp-Param-{mirror.name} does not repeat the argument {'.'.join(mirror.path)}")


def _argument(mirror: Mirror, arguments: Any) -> Any:
    for name in mirror.path:
        arguments = fields_of(arguments).get(name)
    return arguments if isinstance(arguments, str | int | float) else None


def _is_same(mirror: Mirror, repeated: str, value: Any) -> bool:
    """Numbers are compared as numbers: 42.0 and 42 are the same."""
    if mirror.type == "integer" and not isinstance(value, bool | str) and _DECIMAL.fullmatch(repeated):
        return bool(int(repeated.partition(".")[0]) == value)
    return repeated == _to_text(value)


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mismatch(message: str) -> ProtocolError:
    return ProtocolError(HEADER_MISMATCH, f"Header mismatch: {message}")
