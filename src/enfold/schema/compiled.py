"""Compiled schemas: validate a value, test whether it can pass unchanged, and repair it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Final, Literal

from enfold.envelope import ResultWarning
from enfold.schema.budget import shared_budget, with_shared_budget
from enfold.schema.checks import CheckWriter, new_program
from enfold.schema.checks.clean import CleanWriter
from enfold.schema.nodes import Node, TooLargeError, mark_cyclic, multiplies, read_nodes
from enfold.schema.nodes.traits import Variants, has_unevaluated
from enfold.schema.nodes.values import CompiledSchemas
from enfold.schema.repairs import Repaired, misfits, repaired
from enfold.schema.repairs.bundle import Bundles
from enfold.schema.structs import QuickTests, quick_tests


class Schema:
    """A compiled JSON Schema. One that cannot be compiled accepts everything and gives the reason in `problem`."""

    def __init__(self, schema: Any) -> None:
        nodes, self.problem = _read(schema)
        self.root = nodes[0]
        # The pattern budget costs as much as checking a number, so only schemas with slow patterns use it.
        self._effort = shared_budget if any(map(_may_search_long, nodes)) else nullcontext
        memoizes = mark_cyclic(nodes) or multiplies(nodes) or any(map(has_unevaluated, nodes))
        checks = CheckWriter(new_program(memoizes=memoizes))
        variants = Variants()
        self._strip = Bundles(CleanWriter(checks, strip=True), variants)
        self.bundles = Bundles(CleanWriter(checks, strip=False), variants)  # without stripping

    def check(self, value: Any) -> bool:
        """Whether the value is valid under JSON Schema 2020-12; `format` is an annotation."""
        try:
            return self._check(value)
        except Exception:  # noqa: BLE001  # too deep for the stack, or an object that raises on access
            return False

    def quick_tests(self) -> QuickTests | None:
        """Return new tests by msgspec, or None where msgspec cannot express the schema."""
        return quick_tests(self.root)

    # Many schemas are never used: source is generated on the first check.

    @cached_property
    def _check(self) -> Callable[[Any], bool]:
        return self._bounded(self._strip.check_of(self.root))

    @cached_property
    def is_clean(self) -> Callable[[Any], bool]:
        """Test whether repair would return the same object: valid, plain, nothing to strip, nothing to fill.

        Rejects, or raises for, some values that repair leaves unchanged: where parts overlap, or at a great depth.
        """
        return self._bounded(self._strip.clean_of(self.root))

    def _bounded(self, test: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return test if self._effort is nullcontext else with_shared_budget(test)

    def repair(self, value: Any, extras: Literal["strip", "keep"] = "strip") -> Repaired:
        """Repair a value; `extras="keep"` keeps undeclared properties."""
        bundles = self.bundles if extras == "keep" else self._strip
        with self._effort():
            try:
                is_clean = bundles.clean_of(self.root)(value)
            except Exception:  # noqa: BLE001  # as above
                is_clean = False
            return Repaired(value) if is_clean else repaired(bundles, self.root, value, strip=bundles is self._strip)

    def mismatches(self, value: Any) -> tuple[ResultWarning, ...]:
        """Return warnings for the places where the unrepaired value is invalid."""
        with self._effort():
            return () if self.check(value) else misfits(self.bundles, self.root, value)


def _may_search_long(node: Node) -> bool:
    patterns = (node.pattern, *(pattern for pattern, _ in node.patterns))
    return any(pattern is not None and not pattern.is_quick for pattern in patterns)


def _read(schema: Any) -> tuple[list[Node], str | None]:
    if not isinstance(schema, dict | bool):
        return read_nodes({}), f"A schema must be an object or a boolean, not {type(schema).__name__}"
    try:
        return read_nodes(schema), None
    except TooLargeError as error:
        return read_nodes({}), str(error)
    except Exception as error:  # noqa: BLE001  # one third-party schema must not prevent the import of all others
        return read_nodes({}), f"Cannot read the schema: {error}"


def repair(schema: dict[str, Any] | bool, value: Any, *, extras: Literal["strip", "keep"] = "strip") -> Repaired:
    """Make a value fit a schema as far as possible without loss; warn about everything else.

    The value itself is not modified; the result shares unchanged parts with it.
    """
    return compile_schema(schema).repair(value, extras)


_compiled: Final = CompiledSchemas(Schema)
_compiled_apart: Final = CompiledSchemas(Schema)


def compile_schema(schema: Any) -> Schema:
    """Compile a schema; equal schemas share one compiled form, made from a copy."""
    return _compiled.of(schema)


def compile_apart(schema: Any) -> Schema:
    """Compile a schema separately, for use in another thread."""
    return _compiled_apart.of(schema)
