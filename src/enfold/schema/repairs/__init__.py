"""Repair by the rules R0 to R11: what a value becomes under a schema, and a report of every change and every misfit.

R0   A valid value with nothing to strip or fill is given back as the same object.
R1   A root of another type, or an object with none of its required keys, stays untouched: `root_mismatch`.
R2   Nothing is raised: what cannot be judged (`not`, `false`, a lost `$ref`, endless depth) is kept: `unrepairable`.
R3   `format` describes, and is not checked.
R4   The right type with a broken constraint is kept, never cut or padded: `constraint`.
R5   Another type is converted where nothing is lost (numeric text, "true", a lone item of an array): `convert`.
R6   An optional property with a null that is not allowed is left out: `null_dropped`.
R7   A property that the schema does not know is left out, unless the schema is open or extras are kept: `strip`.
R8   Of a union the variant that fits wins; else the one whose tag, share of valid parts, or type comes nearest.
R9   An `allOf` of objects is repaired as one object; where it cannot be merged, the value is kept: `unrepairable`.
R10  A missing property gets its declared default (`default`) or stays missing (`missing`); a type that cannot be
     converted is kept (`type_mismatch`).
R11  Nothing is silent: what still does not fit, and has no warning at or below it, gets `constraint`.

A value with more faults than one repair takes on only loses what R7 removes: `repair_limit`, and no other warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import filterfalse, islice
from operator import is_
from typing import Any, Final, Literal

import msgspec

from enfold.envelope import REPAIR_LIMIT, ResultWarning
from enfold.schema.checks.program import StepsLeft
from enfold.schema.nodes import MISSING, Node
from enfold.schema.nodes.traits import ALL_TYPES, Tag, branches, dependents, kinds_of, types_of_values
from enfold.schema.nodes.values import clone, is_member, lossless
from enfold.schema.repairs.bundle import Bundle, Bundles, KnownResults, Pending, without_unknown
from enfold.schema.repairs.report import Entry, Path, Report, may_share

# Values that one repair looks at because something is wrong with them; these take some tenths of a second.
_MAX_FIXES: Final = 60_000
# Attempts at unions may multiply with depth. After so many steps, within one outermost attempt or altogether (some for
# each value inside), the likeliest variant is taken unseen.
_STEPS: Final = 1_000
_LEAST_STEPS: Final = 1_000
_STEPS_PER_VALUE: Final = 10
_MAX_VALUES: Final = 10_000
_MAX_ATTEMPTS: Final = 8
# Defaults inside defaults may multiply with depth, and large ones with the objects that lack them.
_MAX_NESTED_DEFAULTS: Final = 10_000
_MAX_FILLED: Final = 500_000
# Values held against variants that no tag tells apart; these take a good part of a second.
_MAX_COMPARISONS: Final = 30_000

# What may be said about a value that is valid.
_HARMLESS: Final = frozenset({"strip", "default", "unrepairable"})
_CHANGES: Final = frozenset({"convert", "null_dropped"})
_NUMBERS: Final = frozenset({"integer", "number"})
# Properties that objects in an array lose, each told of once for all of them.
Siblings = dict[Any, Entry]
_MAX_SHARED: Final = 50


class Repaired(msgspec.Struct, frozen=True):
    """The data after repair, and a warning for each change and for each place that still does not fit.

    What did not change is shared with the input.
    """

    data: Any
    warnings: tuple[ResultWarning, ...] = ()


def repaired(bundles: Bundles, root: Node, value: Any, *, strip: bool) -> Repaired:
    """The value repaired as a whole; it is never changed itself."""
    run = _RepairRun(bundles, value, strip=strip)
    try:
        try:
            return Repaired(run.whole(root, value), run.report.warnings())
        except _TooManyFaultsError:
            return Repaired(without_unknown(bundles, root, value) if strip else value, (_LIMIT_REACHED,))
    except Exception:  # noqa: BLE001  # R2: deeper than the stack, or objects that break when they are looked at
        return Repaired(value, (ResultWarning("unrepairable", ""),))


def misfits(bundles: Bundles, root: Node, value: Any) -> tuple[ResultWarning, ...]:
    """Where a value that is left as it is does not fit: nothing is stripped, filled or converted."""
    run = _RepairRun(bundles, value, strip=False)
    run.fill = False
    try:
        run.whole(root, value)
    except _TooManyFaultsError:
        return (_LIMIT_REACHED,)
    except Exception:  # noqa: BLE001  # as above
        return (ResultWarning("unrepairable", ""),)
    # What repair would have changed has, as it stands, the wrong type.
    for entry in run.report.entries:
        entry.code, entry.new = "type_mismatch" if entry.code in _CHANGES else entry.code, entry.old
    return run.report.warnings()


def unchanged(bundles: Bundles, node: Node, value: Any, *, strip: bool, answers: KnownResults = None) -> bool:
    """Whether repair would give this very value back and say nothing; `answers` are those that are known already."""
    run = _RepairRun(bundles, value, strip=strip, answers=answers)
    return run.fix(bundles.alone(node), value, None) is value and not run.report.entries


_LIMIT_REACHED: Final = ResultWarning(REPAIR_LIMIT, "")


class _TooManyFaultsError(Exception):
    """The steps of a repair are used up."""


class _KnownFix(msgspec.Struct, frozen=True):
    """What a value has become; it is kept with its bundle, so that nothing else takes their identities meanwhile."""

    bundle: Bundle
    value: Any
    path: Path
    result: Any
    entries: list[Entry]


class _RepairRun:
    """One repair: the report so far, what it may do, and how much may still be tried."""

    def __init__(self, bundles: Bundles, value: Any, *, strip: bool, answers: KnownResults = None) -> None:
        self.bundles = bundles
        self.report = Report()
        self.strip = strip
        self.fill = True
        self.filling: list[Bundle] = []
        self.nested_defaults = _MAX_NESTED_DEFAULTS
        self.values_left = _MAX_FILLED
        self.comparisons = _MAX_COMPARISONS
        self.fixes = _MAX_FIXES
        self.answers = bundles.no_answers() if answers is None else answers
        self.outermost_value = value
        if self.answers is not None:
            self.answers.outermost_value = self.answers.outermost_value or (value,)
            self.outermost_value = self.answers.outermost_value[0]
        self.known_fixes: dict[tuple[int, int, bool, bool], _KnownFix] = {}
        self.is_attempt = False
        self.steps = _STEPS

    @cached_property
    def budget(self) -> StepsLeft:
        """The steps that are left for this repair and for all that share its answers; few repairs try anything."""
        if self.answers is not None and self.answers.steps_left is not None:
            return self.answers.steps_left
        left = StepsLeft(_LEAST_STEPS + _STEPS_PER_VALUE * count_values(self.outermost_value, _MAX_VALUES))
        if self.answers is not None:
            self.answers.steps_left = left
        return left

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
        """R1: not even the outermost type is right, or none of the keys that make the object what it should be."""
        kinds, found = self.bundles.types_of(root), kinds_of(value)
        if not kinds & found and not (kinds & _NUMBERS and found & _NUMBERS):
            return bool(kinds)
        if type(value) is not dict:
            return False
        required = self.bundles.required_somewhere(root)
        return bool(required) and required.isdisjoint(value)

    def fix(self, bundle: Bundle, value: Any, path: Path) -> Any:
        """The value repaired for one bundle, and checked where a change inside could do harm."""
        self.fixes -= 1
        if self.fixes < 0:
            raise _TooManyFaultsError
        if self.is_attempt:
            self.steps -= 1
            self.budget.count -= 1
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
        return bundle.fits(value, self.answers)

    def still_valid(self, bundle: Bundle, value: Any, result: Any, before: int) -> Any:
        """A valid value is stripped and filled, nothing else, and only if it stays valid."""
        is_harmless = all(entry.code in _HARMLESS for entry in self.report.entries[before:])
        if is_harmless and (result is value or self.fits(bundle, result)):
            return result
        self.report.remove_after(before)
        return value

    def _retry_without_changes(self, bundle: Bundle, value: Any, path: Path, result: Any, before: int) -> Any:
        """Repair again without stripping, then without filling; R11: the first result is reported if neither fits."""
        first = self.report.remove_after(before)
        codes = {entry.code for entry in first}
        for code, setting in (("strip", "strip"), ("default", "fill")):
            if code in codes and self.may_try:
                better = self.without(setting, bundle, value, path)
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
        """Repair the changed value by the branches of conditions that hold only since the change."""
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
        if bundle.demands:
            self.note_broken_demands(bundle, result, path)
        return result

    def note_broken_demands(self, bundle: Bundle, value: Any, path: Path) -> None:
        """R4 and R2: the type is right, but the value as a whole is not what is asked for."""
        for is_met, demand in bundle.demands:
            if not is_met(value, self.answers):
                self.report.add(self.code_of(demand, value), path, value, value)
                return

    def code_of(self, demand: Node, value: Any) -> Literal["constraint", "unrepairable"]:
        """What a `not` forbids, and a pattern that took too long, are beyond repair."""
        if demand.not_ is not None and self.bundles.test_of(demand.not_)(value, self.answers):
            return "unrepairable"
        is_undecided = demand.pattern is not None and type(value) is str and demand.pattern.search(value) is None
        return "unrepairable" if is_undecided else "constraint"

    # Another type than the schema has: R5, R9, R10.

    def mismatch(self, bundle: Bundle, value: Any, path: Path) -> Any:
        if not bundle.types:
            self.report.add("unrepairable", path, value, value)
            return value
        if bundle.types == ALL_TYPES:  # every type will do, so this is an object that JSON does not have
            return value
        converted = self.converted(bundle, value)
        if converted is MISSING:
            self.report.add("type_mismatch", path, value, value)
            return value
        self.report.add("convert", path, value, converted)
        result = self.array(bundle, converted, path) if type(converted) is list else converted
        self.note_broken_demands(bundle, result, path)
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
        """R5: a value that is valid as the only item of the array."""
        if bundle.ahead or not bundle.rest.nodes:
            return MISSING
        possible = (value, *lossless(value, bundle.rest.types))
        return next(([item] for item in possible if self.fits(bundle, [item])), MISSING)

    # Objects: R6, R7, R10.

    def object(
        self, bundle: Bundle, value: dict[Any, Any], path: Path, siblings: Siblings | None = None
    ) -> dict[Any, Any]:
        has_extras = not value.keys() <= bundle.names
        if has_extras and self.strip and bundle.strips_extras:
            value, has_extras = self.stripped(bundle, value, path, siblings), False
        changes: dict[Any, Any] = {}
        for name in bundle.scan(value, self.answers):
            if name in value:
                self.member(bundle, name, value[name], path, changes)
            else:
                self.missing(bundle, name, path, changes)
        if has_extras:
            self.extras(bundle, value, path, changes)
        return _with(value, changes) if changes else value

    def stripped(self, bundle: Bundle, value: dict[Any, Any], path: Path, siblings: Siblings | None) -> dict[Any, Any]:
        """The object without what is unknown, which is looked for in its siblings too."""
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
        if default is not MISSING and self.fill and self.has_room_for(default):
            changes[name] = self.filled(bundle.child(name), default)
            self.report.add("default", (path, name), None, changes[name])
        elif name in bundle.required:
            self.report.add("missing", (path, name))

    def has_room_for(self, default: Any) -> bool:
        """Whether the result may grow by another default; a default that is left out is valid without those inside it."""
        self.nested_defaults -= bool(self.filling)
        self.values_left -= count_values(default, _MAX_FILLED)
        return self.values_left >= 0 and (self.nested_defaults >= 0 or not self.filling)

    def filled(self, bundle: Bundle, default: Any) -> Any:
        """A default with the defaults inside it, each kind only once on the way down: some would never end."""
        value = clone(default)  # one for each result, so that nobody changes the schema by changing a result
        if type(value) not in {dict, list} or bundle in self.filling:
            return value
        before = len(self.report.entries)
        self.filling.append(bundle)
        value = self.fix(bundle, value, None)
        self.filling.pop()
        self.report.remove_after(before)
        return value

    def extras(self, bundle: Bundle, value: dict[Any, Any], path: Path, changes: dict[Any, Any]) -> None:
        members, strip = bundle.members, self.strip
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
        if not bundle.says_items:
            return value
        result, ahead, rest = list(value), bundle.ahead, bundle.rest
        for position, item in enumerate(value[:ahead]):
            result[position] = self.fix(bundle.item(position), item, (path, position))
        # Items too many are one fault of the array, not one each.
        if not any(node.never for node in rest.nodes):
            self.items(rest, result, ahead, path)
        return value if all(map(is_, result, value)) else result

    def items(self, bundle: Bundle, items: list[Any], start: int, path: Path) -> None:
        """Repair the items from `start` on in their list; objects often lose what those before them lost, and no more."""
        is_clean, names, siblings, answers = bundle.is_clean, bundle.names, Siblings(), self.answers
        strips = self.strip and bundle.only_strips
        for position, item in enumerate(islice(items, start, None), start):
            if is_clean(item, answers):
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
            if result is item or not is_clean(result, answers):
                result = self.object(bundle, result, (path, position), siblings)
            items[position] = result

    # What depends on the value: R8, and conditions.

    def decide(self, bundle: Bundle, pending: Pending, value: Any, path: Path) -> Any:
        if pending.kind == "if":
            taken = branches(pending.node, lambda tested: self.bundles.test_of(tested)(value, self.answers))
            return self.fix(bundle.joined(pending, tuple(taken)), value, path)
        if pending.kind == "dependentSchemas":
            return self.fix(bundle.joined(pending, tuple(dependents(pending.node, value))), value, path)
        valid = tuple(variant for variant in pending.variants if self.bundles.test_of(variant)(value, self.answers))
        if not valid:
            return self.nearest(bundle, pending, value, path)
        if not has_unmapped_tag(self.bundles, pending, value):
            return self.exact(bundle, pending, valid, value, path)
        with self.setting("strip", on=False):
            return self.exact(bundle, pending, valid, value, path)

    def exact(self, bundle: Bundle, pending: Pending, valid: tuple[Node, ...], value: Any, path: Path) -> Any:
        """The value is valid for some variants: one that would leave it alone wins, else they all have a say."""
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
        choice = choose(self.bundles, pending, value, self.answers, self.may_compare)
        if choice.unknown_tag is not None:
            return self.unknown_variant(bundle.joined(pending, ()), choice.unknown_tag, value, path)
        if not choice.variants:
            self.report.add("unrepairable" if choice.is_too_much else "type_mismatch", path, value, value)
            return value
        if len(choice.variants) == 1:
            return self.fix(bundle.joined(pending, choice.variants), value, path)
        return self.best_of(bundle, pending, choice.variants[:_MAX_ATTEMPTS], value, path)

    def unknown_variant(self, rest: Bundle, tag: str, value: Any, path: Path) -> Any:
        """A variant that the schema does not know yet: nobody can tell what belongs to it, but the rest still applies."""
        self.report.add("constraint", (path, tag), value[tag], value[tag])
        with self.setting("strip", on=False):
            return self.repair(rest, value, path)

    def best_of(self, bundle: Bundle, pending: Pending, variants: tuple[Node, ...], value: Any, path: Path) -> Any:
        """The likeliest variant, unless a later one leads to a valid result without stripping more."""
        fewest: int | None = None
        for variant in variants if self.may_try else ():
            guess = bundle.joined(pending, (variant,))
            result, entries = self.attempt(guess, value, path)
            stripped = sum(entry.count for entry in entries if entry.code == "strip")
            fewest = stripped if fewest is None else fewest
            # It must fit the guess itself: what was stripped for one variant may happen to make another fit.
            if stripped <= fewest and self.fits(guess, result):
                self.report.entries.extend(entries)
                return result
        return self.without("strip", bundle.joined(pending, variants[:1]), value, path)

    def fix_for_guess(self, bundle: Bundle, guess: Bundle, value: Any, path: Path) -> Any:
        """The value repaired for a guess if that makes it fit; if not, nothing is stripped for the sake of a guess."""
        if self.may_try:
            result, entries = self.attempt(guess, value, path)
            if self.fits(bundle, result):
                self.report.entries.extend(entries)
                return result
        return self.without("strip", guess, value, path)

    # Attempts.

    def attempt(self, bundle: Bundle, value: Any, path: Path) -> tuple[Any, list[Entry]]:
        """A result and the entries that would belong to it."""
        before = len(self.report.entries)
        with self.setting("is_attempt", on=True):
            result = self.fix(bundle, value, path)
        return result, self.report.remove_after(before)

    def without(self, setting: str, bundle: Bundle, value: Any, path: Path) -> Any:
        """The result if nothing was stripped, or nothing filled."""
        with self.setting(setting, on=False), self.setting("is_attempt", on=True):
            if self.may_try or self.filling:
                return self.fix(bundle, value, path)
            return self.fix_once(bundle, value, path)

    def fix_once(self, bundle: Bundle, value: Any, path: Path) -> Any:
        """`fix` where nothing is tried any more, so that the same value always becomes the same: each level above asks."""
        key = (id(bundle), id(value), self.strip, self.fill)
        known = self.known_fixes.get(key)
        if known is None or known.path != path:
            before = len(self.report.entries)
            result = self.fix(bundle, value, path)
            known = self.known_fixes[key] = _KnownFix(bundle, value, path, result, self.report.remove_after(before))
        self.report.entries.extend(known.entries)
        return known.result

    def may_compare(self, variants: int) -> bool:
        self.comparisons -= variants
        return self.comparisons >= 0

    @property
    def may_try(self) -> bool:
        if not self.is_attempt:
            self.steps = _STEPS
        return self.steps > 0 and self.budget.count > 0

    @contextmanager
    def setting(self, name: str, *, on: bool) -> Iterator[None]:
        was = getattr(self, name)
        setattr(self, name, on)
        yield
        setattr(self, name, was)


def _with(value: dict[Any, Any], changes: dict[Any, Any]) -> dict[Any, Any]:
    result = value.copy()
    for key, item in changes.items():
        if item is MISSING:
            del result[key]
        else:
            result[key] = item
    return result


def count_values(value: Any, most: int) -> int:
    """How many values there are, those inside included; no more are counted than asked for."""
    count, waiting = 0, [value]
    while waiting and count < most:
        each = waiting.pop()
        count += 1
        if type(each) is dict or type(each) is list:
            waiting.extend(islice(each.values() if type(each) is dict else each, most))
    return count


class Candidates(msgspec.Struct, frozen=True):
    """Variants worth a try, the likeliest first; or the tag whose value none of them has; or that it was too much."""

    variants: tuple[Node, ...]
    unknown_tag: str | None = None
    is_too_much: bool = False


def choose(
    bundles: Bundles, pending: Pending, value: Any, answers: KnownResults, may_compare: Callable[[int], bool]
) -> Candidates:
    """The variants a value may have been meant for; `may_compare` is asked before it is held against so many."""
    variants = pending.variants
    tagged = _by_tag(bundles, pending, value)
    if tagged is not None:
        return tagged
    if not may_compare(len(variants)):
        return Candidates((), is_too_much=True)
    return Candidates(_by_likeness(bundles, variants, value, answers))


def has_unmapped_tag(bundles: Bundles, pending: Pending, value: Any) -> bool:
    """Whether OpenAPI's discriminator has no word for what the value says there, nor any variant a constant."""
    hint = pending.node.discriminator
    tagged = _by_tag(bundles, pending, value) if hint is not None and hint.words else None
    return tagged is not None and tagged.unknown_tag is not None


def _by_tag(bundles: Bundles, pending: Pending, value: Any) -> Candidates | None:
    """What the tags of a value say: the variant, or that there is none for such a tag; None where they say nothing."""
    if type(value) is not dict:
        return None
    for tag in bundles.variants.tags(pending.node, pending.variants):
        if tag.name in value:
            meant = _variant_for(tag, value[tag.name])
            if meant is not None:
                return Candidates((meant,))
            if tag.hint is None or (tag.hint.words and type(value[tag.name]) is str):
                return Candidates((), unknown_tag=tag.name)
    return None


def _variant_for(tag: Tag, value: Any) -> Node | None:
    meant = tag.variant_for(value)
    converted = lossless(value, types_of_values(tag.values)) if meant is None else ()
    return next(filter(None, map(tag.variant_for, converted)), meant)


def _by_likeness(bundles: Bundles, variants: tuple[Node, ...], value: Any, answers: KnownResults) -> tuple[Node, ...]:
    scores = {variant: _score(bundles, variant, value, answers) for variant in variants}
    likely = [variant for variant in variants if scores[variant][0]]
    return tuple(sorted(likely, key=lambda variant: scores[variant], reverse=True))


def _score(bundles: Bundles, variant: Node, value: Any, answers: KnownResults) -> tuple[int, int, float]:
    """The right type before one that could be converted to; then the constants that are met; then the share that fits."""
    kinds = bundles.types_of(variant)
    if kinds_of(value) & kinds:
        return (2, _constants_met(bundles, variant, value), _share(bundles, variant, value, answers))
    is_convertible = any(True for _ in lossless(value, kinds)) or ("array" in kinds and value is not None)
    return (1 if is_convertible else 0, 0, 0.0)


def _constants_met(bundles: Bundles, variant: Node, value: Any) -> int:
    if type(value) is not dict:
        return 0
    constants = bundles.variants.constants(variant)
    return sum(1 for name, values in constants.items() if is_member(value.get(name), values))


def _share(bundles: Bundles, variant: Node, value: Any, answers: KnownResults) -> float:
    """How much of an array or object is valid for a variant, or for the best of its own variants."""
    if type(value) not in {dict, list}:
        return 0.0
    bundle = bundles.alone(variant)
    inner = bundle.pending.variants if bundle.pending is not None else ()
    candidates = [bundles.get((variant, other)) for other in inner] or [bundle]
    return max(_share_of(candidate, value, answers) for candidate in candidates)


def _share_of(bundle: Bundle, value: Any, answers: KnownResults) -> float:
    if type(value) is list:
        fitting = sum(bundle.item(position).fits(item, answers) for position, item in enumerate(value))
        return fitting / max(1, len(value))
    fitting = sum(_knows(bundle, key, item, answers) for key, item in value.items())
    missing = sum(1 for name in bundle.required if name not in value)
    return fitting / max(1, len(value) + missing)


def _knows(bundle: Bundle, key: Any, item: Any, answers: KnownResults) -> bool:
    if key in bundle.members:
        return bundle.child(key).fits(item, answers)
    found = bundle.extra or bundle.property(key)
    if found.nodes:
        return bundle.of(found.nodes).fits(item, answers)
    return not found.is_unknown and not found.is_refused
