"""The selection that is made unasked: what an operation's spec says of it. Light, because every listing asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import OperationSpec

if TYPE_CHECKING:
    from enfold.selection.selecting import Selection

DEFAULT: Final = "select"  # where the meta of a spec has it


def default_selection(spec: OperationSpec) -> Selection | None:
    """What is selected where nobody asks; one that does not fit is told in the log, and left alone."""
    text = spec.meta.get(DEFAULT)
    if not isinstance(text, str):
        return None
    from enfold.selection.selecting import selection_of  # which few operations need

    try:
        return selection_of(spec, text)
    except CallError as error:
        Log("enfold.selection").warning("%s: its default selection is not used: %s", spec.id, error.message)
        return None


def narrowed(spec: OperationSpec) -> OperationSpec:
    """The spec as it is shown: its output is what the default selection leaves of it."""
    chosen = default_selection(spec) if DEFAULT in spec.meta else None
    if chosen is None:
        return spec
    from enfold.selection.narrowing import narrowed_schema  # for the few operations with a default selection

    return spec.replace(output_schema=narrowed_schema(spec.output_schema, chosen.fields))
