"""Repairs values by the rules R0 to R11 and reports every change and every remaining mismatch.

R0   A valid value with nothing to strip or fill is returned as the same object.
R1   A root of another type, or an object with none of its required keys, is left unchanged: `root_mismatch`.
R2   Nothing raises: values that cannot be evaluated (`not`, `false`, an unresolved `$ref`, cycles) stay: `unrepairable`.
R3   `format` is an annotation and not checked.
R4   A value of the right type that violates a constraint is kept, never truncated or padded: `constraint`.
R5   Another type is converted where nothing is lost (numeric text, "true", a single item of an array): `convert`.
R6   An optional property with a null that is not allowed is removed: `null_dropped`.
R7   An undeclared property is removed unless the schema is open or extras are kept: `strip`.
R8   In a union the variant that fits wins; otherwise the closest by tag, share of valid parts, or type.
R9   An `allOf` of objects is repaired as one object; where it cannot be merged, the value is kept: `unrepairable`.
R10  A missing property gets its declared default (`default`) or stays missing (`missing`); a type that cannot be
     converted is kept (`type_mismatch`).
R11  Nothing is silent: a remaining mismatch without a warning at or below it gets `constraint`.

A value with more faults than the limit is only stripped (R7): `repair_limit`, and no other warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import filterfalse, islice
from operator import is_
from typing import Any, Final, Literal

import msgspec

from enfold.envelope import REPAIR_LIMIT, ResultWarning
from enfold.schema.nodes import MISSING, Node
from enfold.schema.nodes.traits import ALL_TYPES, Tag, kinds_of, types_of_values
from enfold.schema.nodes.values import clone, is_member, lossless
from enfold.schema.repairs.bundle import Bundle, Bundles, KnownMemo, Pending, without_unknown
from enfold.schema.repairs.report import Entry, Path, Report, may_share

# Faulty values that one repair processes: a few tenths of a second.
_MAX_FIXES: Final = 60_000
# Attempts at unions may multiply with depth. After this many steps, per outermost attempt or in total (in proportion
# to the number of values), the likeliest variant is chosen without trying the others.
_STEPS: Final = 1_000
_LEAST_STEPS: Final = 1_000
_STEPS_PER_VALUE: Final = 10
_MAX_VALUES: Final = 10_000
_MAX_ATTEMPTS: Final = 8
# Defaults inside defaults may multiply with depth, and large ones with the objects that lack them.
_MAX_NESTED_DEFAULTS: Final = 10_000
_MAX_FILLED: Final = 500_000
# Comparisons of values with variants that have no distinguishing tag: most of a second.
_MAX_COMPARISONS: Final = 30_000

# Warnings that a valid value may have.
_HARMLESS: Final = frozenset({"strip", "default", "unrepairable"})
_CHANGES: Final = frozenset({"convert", "null_dropped"})
_NUMBERS: Final = frozenset({"integer", "number"})
# Properties stripped from objects in an array, reported once for all of them.
Siblings = dict[Any, Entry]
_MAX_SHARED: Final = 50


class Repaired(msgspec.Struct, frozen=True):
    """The data after repair, with a warning for each change and each remaining mismatch.

    Unchanged parts are shared with the input.
    """

    data: Any
    warnings: tuple[ResultWarning, ...] = ()


def repaired(bundles: Bundles, root: Node, value: Any, *, strip: bool) -> Repaired:
    """Repair a value; the value itself is not modified."""
    run = _RepairRun(bundles, value, _Mode(strip))
    try:
        try:
            return Repaired(run.whole(root, value), run.report.warnings())
        except _TooManyFaultsError:
            return Repaired(without_unknown(bundles, root, value) if strip else value, (_LIMIT_REACHED,))
    except Exception:  # noqa: BLE001  # R2: too deep for the stack, or objects that raise on access
        return Repaired(value, (ResultWarning("unrepairable", ""),))


def misfits(bundles: Bundles, root: Node, value: Any) -> tuple[ResultWarning, ...]:
    """Return warnings for the mismatches of an unrepaired value: nothing is stripped, filled or converted."""
    run = _RepairRun(bundles, value, _Mode(strip=False, fill=False))
    try:
        run.whole(root, value)
    except _TooManyFaultsError:
        return (_LIMIT_REACHED,)
    except Exception:  # noqa: BLE001  # as above
        return (ResultWarning("unrepairable", ""),)
    # A value that repair would have converted has the wrong type.
    for entry in run.report.entries:
        entry.code, entry.new = "type_mismatch" if entry.code in _CHANGES else entry.code, entry.old
    return run.report.warnings()


_LIMIT_REACHED: Final = ResultWarning(REPAIR_LIMIT, "")


class _TooManyFaultsError(Exception):
    """The value has more faults than one repair processes."""


class _KnownFix(msgspec.Struct, frozen=True):
    """The result for a value. References to the value and its bundle keep their identities unique."""

    bundle: Bundle
    value: Any
    path: Path
    result: Any
    entries: list[Entry]


class _Mode(msgspec.Struct, frozen=True):
    """What a repair may change, and whether its result may be discarded."""

    strip: bool
    fill: bool = True
    is_attempt: bool = False


class _RepairRun:
    """One repair: the report so far, the current mode and the remaining budgets."""

    def __init__(self, bundles: Bundles, value: Any, mode: _Mode) -> None:
        self.bundles = bundles
        self.report = Report()
        self.mode = mode
        self.filling: list[Bundle] = []
        self.nested_defaults = _MAX_NESTED_DEFAULTS
        self.values_left = _MAX_FILLED
        self.comparisons = _MAX_COMPARISONS
        self.fixes = _MAX_FIXES
        self.memo = bundles.new_memo()
        self.value = value
        self.known_fixes: dict[tuple[int, int, _Mode], _KnownFix] = {}
        self.steps = _STEPS

    @cached_property
    def budget(self) -> int:
        """The steps left for this repair; computed lazily, since few repairs need attempts."""
        return _LEAST_STEPS + _STEPS_PER_VALUE * count_values(self.value, _MAX_VALUES)

    def whole(self, root: Node, value: Any) -> Any:
        bundle = self.bundles.alone(root)
        if self.is_root_mismatch(root, value) and not self.fits(bundle, value):
            self.report.add("root_mismatch", None, value, value)
            return value
        data = self.fix(bundle, value, None)
        if not self.report.entries and not self.fits(bundle, data):
            self.report.add("constraint", None, value, value)
        return data

    def is_root_mismatch(self, root: Node, value: Any) -> bool:
        """R1: the outermost type is wrong, or the object has none of its required keys."""
        kinds, found = self.bundles.types_of(root), kinds_of(value)
        if not kinds & found and not (kinds & _NUMBERS and found & _NUMBERS):
            return bool(kinds)
        if type(value) is not dict:
            return False
        required = self.bundles.required_somewhere(root)
        return bool(required) and required.isdisjoint(value)

    def fix(self, bundle: Bundle, value: Any, path: Path) -> Any:
        """Repair a value for one bundle; check the result where a change inside could violate an outer constraint."""
        self.fixes -= 1
        if self.fixes < 0:
            raise _TooManyFaultsError
        if self.mode.is_attempt:
            self.steps -= 1
            self.budget -= 1
        if not bundle.is_fragile:
            return self.repair(bundle, value, path)
        before = len(self.report.entries)
        result = self.repair(bundle, value, path)
        if self.fits(bundle, value):
            return self.still_valid(bundle, value, result, before)
        if self.fits(bundle, result):
            return result
        return self._retry_without_changes(bundle, value, path, result, before)

    def fits(self, bundle: Bundle, value: Any) -> bool:
        return bundle.fits(value, self.memo)

    def still_valid(self, bundle: Bundle, value: Any, result: Any, before: int) -> Any:
        """Strip and fill a valid value, nothing else, and only if it stays valid."""
        is_harmless = all(entry.code in _HARMLESS for entry in self.report.entries[before:])
        if is_harmless and (result is value or self.fits(bundle, result)):
            return result
        self.report.remove_after(before)
        return value

    def _retry_without_changes(self, bundle: Bundle, value: Any, path: Path, result: Any, before: int) -> Any:
        """Repair again without stripping, then without filling; report the first result if neither fits (R11)."""
        first = self.report.remove_after(before)
        codes = {entry.code for entry in first}
        for code, mode in (("strip", self.mode_with(strip=False)), ("default", self.mode_with(fill=False))):
            if code in codes and self.may_try:
                better = self.fix_in(mode, bundle, value, path)
                if self.fits(bundle, better):
                    return better
                self.report.remove_after(before)
        self.report.entries.extend(first)
        if not first:
            self.report.add("constraint", path, result, result)
        elif result is not value and bundle.is_undecided and self.may_try:
            return self._repair_new_branches(bundle, result, path, first)
        return result

    def _repair_new_branches(self, bundle: Bundle, value: Any, path: Path, first: list[Entry]) -> Any:
        """Repair the changed value by the conditional branches that apply only after the change."""
        result, entries = self.attempt(bundle, value, path)
        reported = {(entry.code, entry.path) for entry in first}
        self.report.entries.extend(entry for entry in entries if (entry.code, entry.path) not in reported)
        return result

    def repair(self, bundle: Bundle, value: Any, path: Path) -> Any:
        if bundle.is_unusable:
            self.report.add("unrepairable", path, value, value)
            return value
        if bundle.pending is not None:
            return self.decide(bundle, bundle.pending, value, path)
        result = value
        if type(value) is dict and "object" in bundle.types:
            result = self.object(bundle, value, path)
        elif type(value) is list and "array" in bundle.types:
            result = self.array(bundle, value, path)
        elif not bundle.types & kinds_of(value):
            return self.mismatch(bundle, value, path)
        if bundle.constraints:
            self.report_broken_constraints(bundle, result, path)
        return result

    def report_broken_constraints(self, bundle: Bundle, value: Any, path: Path) -> None:
        """R4 and R2: the type is right, but the value violates a constraint."""
        for is_met, emit in bundle.constraints:
            if not is_met(value, self.memo):
                self.report.add(self.code_of(emit, value), path, value, value)
                return

    def code_of(self, emit: Node, value: Any) -> Literal["constraint", "unrepairable"]:
        """Return the code of a violated constraint; `not`, and patterns that exceeded their budget, are unrepairable."""
        if emit.not_ is not None and self.bundles.test_of(emit.not_)(value, self.memo):
            return "unrepairable"
        is_undecided = emit.pattern is not None and type(value) is str and emit.pattern.search(value) is None
        return "unrepairable" if is_undecided else "constraint"

    # Type mismatches: R5, R9, R10.

    def mismatch(self, bundle: Bundle, value: Any, path: Path) -> Any:
        if not bundle.types:
            self.report.add("unrepairable", path, value, value)
            return value
        if bundle.types == ALL_TYPES:  # an object outside JSON
            return value
        converted = self.converted(bundle, value)
        if converted is MISSING:
            self.report.add("type_mismatch", path, value, value)
            return value
        self.report.add("convert", path, value, converted)
        result = self.array(bundle, converted, path) if type(converted) is list else converted
        self.report_broken_constraints(bundle, result, path)
        return result

    def converted(self, bundle: Bundle, value: Any) -> Any:
        possible = list(lossless(value, bundle.types))
        result = next((candidate for candidate in possible if self.fits(bundle, candidate)), MISSING)
        if result is MISSING and "array" in bundle.types and value is not None:
            result = self.wrapped(bundle, value)
        if result is MISSING and possible and bundle.is_typed:
            return possible[0]
        return result

    def wrapped(self, bundle: Bundle, value: Any) -> Any:
        """Wrap a value that is valid as the single item of the array (R5)."""
        if bundle.ahead or not bundle.rest.nodes:
            return MISSING
        possible = (value, *lossless(value, bundle.rest.types))
        return next(([item] for item in possible if self.fits(bundle, [item])), MISSING)

    # Objects: R6, R7, R10.

    def object(
        self, bundle: Bundle, value: dict[Any, Any], path: Path, siblings: Siblings | None = None
    ) -> dict[Any, Any]:
        has_extras = not value.keys() <= bundle.names
        if has_extras and self.mode.strip and bundle.strips_extras:
            value, has_extras = self.stripped(bundle, value, path, siblings), False
        changes: dict[Any, Any] = {}
        for name in bundle.scan(value, self.memo):
            if name in value:
                self.member(bundle, name, value[name], path, changes)
            else:
                self.missing(bundle, name, path, changes)
        if has_extras:
            self.extras(bundle, value, path, changes)
        return _with(value, changes) if changes else value

    def stripped(self, bundle: Bundle, value: dict[Any, Any], path: Path, siblings: Siblings | None) -> dict[Any, Any]:
        """Return the object without undeclared properties, and register them for its siblings."""
        result = value.copy()
        for key in filterfalse(bundle.names.__contains__, value):
            entry = Entry("strip", (path, key), result.pop(key))
            self.report.entries.append(entry)
            if siblings is not None and len(siblings) < _MAX_SHARED and may_share(entry.path):
                siblings[key] = entry
        return result

    def member(self, bundle: Bundle, name: str, item: Any, path: Path, changes: dict[Any, Any]) -> None:
        child = bundle.child(name)
        if bundle.members[name].is_refused:
            self.report.add("constraint", (path, name), item, item)
            return
        if item is None and name not in bundle.required and self.refuses_null(child):
            self.report.add("null_dropped", (path, name))
            changes[name] = MISSING
            if name in bundle.wanted:
                self.missing(bundle, name, path, changes)
            return
        result = self.fix(child, item, (path, name))
        if result is not item:
            changes[name] = result

    def refuses_null(self, bundle: Bundle) -> bool:
        kinds = [self.bundles.types_of(node) for node in bundle.nodes]
        return all(kinds) and not all("null" in kind for kind in kinds)

    def missing(self, bundle: Bundle, name: str, path: Path, changes: dict[Any, Any]) -> None:
        default = bundle.wanted[name]
        if default is not MISSING and self.mode.fill and self.has_room_for(default):
            changes[name] = self.filled(bundle.child(name), default)
            self.report.add("default", (path, name), None, changes[name])
        elif name in bundle.required:
            self.report.add("missing", (path, name))

    def has_room_for(self, default: Any) -> bool:
        """Whether the result may grow by another default."""
        self.nested_defaults -= bool(self.filling)
        self.values_left -= count_values(default, _MAX_FILLED)
        return self.values_left >= 0 and (self.nested_defaults >= 0 or not self.filling)

    def filled(self, bundle: Bundle, default: Any) -> Any:
        """Return a default with nested defaults filled in; a recursive one only once per branch."""
        value = clone(default)  # so that changing a result does not change the schema
        if type(value) not in {dict, list} or bundle in self.filling:
            return value
        before = len(self.report.entries)
        self.filling.append(bundle)
        value = self.fix(bundle, value, None)
        self.filling.pop()
        self.report.remove_after(before)
        return value

    def extras(self, bundle: Bundle, value: dict[Any, Any], path: Path, changes: dict[Any, Any]) -> None:
        members, strip = bundle.members, self.mode.strip
        for key in [key for key in value if key not in members]:
            found = bundle.extra or bundle.property(key)
            if strip and (found.is_unknown or found.is_refused):
                self.report.add("strip", (path, key), value[key])
                changes[key] = MISSING
            elif found.is_refused:
                self.report.add("constraint", (path, key), value[key], value[key])
            elif found.nodes:
                result = self.fix(bundle.of(found.nodes), value[key], (path, key))
                if result is not value[key]:
                    changes[key] = result

    # Arrays.

    def array(self, bundle: Bundle, value: list[Any], path: Path) -> list[Any]:
        if not bundle.constrains_items:
            return value
        result, ahead, rest = list(value), bundle.ahead, bundle.rest
        for position, item in enumerate(value[:ahead]):
            result[position] = self.fix(bundle.item(position), item, (path, position))
        # Surplus items are one fault of the array, not one each.
        if not any(node.never for node in rest.nodes):
            self.items(rest, result, ahead, path)
        return value if all(map(is_, result, value)) else result

    def items(self, bundle: Bundle, items: list[Any], start: int, path: Path) -> None:
        """Repair the items from `start` on in place. Objects in an array often have the same undeclared properties."""
        is_clean, names, siblings, memo = bundle.is_clean, bundle.names, Siblings(), self.memo
        strips = self.mode.strip and bundle.only_strips
        for position, item in enumerate(islice(items, start, None), start):
            if is_clean(item, memo):
                continue
            if not strips or type(item) is not dict:
                items[position] = self.fix(bundle, item, (path, position))
                continue
            result = item
            if siblings and not item.keys() <= names:
                result = item.copy()
                for key in siblings:
                    if key in result:
                        del result[key]
                        siblings[key].count += 1
            if result is item or not is_clean(result, memo):
                result = self.object(bundle, result, (path, position), siblings)
            items[position] = result

    # Decisions that depend on the value: R8 and conditionals.

    def decide(self, bundle: Bundle, pending: Pending, value: Any, path: Path) -> Any:
        applied = pending.applied(value, lambda node, each: self.bundles.test_of(node)(each, self.memo))
        if not pending.is_union:
            return self.fix(bundle.joined(pending, applied), value, path)
        if not applied:
            return self.nearest(bundle, pending, value, path)
        if not has_unmapped_tag(self.bundles, pending, value):
            return self.exact(bundle, pending, applied, value, path)
        with self.using(self.mode_with(strip=False)):
            return self.exact(bundle, pending, applied, value, path)

    def exact(self, bundle: Bundle, pending: Pending, valid: tuple[Node, ...], value: Any, path: Path) -> Any:
        """Repair a value that is valid for some variants: one that leaves it unchanged wins, otherwise all apply."""
        together = bundle.joined(pending, valid)
        if len(valid) == 1:
            return self.fix(together, value, path)
        for variant in valid[:_MAX_ATTEMPTS] if self.may_try else ():
            result, entries = self.attempt(bundle.joined(pending, (variant,)), value, path)
            if result is value and not entries:
                return value
        if pending.kind == "oneOf":
            return self.fix_for_guess(bundle, together, value, path)
        return self.fix(together, value, path)

    def nearest(self, bundle: Bundle, pending: Pending, value: Any, path: Path) -> Any:
        """Repair a value that is valid for no variant: by its tag, or for the variant it is most like."""
        tagged = _by_tag(self.bundles, pending, value)
        if isinstance(tagged, str):
            return self.unknown_variant(bundle.joined(pending, ()), tagged, value, path)
        if tagged is not None:
            return self.fix(bundle.joined(pending, (tagged,)), value, path)
        self.comparisons -= len(pending.variants)
        if self.comparisons < 0:
            self.report.add("unrepairable", path, value, value)
            return value
        variants = by_likeness(self.bundles, pending.variants, value, self.memo)
        if not variants:
            self.report.add("type_mismatch", path, value, value)
            return value
        if len(variants) == 1:
            return self.fix(bundle.joined(pending, variants), value, path)
        return self.best_of(bundle, pending, variants[:_MAX_ATTEMPTS], value, path)

    def unknown_variant(self, rest: Bundle, tag: str, value: Any, path: Path) -> Any:
        """Handle a variant that the schema does not declare: keep its properties and apply the other constraints."""
        self.report.add("constraint", (path, tag), value[tag], value[tag])
        with self.using(self.mode_with(strip=False)):
            return self.repair(rest, value, path)

    def best_of(self, bundle: Bundle, pending: Pending, variants: tuple[Node, ...], value: Any, path: Path) -> Any:
        """Repair for the likeliest variant unless a later one gives a valid result without stripping more."""
        fewest: int | None = None
        for variant in variants if self.may_try else ():
            guess = bundle.joined(pending, (variant,))
            result, entries = self.attempt(guess, value, path)
            stripped = sum(entry.count for entry in entries if entry.code == "strip")
            fewest = stripped if fewest is None else fewest
            # Check against the guess itself: stripping for one variant may happen to make another fit.
            if stripped <= fewest and self.fits(guess, result):
                self.report.entries.extend(entries)
                return result
        return self.fix_in(self.mode_with(strip=False), bundle.joined(pending, variants[:1]), value, path)

    def fix_for_guess(self, bundle: Bundle, guess: Bundle, value: Any, path: Path) -> Any:
        """Repair for a guess if that makes the value fit; otherwise repair without stripping."""
        if self.may_try:
            result, entries = self.attempt(guess, value, path)
            if self.fits(bundle, result):
                self.report.entries.extend(entries)
                return result
        return self.fix_in(self.mode_with(strip=False), guess, value, path)

    # Attempts.

    def attempt(self, bundle: Bundle, value: Any, path: Path) -> tuple[Any, list[Entry]]:
        """Return a tentative result and its report entries."""
        before = len(self.report.entries)
        with self.using(self.mode_with(is_attempt=True)):
            result = self.fix(bundle, value, path)
        return result, self.report.remove_after(before)

    def fix_in(self, mode: _Mode, bundle: Bundle, value: Any, path: Path) -> Any:
        """Repair as an attempt in another mode."""
        with self.using(msgspec.structs.replace(mode, is_attempt=True)):
            if self.may_try or self.filling:
                return self.fix(bundle, value, path)
            return self.fix_once(bundle, value, path)

    def fix_once(self, bundle: Bundle, value: Any, path: Path) -> Any:
        """`fix` with a memo, for runs without further attempts: the same value then always has the same result."""
        key = (id(bundle), id(value), self.mode)
        known = self.known_fixes.get(key)
        if known is None or known.path != path:
            before = len(self.report.entries)
            result = self.fix(bundle, value, path)
            known = self.known_fixes[key] = _KnownFix(bundle, value, path, result, self.report.remove_after(before))
        self.report.entries.extend(known.entries)
        return known.result

    @property
    def may_try(self) -> bool:
        if not self.mode.is_attempt:
            self.steps = _STEPS
        return self.steps > 0 and self.budget > 0

    def mode_with(self, **changes: bool) -> _Mode:
        return msgspec.structs.replace(self.mode, **changes)

    @contextmanager
    def using(self, mode: _Mode) -> Iterator[None]:
        before, self.mode = self.mode, mode
        yield
        self.mode = before


def _with(value: dict[Any, Any], changes: dict[Any, Any]) -> dict[Any, Any]:
    result = value.copy()
    for key, item in changes.items():
        if item is MISSING:
            del result[key]
        else:
            result[key] = item
    return result


def count_values(value: Any, most: int) -> int:
    """Count a value and all values inside it, up to `most`."""
    count, waiting = 0, [value]
    while waiting and count < most:
        each = waiting.pop()
        count += 1
        if type(each) is dict or type(each) is list:
            waiting.extend(islice(each.values() if type(each) is dict else each, most))
    return count


def has_unmapped_tag(bundles: Bundles, pending: Pending, value: Any) -> bool:
    """Whether the tag of a value is neither in OpenAPI's discriminator mapping nor a constant of a variant."""
    hint = pending.node.discriminator
    return hint is not None and bool(hint.names) and isinstance(_by_tag(bundles, pending, value), str)


def _by_tag(bundles: Bundles, pending: Pending, value: Any) -> Node | str | None:
    """Return the variant that the value's tag selects, or the name of a tag with an unknown value; None without either."""
    if type(value) is not dict:
        return None
    for tag in bundles.variants.tags(pending.node, pending.variants):
        if tag.name in value:
            selected = _variant_for(tag, value[tag.name])
            if selected is not None:
                return selected
            if tag.hint is None or (tag.hint.names and type(value[tag.name]) is str):
                return tag.name
    return None


def _variant_for(tag: Tag, value: Any) -> Node | None:
    selected = tag.variant_for(value)
    converted = lossless(value, types_of_values(tag.values)) if selected is None else ()
    return next(filter(None, map(tag.variant_for, converted)), selected)


def by_likeness(bundles: Bundles, variants: tuple[Node, ...], value: Any, memo: KnownMemo) -> tuple[Node, ...]:
    """Return the variants that a value could become valid for, the likeliest first."""
    scores = {variant: _score(bundles, variant, value, memo) for variant in variants}
    likely = [variant for variant in variants if scores[variant][0]]
    return tuple(sorted(likely, key=lambda variant: scores[variant], reverse=True))


def _score(bundles: Bundles, variant: Node, value: Any, memo: KnownMemo) -> tuple[int, int, float]:
    """Rank a variant: matching type before convertible, then matching constants, then the share of valid parts."""
    kinds = bundles.types_of(variant)
    if kinds_of(value) & kinds:
        return (2, _constants_met(bundles, variant, value), _share(bundles, variant, value, memo))
    is_convertible = any(True for _ in lossless(value, kinds)) or ("array" in kinds and value is not None)
    return (1 if is_convertible else 0, 0, 0.0)


def _constants_met(bundles: Bundles, variant: Node, value: Any) -> int:
    if type(value) is not dict:
        return 0
    constants = bundles.variants.constants(variant)
    return sum(1 for name, values in constants.items() if is_member(value.get(name), values))


def _share(bundles: Bundles, variant: Node, value: Any, memo: KnownMemo) -> float:
    """Return the share of an array or object that is valid for a variant, or for the best of its own variants."""
    if type(value) not in {dict, list}:
        return 0.0
    bundle = bundles.alone(variant)
    inner = bundle.pending.variants if bundle.pending is not None else ()
    candidates = [bundles.get((variant, other)) for other in inner] or [bundle]
    return max(_share_of(candidate, value, memo) for candidate in candidates)


def _share_of(bundle: Bundle, value: Any, memo: KnownMemo) -> float:
    if type(value) is list:
        fitting = sum(bundle.item(position).fits(item, memo) for position, item in enumerate(value))
        return fitting / max(1, len(value))
    fitting = sum(_knows(bundle, key, item, memo) for key, item in value.items())
    missing = sum(1 for name in bundle.required if name not in value)
    return fitting / max(1, len(value) + missing)


def _knows(bundle: Bundle, key: Any, item: Any, memo: KnownMemo) -> bool:
    if key in bundle.members:
        return bundle.child(key).fits(item, memo)
    found = bundle.extra or bundle.property(key)
    if found.nodes:
        return bundle.of(found.nodes).fits(item, memo)
    return not found.is_unknown and not found.is_refused
