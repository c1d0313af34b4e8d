"""TypeBox 0.34's `Value.Cast` over plain JSON Schema: a value goes in, one of the schema's shape comes out.

Where it leaves TypeBox, on purpose: `format` is an annotation; whole numbers of any size stay exact; property names that
JavaScript's own objects have (`constructor`) are names like others, and names that look like numbers keep their place;
a text is never cut between the halves of one character; and schemas and values that would run JavaScript out of stack
or memory are refused with the same RangeError, only earlier.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.schema.cast.failure import CastError, too_deep
from enfold.schema.cast.kinds import read_kinds
from enfold.schema.cast.typebox_check import Checks
from enfold.schema.cast.visit import Caster
from enfold.schema.nodes.budget import shared_budget
from enfold.schema.nodes.copies import own_copy

__all__ = ["CastError", "cast"]

# The checks of schemas are kept for the next cast; all are given up once they are too many, or of too many parts.
_MAX_SCHEMAS: Final = 1_000
_MAX_PARTS: Final = 200_000


def cast(schema: dict[str, Any] | bool, value: Any) -> Any:
    """What TypeBox 0.34's `Value.Cast` makes of a JSON value; raises CastError where it throws.

    The value is never changed, and a valid one is returned as it is. Any other result may share parts with it.
    Equal schemas are read once, from a copy: one that is changed later is another schema.
    """
    try:
        checks = _checks_of(schema)
        answers = checks.no_answers()
        with shared_budget():
            if checks.fits(checks.root, value, answers):
                return value
            return Caster(checks, answers).cast(checks.root, value)
    except RecursionError:
        raise too_deep() from None


_known: Final[dict[bytes, Checks]] = {}


def _checks_of(schema: Any) -> Checks:
    try:
        # Order counts: results have the schema's order.
        content = msgspec.json.encode(schema)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return Checks(read_kinds(own_copy(schema)))  # it is not JSON
    checks = _known.get(content)
    if checks is None:
        checks = Checks(read_kinds(own_copy(schema)))
        parts = checks.count + sum(known.count for known in list(_known.values()))
        if len(_known) >= _MAX_SCHEMAS or parts > _MAX_PARTS:
            _known.clear()
        _known[content] = checks
    return checks
