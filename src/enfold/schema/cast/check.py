"""TypeBox's `Value.Check`: generated Python source for each kind, compiled on first use.

It differs from JSON Schema validation where TypeBox does: lengths in UTF-16 units, tuples of fixed length, properties
that may be `undefined`, and `unevaluatedProperties` of an intersection by visible names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enfold.schema.cast.kinds import (
    CastError,
    JavaScriptPattern,
    Kind,
    is_multiple,
    is_unique,
    length,
    own_values,
    too_deep,
    unknown_reference,
)
from enfold.schema.checks import CheckWriter, both, either
from enfold.schema.checks.program import Function, Program
from enfold.schema.nodes import MISSING, Node, mark_cyclic, multiplies
from enfold.schema.nodes.traits import is_blank, is_leaf
from enfold.schema.nodes.values import equality_key

# Check results of one cast; None where a schema cannot cause exponentially many checks.
Answers = dict[Any, Any] | None

# The functions that generated source calls.
_TOOLS: Final[dict[str, Any]] = {
    "all_differ": is_unique,
    "is_multiple": is_multiple,
    "equality_key": equality_key,
    "length": length,
    "own_values": own_values,
    "missing": MISSING,
}
# The number of variants written inline instead of as a call.
_INLINE_VARIANTS: Final = 4


class Checks:
    """The checks of one schema, compiled on demand, since large schemas are rarely used completely."""

    def __init__(self, nodes: list[Kind]) -> None:
        self.root = nodes[0]
        may_throw = any(node.kind == "Intersect" and node.unevaluated_properties is not None for node in nodes)
        may_fail = may_throw or any(node.problem for node in nodes) or mark_cyclic(list(nodes))
        self._program = Program(memoizes=multiplies(list(nodes)), tools=_TOOLS)
        self._writer = _TypeBoxWriter(self._program, may_throw=may_throw, may_fail=may_fail)
        self.refuses_missing = self._writer.refuses_missing
        self._known: dict[int, Callable[..., bool]] = {}
        self._rebuilds: dict[int, Callable[..., Any] | None] = {}

    def new_memo(self) -> Answers:
        return {} if self._program.memoizes else None

    def fits(self, node: Any, value: Any, memo: Answers) -> bool:
        check = self._known.get(node.index)
        if check is None:
            check = self._known[node.index] = self._program.function(self._writer.function(node))
        return check(value, memo)

    def rebuild(self, node: Kind) -> Callable[..., Any] | None:
        """Return a function that rebuilds an invalid object of this kind and keeps its valid parts.

        None for the first object: compiling takes longer than rebuilding one object without it.
        """
        if node.index not in self._rebuilds:
            self._rebuilds[node.index] = None
            return None
        known = self._rebuilds[node.index]
        if known is None:
            known = self._rebuilds[node.index] = self._program.function(self._writer.rebuild(node))
        return known


class _TypeBoxWriter(CheckWriter):
    """Emits statements that return False where a value is invalid according to TypeBox."""

    prefix = "t"
    provisional = None  # a kind that applies itself to the same value recurses endlessly, as in JavaScript

    def __init__(self, program: Program, *, may_throw: bool, may_fail: bool) -> None:
        super().__init__(program)
        self.may_throw = may_throw  # where a check may raise, the first of two faults decides, so their order is kept
        self.may_fail = may_fail  # a check may raise, so variants are tested in order
        self._refusals: dict[int, bool] = {}

    def rebuild(self, node: Kind) -> str:
        """Return the name of a function `(value, caster)` that rebuilds an object."""
        name = f"r{node.index}"
        self.program.declare(name, lambda function: self.write_rebuild(function, node))
        return name

    def write_rebuild(self, function: Function, node: Kind) -> None:
        function.parameters = ", caster"
        function.line("result = {}")
        function.ending = "return result"
        for name, part in (node.properties or {}).items():
            key, kind = repr(name), self.program.constant(part)
            kept = f"x if {self.expression(part, 'x')} else caster.cast_invalid({kind}, x)"
            function.line(f"x = v.get({key}, missing)")
            function.line(f"if x is not missing: result[{key}] = {kept}")
            if name in node.required_names:
                function.line(f"else: caster.put(result, {key}, caster.visit_missing({kind}))")

    def expression(self, node: Any, variable: str) -> str:
        if node.is_reference:
            return self.reference(node.followed, variable)
        if node.kind == "Union" and len(node.any_of) <= _INLINE_VARIANTS and all(map(is_leaf, node.any_of)):
            return self.any_variant(node.any_of, variable)
        return super().expression(node, variable)

    def reference(self, target: Kind, variable: str) -> str:
        if target.is_reference:
            return f"{self.program.constant(_failing(target))}({variable})"
        return self.expression(target, variable)

    def write(self, function: Function, node: Any, variable: str) -> None:
        if node.is_reference:
            function.reject_unless(self.reference(node.followed, variable))
        elif node.kind == "Union" and self.may_fail:
            function.reject_unless(self.any_variant(node.any_of, variable))
        else:
            super().write(function, node, variable)

    def any_variant(self, variants: tuple[Node, ...], variable: str) -> str:
        """Test variants in order: one that raises is tested before one that accepts everything."""
        tests = [self.expression(part, variable) for part in dict.fromkeys(variants)]
        before = tests[: tests.index("True")] if "True" in tests else []
        return f"({either(before)} or True)" if before else either(tests)

    def applied(self, function: Function, node: Any, variable: str) -> None:
        if node.kind == "Intersect" and node.unevaluated_properties is not None:
            self.intersection(function, node, variable)
        else:
            super().applied(function, node, variable)

    def intersection(self, function: Function, node: Kind, variable: str) -> None:
        """Check all names even where a member does not fit: for null TypeBox throws then."""
        fits, values, key, item = (function.new_local() for _ in range(4))
        function.line(f"{fits} = {both([self.expression(member, variable) for member in node.all_of])}")
        function.line(f"{values} = own_values({variable})")
        named = self.program.constant(JavaScriptPattern(_key_pattern(node)).search)
        other = "False" if node.is_closed else self.expression(node.unevaluated_properties, item)
        with function.block(f"for {key}, {item} in {values}:"):
            function.reject_unless(either([f"{named}({key})", other]))
        function.reject_unless(fits)

    def text_limits(self, node: Node, variable: str) -> list[str]:
        limits = []
        if node.min_length is not None:
            least = self.program.literal(node.min_length)
            limits.append(f"(len({variable}) >= {least} or length({variable}) >= {least})")
        if node.max_length is not None:
            most = self.program.literal(node.max_length)
            limits.append(f"len({variable}) <= {most} and ({variable}.isascii() or length({variable}) <= {most})")
        if node.pattern is not None:
            limits.append(f"{self.program.constant(node.pattern.search)}({variable}) is True")
        return limits

    def array(self, function: Function, node: Any, variable: str) -> None:
        if node.kind == "Tuple":
            function.reject_if(f"len({variable}) != {len(node.prefix)}")
            for position, child in enumerate(node.prefix):
                self.prefix_item(function, child, position, variable)
            return
        function.reject_unless(both(self.limits(node, "array", variable)))
        self.rest_of_items(function, node, variable)
        if node.unique:
            function.reject_unless(f"all_differ({variable})")
        if node.contains is not None:
            self.containing(function, node, node.contains, variable)
        elif node.min_contains is not None or node.max_contains is not None:
            function.line("return False")  # without `contains`, TypeBox counts items of type Never

    def least_contained(self, node: Node) -> float:
        return max(1, node.min_contains or 0)

    def names_required(self, node: Any) -> tuple[str, ...]:
        return tuple(name for name in node.properties or () if name in node.required_names)

    def members(self, function: Function, node: Any, variable: str) -> None:
        if node.kind == "Record":
            super().members(function, node, variable)
            return
        if node.is_closed and not self.may_throw:
            function.reject_if(f"len({variable}) > {len(node.properties)}")
        needed = [node.properties[name] for name in self.names_required(node)]
        if self.may_throw or not all(map(self.never_missing, needed)):
            self.one_by_one(function, node, variable)
        else:
            self.declared(function, node, variable, counts=False)
        self.extras(function, node, variable)

    def one_by_one(self, function: Function, node: Kind, variable: str) -> None:
        """Check the properties in order: where a check may raise, the first fault decides."""
        for name, child in (node.properties or {}).items():
            if name not in node.required_names:
                self.optional(function, child, repr(name), variable, "")
            elif self.never_missing(child):
                self.required(function, child, repr(name), variable)
            else:
                self.perhaps_missing(function, child, repr(name), variable)

    def perhaps_missing(self, function: Function, child: Node, word: str, variable: str) -> None:
        """Check a required property whose kind accepts its absence."""
        item = function.new_local()
        function.line(f"{item} = {variable}.get({word}, missing)")
        self.emit(function, child, item)
        if _extends_undefined(child):
            function.reject_if(f"{word} not in {variable}")

    def extras(self, function: Function, node: Kind, variable: str) -> None:
        properties = node.properties or {}
        if node.is_closed:
            # TypeBox counts before it compares, including undeclared names in `required`.
            is_counted = node.required_count == len(properties)
            counted = f"len({variable}) != {len(properties)} and " if is_counted else ""
            function.reject_if(f"{counted}not {variable}.keys() <= {self.program.constant(frozenset(properties))}")
        elif node.additional is not None and not is_blank(node.additional):
            self.other_properties(function, node, variable)

    # Missing values.

    def never_missing(self, node: Any) -> bool:
        """Whether an object without this required property is always invalid."""
        if node.kind == "Unknown" or self.refuses_missing(node):
            return True
        return not self.may_throw and _extends_undefined(node)

    def refuses_missing(self, node: Any) -> bool:
        """Whether the kind always rejects a missing value without raising."""
        known = self._refusals.get(node.index)
        if known is None:
            self._refusals[node.index] = False  # a cycle is left to the check itself
            known = self._refusals[node.index] = self._refuses_now(node)
        return known

    def _refuses_now(self, node: Kind) -> bool:
        match node.kind:
            case "Unknown" | "Not":
                return False
            case "Union":
                return all(map(self.refuses_missing, node.any_of))
            case "Intersect":
                return not self.may_throw and any(map(self.refuses_missing, node.all_of))
            case "Ref" | "Import":
                return not node.followed.is_reference and self.refuses_missing(node.followed)
            case _:
                return True


def _failing(reference: Kind) -> Callable[[Any], bool]:
    """Return a check that raises for an unresolved or circular reference, which TypeBox detects on use."""

    def fail(_: Any) -> bool:
        raise dead_reference(reference)

    return fail


def dead_reference(reference: Kind) -> CastError:
    return unknown_reference(reference.name) if reference.target is None else too_deep()


def _key_pattern(node: Kind) -> str:
    """Return the pattern that TypeBox builds from visible property names, without escaping them."""
    return f"^({'|'.join(f'({key})' for key in _keys(node))})$"


def _keys(node: Any) -> list[str]:
    match node.kind:
        case "Intersect":
            return [key for member in node.all_of for key in _keys(member)]
        case "Union":
            first, *others = map(_keys, node.any_of)
            return [key for key in first if all(key in other for other in others)]
        case "Tuple":
            return [str(i) for i in range(len(node.prefix))]
        case "Array":
            return ["[number]"]
        case "Object":
            return list(node.properties)
        case "Record":
            source = node.patterns[0][0].source if node.patterns else "^(.*)$"
            return [source[1:-1] if source.startswith("^") and source.endswith("$") else source]
        case _:
            return []


def _extends_undefined(node: Any) -> bool:
    match node.kind:
        case "Intersect":
            return all(map(_extends_undefined, node.all_of))
        case "Union":
            return any(map(_extends_undefined, node.any_of))
        case "Not":
            return not _extends_undefined(node.not_)
        case _:
            return False
