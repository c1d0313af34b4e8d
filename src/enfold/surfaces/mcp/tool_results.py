"""How an envelope leaves as the result of a tool, and a CallError as a result that tells of a failure. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.content import ContentBlock, json_text
from enfold.envelope import LocalResponseMeta, MCPResponseMeta, ResponseEnvelope
from enfold.errors import ERROR_KEY, CallError
from enfold.formats import Format
from enfold.mcp.json_rpc import FORMAT_KEY
from enfold.mcp.revisions import Revision
from enfold.surfaces.mcp.catalog import MCPTool
from enfold.surfaces.writing import UNWRITABLE, encode, encode_failure, unwritable

if TYPE_CHECKING:
    from enfold.operation.ports import RecordedRun
    from enfold.surfaces.mcp.client_exchange import ClientExchange
    from enfold.surfaces.mcp.mcp_service import Service

__all__ = ["ERROR_KEY", "FORMAT_KEY", "failure", "success", "with_recorded_id", "with_run_id"]

Result: TypeAlias = dict[str, Any]

WARNINGS_KEY: Final = "enfold/warnings"
TRUNCATED_KEY: Final = "enfold/truncated"
PROVENANCE_KEY: Final = "enfold/provenance"
RUN_KEY: Final = "enfold/runId"


def written_result(
    service: Service, exchange: ClientExchange, tool: MCPTool, envelope: ResponseEnvelope[Any], asked: Format | None
) -> Result:
    """The result of a call or of a task, cut where it is too long and may be cut."""
    most, revision = service.settings.max_result_tokens, exchange.caller.revision
    if most is None:
        return success(tool, envelope, revision, asked)
    from enfold.surfaces.mcp.result_limits import limit_result

    promised = None if exchange.is_relayed else tool.promised(revision)
    shorter, missing = limit_result(envelope, most, promised)
    result = success(tool, shorter, revision, asked)
    if missing:
        result["_meta"] = {**result.get("_meta", {}), TRUNCATED_KEY: missing}
    return result


def success(
    tool: MCPTool,
    envelope: ResponseEnvelope[Any],
    revision: Revision,
    format: Format | None,
    *,
    truncated: bool = False,
) -> Result:
    """The result of a call; `format` is the one that the caller asked for, if they did."""
    is_usual = isinstance(envelope.meta, LocalResponseMeta) and not envelope.warnings and not truncated
    try:
        if not is_usual or format is not None or not tool.has_structure or envelope.provenance is not None:
            return _unusual_success(tool, envelope, revision, format, truncated=truncated)
        text = encode(tool.format.write(envelope, tool.spec))
    except UNWRITABLE as error:
        raise unwritable(envelope.data, error) from error
    result: Result = {"content": [{"type": "text", "text": text.decode()}], "isError": False}
    if revision.has_structure and not revision.is_text_alone:
        result["structuredContent"] = msgspec.Raw(text)
    return result


def with_run_id(result: Result, recording: RecordedRun | None) -> Result:
    """The result with the id under which the call was recorded, if it was."""
    if recording is not None and recording.is_kept:
        result["_meta"] = {**result.get("_meta", {}), RUN_KEY: recording.run_id}
    return result


def with_recorded_id(result: Result, envelope: ResponseEnvelope[Any]) -> Result:
    """The result of a task with the id of its run, where it was recorded: its record came with it."""
    if envelope.provenance is not None:
        result["_meta"][RUN_KEY] = envelope.provenance.get("run_id")
    return result


def _unusual_success(
    tool: MCPTool, envelope: ResponseEnvelope[Any], revision: Revision, format: Format | None, *, truncated: bool
) -> Result:
    is_wrong = bool(envelope.warnings) and tool.output_schema is not None and _is_kept_wrong(tool, envelope)
    is_error = envelope.is_error or is_wrong
    has_structure = revision.has_structure and not revision.is_text_alone
    content = encode(_content(tool, envelope, revision, format))
    result: Result = {"content": msgspec.Raw(content), "isError": is_error}
    structure = _structure(tool, envelope, revision) if has_structure and not is_wrong else UNSET
    if structure is not UNSET:
        result["structuredContent"] = msgspec.Raw(encode(structure))
    meta = _meta(envelope, truncated=truncated)
    if meta:
        result["_meta"] = meta
    return result


def _is_kept_wrong(tool: MCPTool, envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the data was kept although it does not fit its schema.

    Where that cannot be decided, as with a schema that lies elsewhere, another server is believed.
    """
    from enfold.pipeline import MISFITS

    codes = {warning.code for warning in envelope.warnings} & MISFITS
    return bool(codes - {"unrepairable"} if tool.is_imported else codes)


# --- content ------------------------------------------------------------------------------------------------------


def _content(tool: MCPTool, envelope: ResponseEnvelope[Any], revision: Revision, format: Format | None) -> list[Any]:
    meta = envelope.meta
    if format is None and isinstance(meta, MCPResponseMeta) and (meta.content or not meta.is_error):
        return [_block(block, revision) for block in meta.content]
    chosen = format or tool.format
    return _written_content(chosen, chosen.write(envelope, tool.spec), encode)


def _written_content(format: Format, wire: Any, encode: Callable[[Any], bytes]) -> list[Any]:
    """The blocks a format makes itself, or its JSON as the text of one."""
    return list(wire["content"]) if format.is_content else [{"type": "text", "text": encode(wire).decode()}]


def _block(block: ContentBlock, revision: Revision) -> dict[str, Any]:
    """The block as it is; for a client whose revision does not know its kind, a text that holds its JSON."""
    wire = block.to_wire()
    is_known = revision.has_structure or block.type != "resource_link"
    if is_known and (revision.has_annotations or block.type != "audio"):
        return wire
    return {"type": "text", "text": json_text(wire)}


# --- structure ----------------------------------------------------------------------------------------------------


def _structure(tool: MCPTool, envelope: ResponseEnvelope[Any], revision: Revision) -> Any:
    """The structured content; UNSET where there is none to give, or none that the client may get."""
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
    """What another server gave, repaired to its schema; without a schema only what it marked as structured."""
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


def _meta(envelope: ResponseEnvelope[Any], *, truncated: bool) -> dict[str, Any]:
    own = envelope.meta._meta if isinstance(envelope.meta, MCPResponseMeta) else UNSET
    meta: dict[str, Any] = {} if own is UNSET else dict(own)
    if envelope.warnings:
        meta[WARNINGS_KEY] = [warning.to_wire() for warning in envelope.warnings]
    if truncated:
        meta[TRUNCATED_KEY] = True
    if envelope.provenance is not None:
        meta[PROVENANCE_KEY] = envelope.provenance
    return meta


# --- failures -----------------------------------------------------------------------------------------------------


def failure(error: CallError, format: Format, operation_id: str) -> Result:
    """A result that tells a model what went wrong, and a program under which code."""
    told = {"code": error.code, "requestId": error.request_id, "retryable": error.retryable, "details": error.details}
    return {
        "content": _written_content(format, format.write_error(error, operation_id), encode_failure),
        "isError": True,
        "_meta": {ERROR_KEY: msgspec.Raw(encode_failure(told))},
    }
