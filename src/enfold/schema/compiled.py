"""Schemas compiled once: whether a value is valid, whether it may pass as it is, and its repair if it may not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Final, Literal

from enfold.envelope import ResultWarning
from enfold.schema.budget import shared_budget, with_shared_budget
from enfold.schema.checks import CheckWriter, new_program
from enfold.schema.checks.clean import CleanWriter
from enfold.schema.checks.program import CheckResults
from enfold.schema.nodes import Node, TooLargeError, mark_endless, multiplies, read_nodes
from enfold.schema.nodes.reference import ordered_key
from enfold.schema.nodes.traits import Variants, decides_by_value, has_unevaluated, looks_at_whole
from enfold.schema.nodes.values import own_copy
from enfold.schema.plain import is_plain
from enfold.schema.repairs import Repaired, misfits, repaired, unchanged
from enfold.schema.repairs.bundle import Bundle, Bundles
from enfold.schema.structs import QuickTests, quick_tests


class Schema:
    """One JSON Schema, compiled. A schema that could not be compiled accepts everything and says why in `problem`."""

    __slots__ = ("_check", "_clean", "_effort", "_keep", "_may_break", "_strip", "problem", "root", "variants")

    def __init__(self, schema: Any) -> None:
        nodes, self.problem = _read(schema)
        self.root = nodes[0]
        self.variants = Variants()
        self._may_break = any(looks_at_whole(node) or decides_by_value(node) for node in nodes)
        # A limit on the effort costs as much as checking a number, and few schemas have a pattern that could take long.
        self._effort = shared_budget if any(map(_may_search_long, nodes)) else nullcontext
        remembers = mark_endless(nodes) or multiplies(nodes) or any(map(has_unevaluated, nodes))
        checks = CheckWriter(new_program(remembers=remembers))
        self._strip = _bundles(checks, self.variants, strip=True)
        self._keep = _bundles(checks, self.variants, strip=False)
        # Many schemas are read and never asked: source is written when the first question comes.
        self._check: Callable[[Any], bool] = self._first_check
        self._clean: Callable[[Any], bool] = self._first_clean

    def check(self, value: Any) -> bool:
        """Whether JSON Schema 2020-12 calls the value valid; `format` is only an annotation."""
        try:
            return self._check(value)
        except Exception:  # noqa: BLE001  # deeper than the stack, or an object that breaks when it is looked at
            return False

    def is_clean(self, value: Any) -> bool:
        """Whether repair would give this very object back: valid, plain, nothing to strip, nothing to fill."""
        try:
            return self._clean(value) or (self._may_break and self._repair_keeps(value))
        except Exception:  # noqa: BLE001  # as above
            return False

    def clean_test(self) -> Callable[[Any], bool]:
        """`is_clean` without its guard, for a caller who has one: what breaks when it is looked at breaks the test."""
        return self.is_clean if self._may_break else self._bounded(self._strip.clean_of(self.root))

    def quick_tests(self) -> QuickTests | None:
        """Tests by msgspec, if it can say what the schema says; they are new at each call."""
        return quick_tests(self.root)

    def _first_check(self, value: Any) -> bool:
        self._check = self._bounded(self._strip.check_of(self.root))
        return self._check(value)

    def _first_clean(self, value: Any) -> bool:
        self._clean = self._bounded(self._strip.clean_of(self.root))
        return self._clean(value)

    def _bounded(self, test: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return test if self._effort is nullcontext else with_shared_budget(test)

    def _repair_keeps(self, value: Any) -> bool:
        """Whether stripping or filling would break a demand on the whole, so that repair does neither."""
        return is_plain(value) and self._check(value) and unchanged(self._strip, self.root, value, strip=True)

    def repair(self, value: Any, extras: Literal["strip", "keep"] = "strip") -> Repaired:
        """The value by the rules of repair; `extras="keep"` leaves properties that the schema does not know."""
        bundles = self._keep if extras == "keep" else self._strip
        with self._effort():
            try:
                is_clean = bundles.clean_of(self.root)(value)
            except Exception:  # noqa: BLE001  # as above
                is_clean = False
            return Repaired(value) if is_clean else repaired(bundles, self.root, value, strip=bundles is self._strip)

    def whole(self) -> Bundle:
        """All that applies to a value of the schema, seen together."""
        return self._keep.get((self.root,))

    def check_of(self, node: Node) -> Callable[[Any], bool]:
        """The check of one node of the schema."""
        return self._keep.check_of(node)

    def mismatches(self, value: Any) -> tuple[ResultWarning, ...]:
        """Where the value does not fit, if it is left as it is; nothing for a valid one."""
        with self._effort():
            return () if self.check(value) else misfits(self._keep, self.root, value)


def _may_search_long(node: Node) -> bool:
    patterns = (node.pattern, *(pattern for pattern, _ in node.patterns))
    return any(pattern is not None and not pattern.is_quick for pattern in patterns)


def _read(schema: Any) -> tuple[list[Node], str | None]:
    if not isinstance(schema, dict | bool):
        return read_nodes({}), f"A schema is an object or a boolean, not {type(schema).__name__}"
    try:
        return read_nodes(schema), None
    except TooLargeError as error:
        return read_nodes({}), str(error)
    except Exception as error:  # noqa: BLE001  # one schema of a stranger must not stop the import of all others
        return read_nodes({}), f"The schema cannot be read: {error}"


def _bundles(checks: CheckWriter, variants: Variants, *, strip: bool) -> Bundles:
    def stays(node: Node, value: Any, answers: CheckResults | None) -> bool:
        return unchanged(bundles, node, value, strip=strip, answers=answers)

    bundles = Bundles(CleanWriter(checks.program, checks, strip=strip, unchanged=stays), variants)
    return bundles


def repair(schema: dict[str, Any] | bool, value: Any, *, extras: Literal["strip", "keep"] = "strip") -> Repaired:
    """The value made to fit the schema as far as that can be done without loss, with a warning for all else.

    The value itself is never changed; the result shares with it what stayed the same.
    """
    return compile_schema(schema).repair(value, extras)


class _SeenSchema:
    """A schema object seen before, with copies of its outer layers that tell whether somebody changed it since."""

    __slots__ = ("_outer", "_properties", "compiled", "schema")

    def __init__(self, schema: dict[str, Any], compiled: Schema) -> None:
        self.schema = schema
        self.compiled = compiled
        self._outer = dict(schema)
        properties = schema.get("properties")
        self._properties = dict(properties) if isinstance(properties, dict) else properties

    def is_unchanged(self, schema: dict[str, Any]) -> bool:
        return self.schema is schema and self._outer == schema and self._properties == schema.get("properties")


_MAX_CACHED: Final = 512
_known: Final[dict[int, _SeenSchema]] = {}


def compile_schema(schema: Any) -> Schema:
    """The compiled schema. Equal schemas share one, made from a copy; a dict is taken as a value.

    A change of its keys or of its properties is noticed; for one deeper inside, give a new dict.
    """
    known = _known.get(id(schema))
    if known is not None and known.is_unchanged(schema):
        return known.compiled
    compiled = _compiled(_Key(schema))
    if isinstance(schema, dict):
        if len(_known) >= _MAX_CACHED:
            _known.clear()
        _known[id(schema)] = _SeenSchema(schema, compiled)
    return compiled


def compile_apart(schema: Any) -> Schema:
    """The schema compiled once more, for another thread: it writes its functions when they are first asked for."""
    return _compiled_apart(_Key(schema))


class _Key:
    """A schema that is equal to another if their texts are."""

    __slots__ = ("_text", "schema")

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._text = ordered_key(schema)  # faults and defaults come in the order of the properties

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text


@lru_cache(maxsize=1024)
def _compiled(key: _Key) -> Schema:
    # The key stays in the cache, and must not hold on to what its caller may change.
    key.schema = own_copy(key.schema)
    return Schema(key.schema)


@lru_cache(maxsize=64)
def _compiled_apart(key: _Key) -> Schema:
    key.schema = own_copy(key.schema)
    return Schema(key.schema)
