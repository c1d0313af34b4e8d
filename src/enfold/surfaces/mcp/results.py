"""Writes an envelope as the result of a tool, and a CallError as a failed result. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import MISFITS, LocalResponseMeta, MCPResponseMeta, ResponseEnvelope
from enfold.envelope.content import ContentBlock, TextContent, json_text
from enfold.errors import ERROR_KEY, CallError
from enfold.formats import Format
from enfold.mcp.json_rpc import FORMAT_KEY, INTERNAL_ERROR, INVALID_PARAMS, SHAPE_KEY, ProtocolError
from enfold.mcp.results import ToolResult
from enfold.mcp.revisions import LATEST, Revision
from enfold.operations import new_request_id
from enfold.schema.json_pointer import escape
from enfold.schema.structs import encode
from enfold.search.signatures import BYTES_PER_TOKEN, estimate_tokens
from enfold.surfaces.files import ResultFile, result_file
from enfold.surfaces.mcp.catalog import MCPTool
from enfold.surfaces.responses import UNWRITABLE, encode_failure, unwritable

if TYPE_CHECKING:
    from enfold.surfaces.mcp.exchange import ClientExchange
    from enfold.surfaces.mcp.server import MCPServer

WARNINGS_KEY: Final = "enfold/warnings"
TRUNCATED_KEY: Final = "enfold/truncated"
PROVENANCE_KEY: Final = "enfold/provenance"
RUN_KEY: Final = "enfold/runId"


def write_result(
    server: MCPServer,
    exchange: ClientExchange,
    tool: MCPTool,
    envelope: ResponseEnvelope[Any],
    asked: Format | None,
) -> ToolResult:
    """Write the result of a call or task, truncated if the operator limits results and the schema allows it.

    `asked` is the format that the caller asked for, if they did.
    """
    revision, most = exchange.client.revision, server.settings.max_result_tokens
    truncated: Any = exchange.is_truncated
    if most is not None and not tool.gives_files:
        promised = None if exchange.is_relayed else tool.promised(revision)
        envelope, missing = limit_result(envelope, most, promised)
        truncated = missing or truncated
    meta, chosen = envelope.meta, asked or tool.format
    # What `call_operation` runs was listed without an output schema.
    is_misfit = bool(envelope.warnings) and not exchange.is_relayed and _is_misfit(tool, envelope)
    is_error = is_misfit or (type(meta) is not LocalResponseMeta and envelope.is_error)
    result = ToolResult(is_error=is_error)
    text: bytes | None = None
    file: ResultFile | None = None
    shape = None if chosen.shape is None or is_error else chosen.shape(envelope, tool.spec)
    try:
        if asked is None and isinstance(meta, MCPResponseMeta) and (meta.content or not meta.is_error):
            result.content = msgspec.Raw(encode([_block(block, revision) for block in meta.content]))
        elif (
            (tool.gives_files or type(envelope.data) is bytes)
            and asked is None
            and chosen.is_wrapper
            and not is_error
            and (file := result_file(envelope, tool.spec)) is not None
            and (tool.gives_files or file.is_media)
        ):
            result.content = msgspec.Raw(encode([_media_block(file, revision)]))
        elif chosen.is_content:
            result.content = msgspec.Raw(encode(chosen.write(envelope, tool.spec)["content"]))
        else:
            text = encode(chosen.write(envelope, tool.spec))
            result.content = [{"type": "text", "text": envelope.data if shape == "text" else text.decode()}]
        is_alone = (shape == "text" or file is not None) and not _is_advertised(tool, exchange)
        is_text_alone = revision.is_text_alone or is_alone
        if revision.has_structure and not is_text_alone and not is_misfit:
            if asked is None and text is not None and not is_error and tool.has_structure:
                result.structured_content = msgspec.Raw(text)
            elif (structure := _structure(tool, envelope, revision)) is not UNSET:
                result.structured_content = msgspec.Raw(encode(structure))
    except UNWRITABLE as error:
        raise unwritable(envelope.data, error) from error
    if type(meta) is not LocalResponseMeta or envelope.warnings or truncated or envelope.provenance is not None:
        own = _meta(envelope, truncated, keeps_marks=tool.is_imported)
        if own:
            result.meta = own
    is_wrapped = file is None or result.structured_content is not UNSET
    if (chosen.shape or tool.format.shape) is not None and not is_error and is_wrapped:
        _mark(result, tool, envelope, asked)
    return result


def _is_advertised(tool: MCPTool, exchange: ClientExchange) -> bool:
    return not exchange.is_relayed and tool.output_schema_for(exchange.client.revision) is not None


def _mark(result: ToolResult, tool: MCPTool, envelope: ResponseEnvelope[Any], asked: Format | None) -> None:
    """Say how the format wrote the data; another server's result that goes on as it is has its own marks."""
    if asked is None and tool.is_imported and isinstance(envelope.meta, MCPResponseMeta):
        return
    marked = asked if asked is not None and asked.shape is not None else tool.format
    if marked.shape is not None:
        result.add_meta({FORMAT_KEY: marked.name, SHAPE_KEY: marked.shape(envelope, tool.spec)})


def _is_misfit(tool: MCPTool, envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the structured content does not fit the advertised schema, which may ask for less than the operation's own.

    Where that cannot be decided, as with a reference to a schema elsewhere, the other server is trusted.
    """
    kept_wrong = {warning.code for warning in envelope.warnings} & MISFITS
    if tool.output_schema is None or not (kept_wrong - {"unrepairable"} if tool.is_imported else kept_wrong):
        return False
    return not tool.fits_output_schema(_structure(tool, envelope, LATEST))


# --- content ------------------------------------------------------------------------------------------------------


def _block(block: ContentBlock, revision: Revision) -> dict[str, Any]:
    """Return the block; for a client whose revision lacks its kind, a text block with its JSON."""
    wire = block.to_wire()
    is_known = revision.has_structure or block.type != "resource_link"
    if is_known and (revision.has_annotations or block.type != "audio"):
        return wire
    return {"type": "text", "text": json_text(wire)}


def _media_block(file: ResultFile, revision: Revision) -> dict[str, Any]:
    """The block of a file; for a client whose revision does not know audio, an embedded resource."""
    block = file.block()
    return block if revision.has_annotations or block["type"] != "audio" else file.resource_block()


# --- structure ----------------------------------------------------------------------------------------------------


def _structure(tool: MCPTool, envelope: ResponseEnvelope[Any], revision: Revision) -> Any:
    """Return the structured content; UNSET if there is none, or none that the client may get."""
    if tool.is_imported and isinstance(envelope.meta, MCPResponseMeta):
        return _own_structure(tool, envelope, envelope.meta, revision)
    if envelope.is_error or not tool.has_structure:
        return UNSET
    if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.structured_content is UNSET:
        if tool.output_schema_for(revision) is None:
            return UNSET
        if envelope.data == [block.to_wire() for block in envelope.meta.content]:
            envelope = msgspec.structs.replace(envelope, data=_without_payload(envelope.data))
    return tool.format.write(envelope, tool.spec)


def _own_structure(tool: MCPTool, envelope: ResponseEnvelope[Any], meta: MCPResponseMeta, revision: Revision) -> Any:
    """Return another server's structured content, repaired to its schema; without a schema only if marked."""
    is_promised = tool.output_schema_for(revision) is not None and not meta.is_error
    given = envelope.data if is_promised and tool.own_output_schema is None else meta.structured_content
    return given if revision.has_any_structure or isinstance(given, dict) else UNSET


_PAYLOADS: Final = ("data", "blob")


def _without_payload(data: Any) -> Any:
    """Content blocks without their base64, which would otherwise be sent twice."""
    if isinstance(data, list):
        return [_without_payload(item) for item in data]
    if not isinstance(data, dict):
        return data
    return {name: _without_payload(value) for name, value in data.items() if name not in _PAYLOADS}


# --- meta ---------------------------------------------------------------------------------------------------------


def _meta(envelope: ResponseEnvelope[Any], truncated: Any, *, keeps_marks: bool) -> dict[str, Any]:
    own = envelope.meta._meta if isinstance(envelope.meta, MCPResponseMeta) else UNSET
    meta: dict[str, Any] = {} if own is UNSET else dict(own)
    if not keeps_marks:  # they tell how another server wrote what we write anew
        meta.pop(FORMAT_KEY, None)
        meta.pop(SHAPE_KEY, None)
    if envelope.warnings:
        meta[WARNINGS_KEY] = [warning.to_wire() for warning in envelope.warnings]
    if truncated:
        meta[TRUNCATED_KEY] = truncated
    if envelope.provenance is not None:
        meta[PROVENANCE_KEY] = envelope.provenance
    return meta


# --- failures -----------------------------------------------------------------------------------------------------


def failure(error: CallError, format: Format, operation_id: str) -> ToolResult:
    """Build a result that describes a failure for models, and its code for programs."""
    wire = format.write_error(error, operation_id)
    content = wire["content"] if format.is_content else [{"type": "text", "text": encode_failure(wire).decode()}]
    told = {"code": error.code, "requestId": error.request_id, "retryable": error.retryable, "details": error.details}
    return ToolResult(content, is_error=True, meta={ERROR_KEY: msgspec.Raw(encode_failure(told))})


# --- errors of the protocol -----------------------------------------------------------------------------------------

_CALLER_IS_WRONG: Final = ("VALIDATION_ERROR", "OPERATION_NOT_FOUND", "ACCESS_DENIED")


def protocol_error(error: CallError, request_id: str | None = None) -> ProtocolError:
    """A failure as an error of the protocol, which has ours in its data."""
    code = INVALID_PARAMS if error.code in _CALLER_IS_WRONG else INTERNAL_ERROR
    told = {**error.to_wire(), "requestId": error.request_id or request_id or new_request_id()}
    return ProtocolError(code, error.message, {ERROR_KEY: told})


def too_many(what: str, most: int) -> ProtocolError:
    """The refusal of more than a limit allows."""
    message = f"At most {most} {what} are allowed"
    return protocol_error(CallError("RESOURCE_EXHAUSTED", message, {"reason": what}, retryable=False))


# --- results within a limit -----------------------------------------------------------------------------------------

Missing: TypeAlias = dict[str, Any]

ADVICE: Final = (
    "Ask for fewer fields (select), for fewer items, or for the next ones, where the operation has an argument for it."
)
_LEAST_TEXT: Final = 40  # characters of a text that stay
_MAX_REPORTED: Final = 20  # places that are named


def limit_result(
    envelope: ResponseEnvelope[Any], most: int, promised: dict[str, Any] | None
) -> tuple[ResponseEnvelope[Any], Missing]:
    """Truncate the envelope to an estimated number of tokens, unless its schema forbids it; return what is missing."""
    data = msgspec.json.decode(envelope.data) if isinstance(envelope.data, msgspec.Raw) else envelope.data
    if isinstance(data, bytes) or envelope.is_error or estimate_tokens(_json(data)) <= most:
        return envelope, {}
    from enfold.schema.compiled import compile_schema  # imports in 10 ms or more; few servers limit results

    cutting = _Cutting()
    shorter = cutting.cut(data, most * BYTES_PER_TOKEN, "")
    if not cutting.places or (promised is not None and not compile_schema(promised).check(shorter)):
        return envelope, {}
    missing = {"places": cutting.places[:_MAX_REPORTED], "advice": ADVICE}
    return _with_data(envelope, shorter), missing


def _with_data(envelope: ResponseEnvelope[Any], data: Any) -> ResponseEnvelope[Any]:
    meta = envelope.meta
    if not isinstance(meta, MCPResponseMeta):
        return msgspec.structs.replace(envelope, data=data)
    others = tuple(block for block in meta.content if not isinstance(block, TextContent))
    if meta.structured_content is msgspec.UNSET:
        texts = [each for each in data if isinstance(each, dict) and each.get("type") == "text"]
        content = (*(TextContent(text=str(each.get("text", ""))) for each in texts), *others)
        return msgspec.structs.replace(envelope, data=data, meta=msgspec.structs.replace(meta, content=content))
    changed = msgspec.structs.replace(
        meta, content=(TextContent(text=json_text(data)), *others), structured_content=data
    )
    return msgspec.structs.replace(envelope, data=data, meta=changed)


def _json(data: Any) -> bytes:
    try:
        return msgspec.json.encode(data)
    except (ValueError, TypeError, RecursionError):  # it cannot be written at all, which is reported elsewhere
        return b""


class _Cutting(msgspec.Struct):
    """Cuts one value, and notes where."""

    places: list[dict[str, Any]] = []

    def cut(self, value: Any, room: float, path: str) -> Any:
        """Truncate the value to a number of bytes, as closely as its structure allows."""
        if len(_json(value)) <= room:
            return value
        if isinstance(value, str):
            return self._cut_text(value, room, path)
        if isinstance(value, list):
            return self._cut_list(value, room, path)
        return self._cut_object(value, room, path) if isinstance(value, dict) else value

    def _cut_text(self, text: str, room: float, path: str) -> str:
        kept = max(_LEAST_TEXT, int(room * len(text) / len(_json(text))))
        if kept >= len(text):
            return text
        self.places.append({"path": path, "characters": kept, "of": len(text)})
        return f"{text[:kept]}…"

    def _cut_list(self, items: list[Any], room: float, path: str) -> list[Any]:
        kept: list[Any] = []
        left = room - 2
        for place, item in enumerate(items):
            size = len(_json(item)) + 1
            if size > left:
                if not kept:  # the first at least, as far as it goes
                    kept.append(self.cut(item, left, f"{path}/{place}"))
                break
            kept.append(item)
            left -= size
        if len(kept) < len(items):
            self.places.append({"path": path, "items": len(kept), "of": len(items)})
        return kept

    def _cut_object(self, entries: dict[str, Any], room: float, path: str) -> dict[str, Any]:
        """Keep every entry, small ones whole; large ones share the remaining room."""
        sizes = {name: len(_json(value)) for name, value in entries.items()}
        left = room - sum(len(_json(name)) + 2 for name in entries)
        shares: dict[str, float] = {}
        for count, name in enumerate(sorted(sizes, key=lambda each: sizes[each])):
            shares[name] = min(sizes[name], max(0.0, left) / (len(sizes) - count))
            left -= shares[name]
        return {name: self.cut(value, shares[name], f"{path}/{escape(name)}") for name, value in entries.items()}
