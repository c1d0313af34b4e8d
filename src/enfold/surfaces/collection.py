"""A subscription as one value, the list of its items, for surfaces that cannot stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning, bounded_warnings, local_envelope, to_wire
from enfold.errors import CallError
from enfold.operations import Context
from enfold.operations.outcomes import Outcome, Suspension
from enfold.runtime.registry import Registry
from enfold.surfaces.responses import UNWRITABLE, unwritable

MAX_ITEMS: Final = 1_000  # that are collected of a stream
MAX_BYTES: Final = 1_000_000  # of their JSON text


class Collected(msgspec.Struct, frozen=True):
    """A stream as one outcome, and whether there was more."""

    outcome: Outcome
    truncated: bool = False


async def collect(registry: Registry, operation_id: str, input: Mapping[str, Any], context: Context) -> Collected:
    """Run a subscription and collect its items.

    It ends with the stream, at the limits, or at the caller's deadline; in the last two cases the items so far are
    `truncated`. Each item is reported as progress.
    """
    stream = registry.subscribe(operation_id, input, context)
    try:
        return await _collect_items(stream, operation_id, context)
    except Suspension as suspension:  # a stream has no other way to say that its handler has asked
        return Collected(suspension.outcome)
    finally:
        await stream.aclose()


async def _collect_items(
    stream: AsyncGenerator[ResponseEnvelope[Any]], operation_id: str, context: Context
) -> Collected:
    items: list[Any] = []
    warnings: list[ResultWarning] = []
    size, truncated = 0, False
    try:
        async for envelope in stream:
            data = to_wire(envelope)["data"]
            size += _size(data)
            truncated = len(items) >= MAX_ITEMS or size > MAX_BYTES
            if truncated:
                break
            warnings += (_at_item(warning, len(items)) for warning in envelope.warnings)
            items.append(data)
            context.progress(len(items))
    except CallError as error:
        if error.code != "TIMEOUT":
            error.partial = local_envelope(items, operation_id)
            raise
        truncated = True
    envelope = msgspec.structs.replace(local_envelope(items, operation_id), warnings=bounded_warnings(warnings))
    return Collected(envelope, truncated)


def _size(data: Any) -> int:
    try:
        return len(msgspec.json.encode(data))
    except UNWRITABLE as error:
        raise unwritable(data, error) from error


def _at_item(warning: ResultWarning, index: int) -> ResultWarning:
    return msgspec.structs.replace(warning, path=f"/{index}{warning.path}")
