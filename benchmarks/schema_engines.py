"""Checking and mending a 2.7 kB object: `repair` and `cast` beside TypeBox in node, pydantic and jsonschema-rs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Final

import jsonschema_rs
import msgspec
import pydantic

from benchmarks import typebox, work
from benchmarks.harness import Comparison, Contender, Goal, of_function
from benchmarks.program import compare_all
from benchmarks.typebox import TypeBox
from enfold import cast, repair

REPAIR: Final = "repair"
CAST: Final = "cast"
NODE: Final = "node Value.Cast"
PYDANTIC: Final = "pydantic validate_python"
JSONSCHEMA_RS: Final = "jsonschema-rs is_valid"


class Case(msgspec.Struct, frozen=True):
    """A value, its schema, and what each kind of engine should say of it."""

    name: str
    schema: dict[str, Any]
    value: dict[str, Any]
    repaired: dict[str, Any]
    warnings: list[str]
    cast: dict[str, Any]
    is_valid: bool


VALID: Final = Case("valid", work.ORDER_SCHEMA, work.order(), work.order(), [], work.order(), is_valid=True)
EXTRAS: Final = Case(
    "extra keys, closed schema",
    work.closed(work.ORDER_SCHEMA),
    work.order_with_extras(),
    work.order(),
    ["strip", "strip", "strip"],
    work.order(),
    is_valid=False,
)
BAD: Final = Case(
    "bad leaves",
    work.ORDER_SCHEMA,
    work.order_with_bad_leaves(),
    work.order_repaired(),
    ["convert", "missing", "type_mismatch"],
    work.order_cast(),
    is_valid=False,
)


def main(rounds: int) -> int:
    if not typebox.is_here():
        print("TypeBox is not here (`make setup` brings it): its contender is left out.")
    with TypeBox() if typebox.is_here() else nullcontext() as node:
        extras = _comparison(EXTRAS, node, _pydantic(EXTRAS), goals=(Goal(REPAIR, CAST, "at most", 1.2),))
        comparisons = [_valid_comparison(node), extras, _comparison(BAD, node)]
        return compare_all("schema_engines", comparisons, rounds)


def _valid_comparison(node: TypeBox | None) -> Comparison:
    goals = (Goal(NODE, REPAIR, "at least", 1), Goal(REPAIR, JSONSCHEMA_RS, "at most", 1.8))
    return _comparison(VALID, node, _pydantic(VALID), goals=goals)


def _comparison(case: Case, node: TypeBox | None, *others: Contender, goals: tuple[Goal, ...] = ()) -> Comparison:
    ours = (_repair(case), _cast(case))
    nodes = (node.caster(NODE, case.name, case.schema, case.value, case.cast),) if node else ()
    return Comparison(
        f"schema engines, {case.name}", (*ours, *nodes, *others, _jsonschema_rs(case)), (REPAIR, CAST), goals
    )


def _repair(case: Case) -> Contender:
    schema, value = case.schema, case.value

    def read(repaired: Any) -> Any:
        return repaired.data, sorted(warning.code for warning in repaired.warnings)

    return of_function(REPAIR, lambda: repair(schema, value), (case.repaired, case.warnings), read)


def _cast(case: Case) -> Contender:
    schema, value = case.schema, case.value
    return of_function(CAST, lambda: cast(schema, value), case.cast)


def _pydantic(case: Case) -> Contender:
    """Without the bad leaves: pydantic refuses them, and a refusal is other work than mending."""
    validate, value = pydantic.TypeAdapter(work.Order).validate_python, case.value
    return of_function(PYDANTIC, lambda: validate(value), case.repaired)


def _jsonschema_rs(case: Case) -> Contender:
    is_valid, value = jsonschema_rs.validator_for(case.schema).is_valid, case.value
    return of_function(JSONSCHEMA_RS, lambda: is_valid(value), case.is_valid)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
