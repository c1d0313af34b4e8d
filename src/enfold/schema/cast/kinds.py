"""The kinds of TypeBox: nodes of a schema that also say what becomes of a value they do not accept."""

from __future__ import annotations

from typing import Literal

from enfold.schema.nodes.node import Node

KindName = Literal[
    "Unknown", "Never", "Not", "Null", "Boolean", "String", "Number", "Literal", "Enum",
    "Object", "Record", "Array", "Tuple", "Union", "Intersect", "Ref", "Import",
]  # fmt: skip


class Kind(Node, eq=False, kw_only=True):
    """One place of a schema. What it accepts stands in the fields of a node, as far as TypeBox looks at them.

    A Record is a map: each of its values is one of `additional`, or of the one pattern it has. An Import is a type
    imported from a module: like a reference, but a union does not look through it.
    """

    kind: KindName = "Unknown"
    needed: frozenset[str] = frozenset()  # the required names of an Object
    required_count: int = 0  # as many as were written: TypeBox counts strangers and repeats, too
    is_closed: bool = False  # an Object without any other properties, an Intersect likewise
    to_ancestor: bool = False  # a Ref to a schema around it
    target: Kind | None = None  # where a reference leads in the end; a reference again if that is nowhere

    @property
    def is_reference(self) -> bool:
        return self.kind in {"Ref", "Import"}

    @property
    def followed(self) -> Kind:
        """What a reference points to; a reference again if that is nothing, or if it goes round in a circle."""
        return self if self.target is None else self.target


def accepts_anything(node: Kind) -> bool:
    return node.kind == "Unknown" or (node.kind == "Union" and any(map(accepts_anything, node.any_of)))  # type: ignore[arg-type]  # all nodes of a cast are kinds
