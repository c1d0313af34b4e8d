"""What the shape of a schema's graph says about the work of checking: loops that never end, and work that multiplies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from enfold.schema.nodes.node import Node

_OFTEN: Final = 64
_ROUNDS: Final = 80  # more than enough for work that doubles on its way round a loop to show


def in_place(node: Node) -> Iterator[Node]:
    """The nodes that apply to the same value as this one."""
    yield from node.all_of
    yield from node.any_of
    yield from node.one_of
    yield from node.dependent_schemas.values()
    yield from (part for part in (node.not_, node.if_, node.then, node.else_) if part is not None)


def reachable(nodes: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Some nodes and all that steps lead to from them, each once, the nearest first."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    for node in waiting:  # grows while it is read
        new = [part for part in dict.fromkeys(step(node)) if part not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return waiting


def children(node: Node) -> Iterator[Node]:
    """The nodes that apply to what is inside the value."""
    yield from node.prefix
    yield from (node.properties or {}).values()
    yield from (child for _, child in node.patterns)
    inside = (node.items, node.contains, node.unevaluated_items)
    around = (node.additional, node.names, node.unevaluated_properties)
    yield from (child for child in inside + around if child is not None)


def mark_endless(nodes: list[Node]) -> bool:
    """Mark the nodes that lie on a loop of in-place applications, and say whether there are any."""
    onward = {node: list(in_place(node)) for node in nodes}
    looping = _in_or_after_loops(nodes, onward)
    if looping:
        backward: dict[Node, list[Node]] = {node: [] for node in looping}
        for node in looping:
            for part in onward[node]:
                backward[part].append(node)
        looping = _in_or_after_loops(looping, backward)
    for node in looping:
        node.endless = True
    return bool(looping)


def _in_or_after_loops(nodes: list[Node], onward: dict[Node, list[Node]]) -> list[Node]:
    """What is left when nodes that nothing leads to are taken away, until there are none: loops and what follows."""
    leading = dict.fromkeys(nodes, 0)
    for node in nodes:
        for part in onward[node]:
            leading[part] += 1
    loose = [node for node in nodes if not leading[node]]
    for node in loose:  # grows while it is read
        for part in onward[node]:
            leading[part] -= 1
            if not leading[part]:
                loose.append(part)
    return [node for node in nodes if leading[node]]


def multiplies(nodes: list[Node]) -> bool:
    """Whether one check may look at the same place of a value so often that answers should be remembered.

    Without shared nodes no place is looked at more often than there are nodes.
    """
    applied = {node: list(in_place(node)) for node in nodes}
    inside = {node: list(children(node)) for node in nodes}
    if all(len(parts) + bool(inside[node]) < 2 for node, parts in applied.items()):
        return False
    often = _OFTEN + len(nodes)
    here = dict.fromkeys(nodes, 1)
    below = dict.fromkeys(nodes, 0)
    for _ in range(_ROUNDS):
        stable = True
        for node in reversed(nodes):
            now = 1 + sum(here[part] for part in applied[node]), _looks_below(applied[node], inside[node], below)
            if max(now) > often:
                return True
            stable = stable and now == (here[node], below[node])
            here[node], below[node] = now
        if stable:
            return False
    return True


def _looks_below(applied: list[Node], inside: list[Node], below: dict[Node, int]) -> int:
    """Children stand at different places, so the most looked at counts; variants look at the same places, so all do."""
    own = max((below[child] or 1 for child in inside), default=0)
    objects = sum(below[part] for part in applied if may_be(part, "object"))
    arrays = sum(below[part] for part in applied if may_be(part, "array"))
    return own + max(objects, arrays)


def may_be(node: Node, kind: str) -> bool:
    return node.types is None or kind in node.types
