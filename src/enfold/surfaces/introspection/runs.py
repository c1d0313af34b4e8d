"""`enfold.runs` and `enfold.lineage`: stored provenance records with their verification results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from enfold.errors import CallError, invalid_argument
from enfold.operations import Context, Operation
from enfold.provenance.artifacts import caller_of
from enfold.provenance.lineage import verify_run
from enfold.provenance.record_store import RecordStore, StoredRun
from enfold.provenance.records import read_record
from enfold.provenance.verification import Verdict, verify
from enfold.runtime.reserved import only_caller, reserved_operation

MAX_RUNS: Final = 500


class RunSummary(msgspec.Struct, frozen=True):
    """A run that was recorded, and what verification says of its record alone."""

    run_id: str
    operation: str
    time: str | None
    caller: str | None
    parents: list[str]
    inputs: int
    outputs: int
    methods: list[str]
    verified: bool
    faults: list[str]


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


def operations(store: RecordStore) -> Iterable[Operation]:
    async def runs(
        context: Context,
        operation: str | None = None,
        matching: str | None = None,
        caller: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_RUNS)] = 100,
    ) -> list[RunSummary]:
        """List the runs that were recorded, newest first; one whose record was changed is there, and says so.

        Args:
            operation: Only runs of this operation.
            matching: Only runs of operations with this in their name.
            caller: Only runs of this caller; without `enfold:admin` always the caller itself.
            since: Only runs from this time on, in Unix milliseconds.
            until: Only runs before this time, in Unix milliseconds.
            limit: How many at most.
        """
        own = only_caller(context.identity)
        if own is not None and caller not in (None, own):
            return []
        named = {"operation": operation, "matching": matching, "identity": own or caller}
        asked = {**named, "since": since, "until": until, "limit": limit}
        return await asyncio.to_thread(_listed, store, asked)

    async def lineage(run_id: str, context: Context) -> Lineage:
        """Show one run with its ancestors and descendants, its record, and what verification says.

        Args:
            run_id: The id that the run was answered with (Enfold-Run-Id).
        """
        return await asyncio.to_thread(_lineage, store, run_id, only_caller(context.identity))

    yield reserved_operation(runs, "enfold.runs")
    yield reserved_operation(lineage, "enfold.lineage")


def _listed(store: RecordStore, asked: dict[str, Any]) -> list[RunSummary]:
    return [_summary(run, _own_verdict(run)) for run in store.find_runs(**asked)]


def _own_verdict(run: StoredRun) -> Verdict:
    return Verdict(run.run_id, (run.fault,)) if run.record is None else verify(run.record)


def _lineage(store: RecordStore, run_id: str, own: str | None) -> Lineage:
    kept_for = store.identity_of(run_id)
    if kept_for is None or own not in (None, kept_for):
        raise _unknown_run(run_id)
    found = store.related_runs(run_id)
    verdicts = _verdicts(store, run_id, found)
    nodes = [_node(run, verdicts) for run in found if own in (None, run.identity)]
    known = {run.run_id for run in found}  # of which some may be another's
    whole = [verdict for key, verdict in verdicts.items() if key not in known]
    faults = [fault for verdict in whole for fault in verdict.faults]
    is_verified = not faults and all(verdict.ok for verdict in verdicts.values())
    notes = [note for verdict in whole for note in verdict.notes]
    return Lineage(run_id, is_verified, faults, notes, nodes, found[0].record or {})


def _verdicts(store: RecordStore, run_id: str, found: list[StoredRun]) -> dict[str, Verdict]:
    """Verify the runs and their links; if one was changed, verify each alone."""
    if all(run.record is not None for run in found):
        return {verdict.run_id: verdict for verdict in verify_run(run_id, store)}
    return {run.run_id: _own_verdict(run) for run in found}


def _unknown_run(run_id: str) -> CallError:
    message = f"There is no record of run {run_id[:100]}"
    error = invalid_argument("run_id", "constraint", "the id of a run in the store", message)
    error.details["run_id"] = run_id
    return error


def _node(run: StoredRun, verdicts: Mapping[str, Verdict]) -> LineageNode:
    verdict = verdicts.get(run.run_id, Verdict(run.run_id))
    return LineageNode(_summary(run, verdict), verdict.ok, list(verdict.faults), list(verdict.notes))


def _summary(run: StoredRun, verdict: Verdict) -> RunSummary:
    """Summarise a changed record from the columns of the store."""
    told = (verdict.ok, list(verdict.faults))
    if run.record is None:
        moment = None if run.time is None else datetime.fromtimestamp(run.time / 1000, UTC).isoformat()
        return RunSummary(run.run_id, run.operation, moment, run.identity or None, [], 0, 0, [], *told)
    read = read_record(run.record)
    return RunSummary(
        read.run_id,
        read.tool.name,
        read.time or None,
        caller_of(read),
        list(read.parents),
        len(read.inputs),
        len(read.outputs),
        [str(method) for method in read.methods],
        *told,
    )
