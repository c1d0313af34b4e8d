"""Generates the Python source that validates a value against a node: one function per shared or large node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from functools import cache
from operator import itemgetter
from typing import Any, Final

from enfold.schema.checks.program import CheckMemo, Function, Program, memoizing
from enfold.schema.nodes import CONTAINERS, TYPES, Node
from enfold.schema.nodes.traits import (
    accepted,
    are_exclusive,
    branches,
    constrains_types,
    dependents,
    has_unevaluated,
    is_blank,
    is_leaf,
    needs_branches,
    nullable_inner,
)
from enfold.schema.nodes.values import all_differ, bounds_of, equality_key, is_multiple
from enfold.schema.plain import is_plain

# Required properties are looked up in one call from `MIN_BATCH` on; beyond `MAX_UNROLLED` properties are checked in a loop,
# which compiles faster than a test for each.
MIN_BATCH: Final = 4
MAX_UNROLLED: Final = 256


def new_program(*, memoizes: bool) -> Program:
    """Return an empty program with the functions that generated source calls."""
    tools = {"all_differ": all_differ, "is_multiple": is_multiple, "is_plain": is_plain, "equality_key": equality_key}
    return Program(memoizes=memoizes, tools=tools)


class CheckWriter:
    """Emits statements that return False where a value is invalid according to JSON Schema."""

    prefix = "c"
    provisional: bool | None = True  # the result assumed for a node that is applied to the same value again

    def __init__(self, program: Program) -> None:
        self.program = program

    def function(self, node: Node) -> str:
        """Return the name of the function for this node."""
        name = f"{self.prefix}{node.index}"
        memoize = memoizing(name, self.provisional)
        self.program.declare(name, lambda function: self.write(function, node, "v"), memoize)
        return name

    def emit(self, function: Function, node: Node, variable: str) -> None:
        """Emit the check of a variable against a node: inline if the node is small, otherwise as a call."""
        if is_leaf(node):
            self.write(function, node, variable)
        elif node.shared or not function.fits_inline:
            function.reject_unless(self.program.call(self.function(node), variable))
        else:
            with function.level():
                self.write(function, node, variable)

    def expression(self, node: Node, variable: str) -> str:
        """Return the expression that is true if the variable is valid for the node."""
        if is_leaf(node):
            return self.scalar(node, variable)
        return self.program.call(self.function(node), variable)

    def write(self, function: Function, node: Node, variable: str) -> None:
        if node.never:
            function.line("return False")
            return
        inner = nullable_inner(node)
        if inner is not None:
            with function.block(f"if {variable} is not None:"):
                self.emit(function, inner, variable)
            return
        self.local(function, node, variable)
        self.applied(function, node, variable)

    def applied(self, function: Function, node: Node, variable: str) -> None:
        """Emit the checks of the nodes that apply to the same value."""
        for part in node.all_of:
            self.emit(function, part, variable)
        self.choices(function, node, variable)
        if node.not_ is not None:
            function.reject_if(self.expression(node.not_, variable))
        if node.if_ is not None:
            self.condition(function, node, variable)
        self.dependents(function, node, variable)
        if has_unevaluated(node):
            fits = self.program.constant(fits_unevaluated(self, node))
            function.reject_unless(self.program.call(fits, variable))

    def choices(self, function: Function, node: Node, variable: str) -> None:
        if node.any_of:
            function.reject_unless(self.any_variant(node.any_of, variable))
        if node.one_of and are_exclusive(node.one_of):
            function.reject_unless(self.any_variant(node.one_of, variable))
        elif node.one_of:
            count = function.new_local()
            function.line(f"{count} = 0")
            for part in node.one_of:
                function.line(f"if {self.expression(part, variable)}: {count} += 1")
            function.reject_if(f"{count} != 1")

    def any_variant(self, variants: tuple[Node, ...], variable: str) -> str:
        # Repeated nodes are tested once. Grouped parentheses limit how deeply the parser nests.
        return either([self.expression(part, variable) for part in dict.fromkeys(variants)])

    def condition(self, function: Function, node: Node, variable: str) -> None:
        if node.if_ is None or (node.then is None and node.else_ is None):
            return
        holds = function.new_local()
        function.line(f"{holds} = {self.expression(node.if_, variable)}")
        for branch, head in ((node.then, f"if {holds}:"), (node.else_, f"if not {holds}:")):
            if branch is not None:
                with function.block(head):
                    self.emit(function, branch, variable)

    def dependents(self, function: Function, node: Node, variable: str) -> None:
        if not node.dependent_schemas:
            return
        with function.block(f"if type({variable}) is dict:"):
            for name, part in node.dependent_schemas.items():
                with function.block(f"if {name!r} in {variable}:"):
                    self.emit(function, part, variable)

    # A node's own keywords.

    def local(self, function: Function, node: Node, variable: str) -> None:
        if not needs_branches(node):
            function.reject_unless(self.scalar(node, variable))
            return
        if node.enum is not None:
            function.reject_unless(self.member(node.enum, variable))
        self.branches(function, node, variable)

    def branches(self, function: Function, node: Node, variable: str) -> None:
        """Emit one branch per JSON type that the node constrains."""
        kinds = accepted(node)
        if len(kinds - {"null"}) == 1:
            (kind,) = kinds - {"null"}
            with function.block(f"if {variable} is not None:") if "null" in kinds else nullcontext():
                function.reject_if(f"type({variable}) is not {_CLASSES[kind]}")
                self.container(function, node, kind, variable)
            return
        for kind in ("object", "array"):
            with function.block(f"if type({variable}) is {_CLASSES[kind]}:"):
                if kind in kinds:
                    self.container(function, node, kind, variable)
                else:
                    function.line("return False")
        rest = either([self.scalar_of(node, kind, variable) for kind in types_to_test(kinds - CONTAINERS)])
        with function.block(f"if type({variable}) is not dict and type({variable}) is not list:"):
            function.reject_unless(rest)

    def container(self, function: Function, node: Node, kind: str, variable: str) -> None:
        if kind == "object":
            self.object(function, node, variable)
        else:
            self.array(function, node, variable)

    # Scalars, as expressions.

    def scalar(self, node: Node, variable: str) -> str:
        """Return the expression for a node that needs no statements."""
        if node.never:
            return "False"
        if node.enum is None:
            return self.typed(node, variable)
        member = self.member(node.enum, variable)
        # Scalar enum members have builtin types, so a member is plain.
        is_all = not constrains_types(node) and not any(type(value) in {dict, list} for value in node.enum)
        return member if is_all else both([member, self.typed(node, variable)])

    def typed(self, node: Node, variable: str) -> str:
        if not constrains_types(node):
            return self.anything(variable)
        return either([self.scalar_of(node, kind, variable) for kind in types_to_test(accepted(node))])

    def anything(self, variable: str) -> str:  # noqa: ARG002  # `CleanWriter` uses it
        return "True"

    def scalar_of(self, node: Node, kind: str, variable: str) -> str:
        test = _TYPE_TESTS[kind].format(v=variable)
        if kind == "string":
            return both([test, *self.text_limits(node, variable)])
        if kind in {"number", "integer"}:
            return both([test, *self.limits(node, "number", variable)])
        if kind in CONTAINERS:
            return both([test, self.anything(variable)])
        return test

    def text_limits(self, node: Node, variable: str) -> list[str]:
        limits = self.limits(node, "string", variable)
        if node.pattern is not None:
            limits.append(f"{self.program.constant(node.pattern.search)}({variable}) is True")
        return limits

    def limits(self, node: Node, kind: str, variable: str) -> list[str]:
        literal = self.program.literal
        return [bound.source.format(v=variable, limit=literal(limit)) for bound, limit in bounds_of(node, kind)]

    def member(self, values: list[Any], variable: str) -> str:
        """Return the test for enum membership. Each type is tested separately because True equals 1."""
        tests = [f"{variable} is {value!r}" for value in (None, True, False) if any(item is value for item in values)]
        words = frozenset(value for value in values if type(value) is str)
        if words:
            tests.append(f"(type({variable}) is str and {self.among(words, variable)})")
        numbers = frozenset(value for value in values if type(value) in {int, float})
        if numbers:
            tests.append(
                f"((type({variable}) is int or type({variable}) is float) and {self.among(numbers, variable)})"
            )
        containers = {equality_key(value) for value in values if type(value) in {dict, list}}
        if containers:
            is_member = f"equality_key({variable}) in {self.program.constant(containers)}"
            tests.append(f"((type({variable}) is dict or type({variable}) is list) and {is_member})")
        return either(tests)

    def among(self, values: frozenset[Any], variable: str) -> str:
        if len(values) == 1:
            return f"{variable} == {self.program.literal(next(iter(values)))}"
        return f"{variable} in {self.program.constant(values)}"

    # Arrays.

    def array(self, function: Function, node: Node, variable: str) -> None:
        function.reject_unless(both(self.limits(node, "array", variable)))
        if node.unique:
            function.reject_unless(f"all_differ({variable})")
        if node.contains is not None:
            self.containing(function, node, node.contains, variable)
        self.prefix_items(function, node, variable)
        self.rest_of_items(function, node, variable)

    def containing(self, function: Function, node: Node, wanted: Node, variable: str) -> None:
        count, item = function.new_local(), function.new_local()
        function.line(f"{count} = 0")
        with function.block(f"for {item} in {variable}:"):
            function.line(f"if {self.expression(wanted, item)}: {count} += 1")
        function.reject_if(f"{count} < {self.program.literal(self.least_contained(node))}")
        if node.max_contains is not None:
            function.reject_if(f"{count} > {self.program.literal(node.max_contains)}")

    def least_contained(self, node: Node) -> float:
        return 1 if node.min_contains is None else node.min_contains

    def prefix_items(self, function: Function, node: Node, variable: str) -> None:
        for position, child in enumerate(node.prefix):
            with function.block(f"if len({variable}) > {position}:"):
                self.prefix_item(function, child, position, variable)

    def prefix_item(self, function: Function, child: Node, position: int, variable: str) -> None:
        item = function.new_local()
        function.line(f"{item} = {variable}[{position}]")
        self.emit(function, child, item)

    def rest_of_items(self, function: Function, node: Node, variable: str) -> None:
        if node.items is None:
            self.unspecified_items(function, node, variable)
            return
        rest = f"{variable}[{len(node.prefix)}:]" if node.prefix else variable
        if node.items.never:
            function.reject_if(rest)
            return
        item = function.new_local()
        with function.block(f"for {item} in {rest}:"):
            self.emit(function, node.items, item)

    def unspecified_items(self, function: Function, node: Node, variable: str) -> None:
        """Emit the check of items without a schema; plain validation has none."""

    # Objects.

    def object(self, function: Function, node: Node, variable: str) -> None:
        function.reject_unless(both(self.limits(node, "object", variable)))
        for name, needed in node.dependent_required.items():
            with function.block(f"if {name!r} in {variable}:"):
                for other in needed:
                    function.reject_if(f"{other!r} not in {variable}")
        if node.names is not None:
            key = function.new_local()
            with function.block(f"for {key} in {variable}:"):
                self.emit(function, node.names, key)
        self.members(function, node, variable)

    def members(self, function: Function, node: Node, variable: str) -> None:
        counts = node.additional is not None and node.additional.never and not node.patterns
        count = self.declared(function, node, variable, counts=counts)
        if counts:
            function.reject_if(f"len({variable}) != {count}")
        elif node.patterns or node.additional is not None:
            self.other_properties(function, node, variable)

    def declared(self, function: Function, node: Node, variable: str, *, counts: bool) -> str:
        """Emit the checks of the declared properties; return the expression that counts those present."""
        properties = node.properties or {}
        needed = dict.fromkeys(self.names_required(node))
        if len(properties) > MAX_UNROLLED:
            return self.in_a_loop(function, properties, frozenset(needed), variable)
        present = sum(1 for name in needed if name in properties)
        optional = [name for name in properties if name not in needed]
        together = self.look_up_batch(function, needed, properties, variable)
        for name in needed:
            if name not in together:
                self.required(function, properties.get(name), repr(name), variable)
        count = ""
        if counts and optional:
            count = function.new_local()
            function.line(f"{count} = {present}")
        for name in optional:
            self.optional(function, properties[name], repr(name), variable, count)
        return count or str(present)

    def in_a_loop(self, function: Function, properties: dict[str, Node], needed: frozenset[str], variable: str) -> str:
        """Emit the checks of very many properties, whose functions are found by name; return the number present."""
        test_of = cache(lambda name: self.program.function(self.function(properties[name])))
        count, key, item = (function.new_local() for _ in range(3))
        function.reject_unless(f"{variable}.keys() >= {self.program.constant(needed)}")
        function.line(f"{count} = 0")
        test = f"{self.program.constant(test_of)}({key})"
        loop, is_declared = (
            f"for {key}, {item} in {variable}.items():",
            f"if {key} in {self.program.constant(properties)}:",
        )
        with function.block(loop), function.block(is_declared):
            function.line(f"{count} += 1")
            function.reject_unless(self.program.call(test, item))
        return count

    def names_required(self, node: Node) -> tuple[str, ...]:
        """Return the names that must be present."""
        return node.required

    def look_up_batch(
        self, function: Function, needed: Iterable[str], properties: dict[str, Node], variable: str
    ) -> dict[str, str]:
        """Emit one lookup for several values, which is faster than single lookups; return their local names."""
        wanted = [name for name in needed if name in properties and not self.needs_no_test(properties[name])]
        if len(wanted) < MIN_BATCH:
            return {}
        items = {name: function.new_local() for name in wanted}
        function.may_raise_key_error = True
        function.line(f"{', '.join(items.values())} = {self.program.constant(itemgetter(*wanted))}({variable})")
        for name, item in items.items():
            self.emit(function, properties[name], item)
        return items

    def required(self, function: Function, child: Node | None, word: str, variable: str) -> None:
        if child is None or self.needs_no_test(child):
            function.reject_if(f"{word} not in {variable}")
            return
        item = function.new_local()
        function.may_raise_key_error = True
        function.line(f"{item} = {variable}[{word}]")
        self.emit(function, child, item)

    def optional(self, function: Function, child: Node, word: str, variable: str, count: str) -> None:
        with function.block(f"if {word} in {variable}:"):
            if count:
                function.line(f"{count} += 1")
            if not self.needs_no_test(child):
                item = function.new_local()
                function.line(f"{item} = {variable}[{word}]")
                self.emit(function, child, item)

    def needs_no_test(self, node: Node) -> bool:
        return is_blank(node)

    def other_properties(self, function: Function, node: Node, variable: str) -> None:
        """Emit the checks of `patternProperties` and `additionalProperties` on undeclared properties."""
        key, item = function.new_local(), function.new_local()
        with function.block(f"for {key}, {item} in {variable}.items():"):
            matched = self.by_pattern(function, node, key, item)
            others = [f"not {matched}"] if matched else []
            if node.properties:
                others.append(f"{key} not in {self.program.constant(node.properties)}")
            with function.block(f"if {' and '.join(others)}:" if others else "if True:"):
                self.additional(function, node, key, item)

    def by_pattern(self, function: Function, node: Node, key: str, item: str) -> str:
        if not node.patterns:
            return ""
        matched = function.new_local()
        function.line(f"{matched} = False")
        for pattern, child in node.patterns:
            with function.block(f"if type({key}) is str and {self.program.constant(pattern.search)}({key}):"):
                function.line(f"{matched} = True")
                self.emit(function, child, item)
        return matched

    def additional(self, function: Function, node: Node, key: str, item: str) -> None:  # noqa: ARG002  # as above
        if node.additional is not None:
            self.emit(function, node.additional, item)


_CLASSES: Final = {"object": "dict", "array": "list"}

_TYPE_TESTS: Final = {
    "null": "{v} is None",
    "boolean": "type({v}) is bool",
    "integer": "(type({v}) is int or (type({v}) is float and {v}.is_integer()))",
    "number": "(type({v}) is float and {v} - {v} == 0 or type({v}) is int)",  # excludes infinity and NaN
    "string": "type({v}) is str",
    "array": "type({v}) is list",
    "object": "type({v}) is dict",
}


def types_to_test(kinds: frozenset[str]) -> list[str]:
    """Return the types in a fixed order, without `integer` where `number` covers it."""
    return [kind for kind in TYPES if kind in kinds and not (kind == "integer" and "number" in kinds)]


def either(tests: list[str]) -> str:
    if not tests:
        return "False"
    if "True" in tests:
        return "True"
    while len(tests) > 1:
        tests = [_joined(tests[start : start + 20], " or ") for start in range(0, len(tests), 20)]
    return tests[0]


def both(tests: list[str]) -> str:
    constraints = [test for test in tests if test != "True"]
    return _joined(constraints, " and ") if constraints else "True"


def _joined(tests: list[str], word: str) -> str:
    return tests[0] if len(tests) == 1 else f"({word.join(tests)})"


Fits = Callable[[Node, Any], bool]


def fits_unevaluated(writer: CheckWriter, node: Node) -> Callable[..., bool]:
    """Return a function that checks the parts of a value that no other keyword evaluated."""

    def rest_fits(value: Any, memo: CheckMemo | None = None) -> bool:
        def fits(part: Node, item: Any) -> bool:
            return writer.program.function(writer.function(part))(item, memo)  # type: ignore[no-any-return]  # generated

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
    """Return the property names evaluated by any node that applies to the object."""
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
    """Return the positions evaluated by any node that applies to the array."""
    positions: set[int] = set()
    for part in applying(node, value, fits):
        if part.items is not None or (part is not node and part.unevaluated_items is not None):
            return range(len(value))
        positions.update(range(len(part.prefix)))
        if part.contains is not None:
            positions.update(at for at, item in enumerate(value) if fits(part.contains, item))
    return positions


def applying(node: Node, value: Any, fits: Fits) -> Iterator[Node]:
    """Yield the node and all nodes that apply in place; of variants and branches, only those the value is valid for."""
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
