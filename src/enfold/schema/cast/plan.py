"""The public `cast`, and the plans it keeps: what has been made of a schema the first time it was used."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.schema.cast.failure import too_deep
from enfold.schema.cast.kinds import Kind
from enfold.schema.cast.mapping import read_kinds
from enfold.schema.cast.typebox_check import Checks
from enfold.schema.cast.visit import Caster
from enfold.schema.nodes.budget import shared_effort
from enfold.schema.nodes.own import own_copy


def cast(schema: dict[str, Any] | bool, value: Any) -> Any:
    """What TypeBox 0.34's `Value.Cast` makes of a JSON value; raises CastError where it throws.

    The value is never changed, and a valid one is returned as it is. Any other result may share parts with it.
    Equal schemas are read once, from a copy: one that is changed later is another schema.
    """
    try:
        plan = _plans.get(schema)
        with shared_effort():
            return _cast(plan, value)
    except RecursionError:
        raise too_deep() from None


def _cast(plan: _Plan, value: Any) -> Any:
    answers = plan.checks.no_answers()
    if plan.checks.fits(plan.root, value, answers):
        return value
    return Caster(plan.checks, answers).cast(plan.root, value)


class _Plan(msgspec.Struct, frozen=True, eq=False):
    root: Kind
    checks: Checks


class _Plans:
    """Plans kept for the next cast; all are given up together once they are too many, or of too many parts."""

    def __init__(self, most: int, most_parts: int) -> None:
        self._most = most
        self._most_parts = most_parts
        self._parts = 0
        self._by_content: dict[bytes, _Plan] = {}

    def get(self, schema: Any) -> _Plan:
        content = _content(schema)
        if content is None:
            return _make_plan(schema)
        plan = self._by_content.get(content)
        if plan is None:
            plan = _make_plan(schema)
            self._make_room(plan)
            self._by_content[content] = plan
        return plan

    def _make_room(self, plan: _Plan) -> None:
        self._parts += plan.checks.count
        if len(self._by_content) >= self._most or self._parts > self._most_parts:
            self._by_content.clear()
            self._parts = plan.checks.count


def _content(schema: Any) -> bytes | None:
    """What stands for a schema's content; None if it is not JSON. Order counts: results have the schema's order."""
    try:
        return msgspec.json.encode(schema)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _make_plan(schema: Any) -> _Plan:
    kinds = read_kinds(own_copy(schema))
    return _Plan(kinds[0], Checks(kinds))


_plans: Final = _Plans(most=1_000, most_parts=200_000)
