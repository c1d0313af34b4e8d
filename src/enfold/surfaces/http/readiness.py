"""`/readyz`: whether everything the server needs is there. A word for everybody, the reasons for who may read them."""

from __future__ import annotations

from typing import Any

import msgspec

from enfold.access import may_list
from enfold.operation import Identity
from enfold.reserved import READERS
from enfold.source_states import SourceState, SourceTable
from enfold.surfaces.functions.request import FunctionAnswer
from enfold.surfaces.functions.service import NO_STORE


def readiness(sources: SourceTable, *, is_stopping: bool, tells_why: bool) -> FunctionAnswer:
    """200 and `ready`, or 503 and what is missing."""
    missing = sources.missing
    word = "stopping" if is_stopping else "waiting" if missing else "ready"
    told: dict[str, Any] = {"status": word}
    if tells_why:
        told["missing"] = [_reason(source) for source in missing]
    return FunctionAnswer(msgspec.json.encode(told), 200 if word == "ready" else 503, [NO_STORE])


def may_read_reasons(identity: Identity | None, *, has_identities: bool) -> bool:
    """Whether a caller may know which sources there are: where nobody has an identity, everybody may."""
    return not has_identities or (identity is not None and may_list(READERS, identity))


def _reason(source: SourceState) -> dict[str, Any]:
    return {
        "source": source.name,
        "kind": source.kind,
        "state": source.state,
        "why": source.why,
        "since": int(source.since),
    }
