"""Generates the test for values that repair would return unchanged: valid, plain, nothing to strip, nothing to fill."""

from __future__ import annotations

from typing import Any, Final

from enfold.schema.checks import CheckWriter
from enfold.schema.checks.program import Function
from enfold.schema.nodes import MAX_NODES, MISSING, Node, in_place
from enfold.schema.nodes.traits import (
    accepted,
    are_exclusive,
    constraining_parts,
    constrains_arrays,
    declared_default,
    has_only,
    has_unevaluated,
    is_choice,
    is_leaf,
    named_by,
    nullable_inner,
    with_all_in_place,
)


class CleanWriter(CheckWriter):
    """Emits stricter checks than validation does; what they cannot decide they reject, and repair finds nothing to do."""

    provisional = False

    def __init__(self, checks: CheckWriter, *, strip: bool) -> None:
        super().__init__(checks.program)
        self.prefix = "s" if strip else "e"
        self.checks = checks
        self.strip = strip
        self._merged: dict[tuple[int, ...], Node | None] = {}

    def expression(self, node: Node, variable: str) -> str:
        return "False" if node.problem else super().expression(node, variable)

    def write(self, function: Function, node: Node, variable: str) -> None:
        inner = nullable_inner(node)
        if node.never or node.problem or node.cyclic:
            function.line("return False")
        elif inner is not None:
            with function.block(f"if {variable} is not None:"):
                self.emit(function, inner, variable)
        else:
            self.parts(function, node, variable)

    def parts(self, function: Function, node: Node, variable: str) -> None:
        parts = constraining_parts(node) or [node]
        whole = self.merged(parts)
        if whole is None or any(part.problem or part.cyclic for part in parts):
            function.line("return False")
        elif is_choice(whole):
            self.choice(function, whole, variable)
        elif all(self.is_silent(applied, whole) for applied in in_place(whole)) and not has_unevaluated(whole):
            self.local(function, whole, variable)
            self.checks.applied(function, whole, variable)
        else:
            function.line("return False")

    def choice(self, function: Function, node: Node, variable: str) -> None:
        if node.one_of and not are_exclusive(node.one_of):
            self.checks.choices(function, node, variable)
        function.reject_unless(self.any_variant(node.any_of or node.one_of, variable))

    def is_silent(self, node: Node, whole: Node) -> bool:
        """Whether a node that applies in place only constrains: it does not affect what is stripped, kept or filled."""
        names = declared_names(whole)
        return all(only_demands(part) and names.issuperset(named_by(part)) for part in with_all_in_place(node))

    def merged(self, parts: list[Node]) -> Node | None:
        """Merge several nodes into one; None where that takes more than a union of properties."""
        if len(parts) == 1:
            return parts[0]
        key = tuple(sorted(part.index for part in parts))
        if key not in self._merged:
            self._merged[key] = self.merge(parts)
        return self._merged[key]

    def merge(self, parts: list[Node]) -> Node | None:
        if any(part.patterns or part.additional or part.names or has_unevaluated(part) for part in parts):
            return None
        if sum(1 for part in parts if constrains_arrays(part)) > 1 or any(is_choice(part) for part in parts):
            return None
        whole = self.new()
        for part in parts:
            self._add(whole, part)
        # Parts with other keywords are checked one by one.
        whole.all_of = tuple(part for part in parts if not has_only(part, _SHAPE))
        return whole

    def new(self, **fields: Any) -> Node:
        return Node(MAX_NODES + self.program.number(), **fields)

    def _add(self, whole: Node, part: Node) -> None:
        whole.types = part.types if whole.types is None else accepted(part) & whole.types
        whole.required += tuple(name for name in part.required if name not in whole.required)
        known = whole.properties or {}
        for name, child in (part.properties or {}).items():
            known[name] = self.new(all_of=(known[name], child)) if name in known else child
        whole.properties = known or None
        if constrains_arrays(part):
            whole.prefix, whole.items = part.prefix, part.items

    # Rules that validation does not have.

    def anything(self, variable: str) -> str:
        return f"is_plain({variable})"

    def needs_no_test(self, node: Node) -> bool:  # noqa: ARG002  # a value without a schema must be plain
        return False

    def unspecified_items(self, function: Function, node: Node, variable: str) -> None:  # noqa: ARG002  # as above
        function.reject_unless(f"is_plain({variable})")

    def containing(self, function: Function, node: Node, wanted: Node, variable: str) -> None:
        self.checks.containing(function, node, wanted, variable)

    def names_required(self, node: Node) -> tuple[str, ...]:
        filled = (name for name, child in (node.properties or {}).items() if self.has_good_default(child))
        return tuple(dict.fromkeys((*node.required, *filled)))

    def has_good_default(self, node: Node) -> bool:
        default = declared_default(node)
        return default is not MISSING and self.program.standalone(self.checks.function(node))(default) is True

    def members(self, function: Function, node: Node, variable: str) -> None:
        if not constrains_members(node):
            function.reject_unless(f"is_plain({variable})")
        elif self.takes_only_named(node) and not node.patterns and declared_names(node).issuperset(named_by(node)):
            # Extra properties are the most common fault and the cheapest to detect.
            function.reject_if(f"len({variable}) > {len(node.properties or ())}")
            count = self.declared(function, node, variable, counts=True)
            if not declared_names(node).issubset(self.names_required(node)):
                function.reject_if(f"len({variable}) != {count}")
        else:
            self.declared(function, node, variable, counts=False)
            self.other_properties(function, node, variable)

    def takes_only_named(self, node: Node) -> bool:
        """Whether a property that the node does not name would be stripped or rejected."""
        if node.additional is not None:
            return node.additional.never
        return self.strip and bool(node.properties)

    def additional(self, function: Function, node: Node, key: str, item: str) -> None:
        if node.additional is not None and node.additional.never:
            function.line("return False")
        elif self.takes_only_named(node):
            known = self.program.constant(frozenset(named_by(node)))
            function.reject_unless(f"{key} in {known} and is_plain({item})")
        elif node.additional is not None:
            function.reject_if(f"type({key}) is not str")
            self.emit(function, node.additional, item)
        else:
            function.reject_unless(f"type({key}) is str and is_plain({item})")


def declared_names(node: Node) -> frozenset[str]:
    return frozenset(node.properties or ())


def only_demands(node: Node) -> bool:
    """Whether a node declares no children and no default: it does not affect what is kept or filled."""
    has_say = node.patterns or node.prefix or node.items or node.additional or node.default is not MISSING
    if has_say or node.problem or node.cyclic or has_unevaluated(node):
        return False
    return all(is_leaf(child) and child.default is MISSING for child in (node.properties or {}).values())


def constrains_members(node: Node) -> bool:
    return bool(node.properties or node.patterns or node.required or node.additional is not None)


# The keywords of a part that merging covers; the parts of a reference and its problems are considered before.
_SHAPE: Final = ("types", "properties", "required", "prefix", "items", "all_of", "problem", "cyclic", "unmatched")
