"""unevaluatedProperties and unevaluatedItems: what the nodes that apply to a value have already looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from enfold.schema.checks.python_text import CheckResults
from enfold.schema.nodes.node import Node
from enfold.schema.nodes.traits import branches, dependents

if TYPE_CHECKING:
    from enfold.schema.checks.generate import CheckWriter

Fits = Callable[[Node, Any], bool]


def fits_unevaluated(writer: CheckWriter, node: Node) -> Callable[..., bool]:
    """A function that tells whether what a value has left over fits the node's unevaluated schemas."""

    def rest_fits(value: Any, answers: CheckResults | None = None) -> bool:
        def fits(part: Node, item: Any) -> bool:
            return writer.program.function(writer.function(part))(item, answers)  # type: ignore[no-any-return]  # generated

        if type(value) is dict and node.unevaluated_properties is not None:
            seen = evaluated_names(node, value, fits)
            child = node.unevaluated_properties
            return all(key in seen or fits(child, item) for key, item in value.items())
        if type(value) is list and node.unevaluated_items is not None:
            positions = evaluated_positions(node, value, fits)
            child = node.unevaluated_items
            return all(at in positions or fits(child, item) for at, item in enumerate(value))
        return True

    return rest_fits


def evaluated_names(node: Node, value: dict[Any, Any], fits: Fits) -> Collection[Any]:
    """The names that any node which applies to the object has looked at."""
    names: set[Any] = set()
    for part in applying(node, value, fits):
        everything = part.additional is not None or (part is not node and part.unevaluated_properties is not None)
        if everything:
            return value.keys()
        names.update(part.properties or ())
        for pattern, _ in part.patterns:
            names.update(key for key in value if pattern.search(key))
    return names


def evaluated_positions(node: Node, value: list[Any], fits: Fits) -> Collection[int]:
    """The positions that any node which applies to the array has looked at."""
    positions: set[int] = set()
    for part in applying(node, value, fits):
        if part.items is not None or (part is not node and part.unevaluated_items is not None):
            return range(len(value))
        positions.update(range(len(part.prefix)))
        if part.contains is not None:
            positions.update(at for at, item in enumerate(value) if fits(part.contains, item))
    return positions


def applying(node: Node, value: Any, fits: Fits) -> Iterator[Node]:
    """The node itself and all that apply in place, with only those variants and branches that the value is valid for."""
    seen: set[Node] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.add(part)
        yield part
        waiting.extend(part.all_of)
        waiting.extend(variant for variant in part.any_of + part.one_of if fits(variant, value))
        waiting.extend(branches(part, lambda tested: fits(tested, value)))
        waiting.extend(dependents(part, value))
