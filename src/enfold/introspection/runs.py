"""`enfold.runs` and `enfold.lineage`: the provenance that this program has stored, and what verification says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from enfold.access import EVERYTHING
from enfold.errors import CallError
from enfold.operation import Context, Identity, Operation
from enfold.provenance.artifacts import caller_of
from enfold.provenance.lineage import verify_run
from enfold.provenance.records import read_record
from enfold.provenance.store import RecordStore, StoredRecordError
from enfold.provenance.verification import Verdict
from enfold.reserved import ADMIN, reserved_operation

__all__ = ["Lineage", "LineageNode", "RunSummary", "run_operations"]

MOST_RUNS: Final = 500


class RunSummary(msgspec.Struct, frozen=True):
    """A run that was recorded."""

    run_id: str
    operation: str
    time: str | None
    caller: str | None
    parents: list[str]
    inputs: int
    outputs: int
    methods: list[str]


class LineageNode(msgspec.Struct, frozen=True):
    """A run in a lineage, and what verification says of its record."""

    run: RunSummary
    verified: bool
    faults: list[str]
    notes: list[str]


class Lineage(msgspec.Struct, frozen=True):
    """A run with its ancestors and descendants; parents that the store lacks are among the faults."""

    run_id: str
    verified: bool
    faults: list[str]  # of how the runs hang together
    notes: list[str]
    nodes: list[LineageNode]
    record: dict[str, Any]


def run_operations(store: RecordStore) -> Iterable[Operation]:
    async def runs(
        context: Context,
        operation: str | None = None,
        caller: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RUNS)] = 100,
    ) -> list[RunSummary]:
        """List the runs that were recorded, newest first.

        Args:
            operation: Only runs of this operation.
            caller: Only runs of this caller; without `enfold:admin` it is whoever asks.
            since: Only runs from this time on, in Unix milliseconds.
            until: Only runs before this time, in Unix milliseconds.
            limit: How many at most.
        """
        own = _only_caller(context.identity)
        if own is not None and caller not in (None, own):
            return []
        find = partial(store.find, operation=operation, since=since, until=until, limit=limit)
        return [_summary(record) for record in await asyncio.to_thread(find, identity=own or caller)]

    async def lineage(run_id: str, context: Context) -> Lineage:
        """Show one run with its ancestors and descendants, its record, and what verification says.

        Args:
            run_id: The id that the run was answered with (Enfold-Run-Id).
        """
        return await asyncio.to_thread(_lineage, store, run_id, _only_caller(context.identity))

    yield reserved_operation(runs, "enfold.runs")
    yield reserved_operation(lineage, "enfold.lineage")


def _only_caller(identity: Identity | None) -> str | None:
    """Whose runs alone the caller sees; None for all, as where nobody has an identity."""
    if identity is None or not identity.scopes.isdisjoint((ADMIN, EVERYTHING)):
        return None
    return identity.id


def _lineage(store: RecordStore, run_id: str, own: str | None) -> Lineage:
    kept_for = store.identity_of(run_id)
    if kept_for is None or own not in (None, kept_for):
        raise CallError("VALIDATION_ERROR", f"There is no record of run {run_id[:100]}", _fault(run_id))
    try:
        record = store.get(run_id) or {}
        found = store.lineage(run_id)
    except StoredRecordError as error:  # which verification would say, too, without more to show
        return Lineage(run_id, False, [str(error)], [], [], {})
    verdicts = {verdict.run_id: verdict for verdict in verify_run(run_id, store)}
    nodes = [_node(each, verdicts) for each in found if own in (None, store.identity_of(each["run_id"]))]
    known = {each["run_id"] for each in found}  # of which some may be another's
    whole = [verdict for key, verdict in verdicts.items() if key not in known]
    faults = [fault for verdict in whole for fault in verdict.faults]
    is_verified = not faults and all(node.verified for node in nodes)
    notes = [note for verdict in whole for note in verdict.notes]
    return Lineage(run_id, is_verified, faults, notes, nodes, record)


def _fault(run_id: str) -> dict[str, Any]:
    return {"argument": "run_id", "reason": "constraint", "expected": "the id of a run in the store", "run_id": run_id}


def _node(record: Mapping[str, Any], verdicts: Mapping[str, Verdict]) -> LineageNode:
    summary = _summary(record)
    verdict = verdicts.get(summary.run_id, Verdict(summary.run_id))
    return LineageNode(summary, verdict.ok, list(verdict.faults), list(verdict.notes))


def _summary(record: Mapping[str, Any]) -> RunSummary:
    read = read_record(record)
    return RunSummary(
        read.run_id,
        read.tool.name,
        read.time or None,
        caller_of(read),
        list(read.parents),
        len(read.inputs),
        len(read.outputs),
        [str(method) for method in read.methods],
    )
