"""Which variant of a union a value that fits none was meant for: its tag first, then how much of it fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from enfold.schema.nodes.compare import standing_for
from enfold.schema.nodes.node import Node
from enfold.schema.nodes.traits import kinds_of, outer_types, types_of_values
from enfold.schema.repairs.bundle import Answers, Bundle, Bundles, Pending
from enfold.schema.repairs.conversions import lossless

__all__ = ["Candidates", "choose", "unmapped_tag"]


class Candidates(msgspec.Struct, frozen=True):
    """Variants worth a try, the likeliest first; or the tag whose value none of them has; or that it was too much."""

    variants: tuple[Node, ...]
    unknown_tag: str | None = None
    is_too_much: bool = False


def choose(
    bundles: Bundles, pending: Pending, value: Any, answers: Answers, may_compare: Callable[[int], bool]
) -> Candidates:
    """The variants a value may have been meant for; `may_compare` is asked before it is held against so many."""
    variants = pending.variants
    if type(value) is dict:
        named = _named_by_discriminator(pending.node, variants, value)
        if named is not None:
            return Candidates((named,))
        tag = _tag(bundles, variants, value)
        if tag is not None:
            return _by_tag(bundles, tag, variants, value)
        tag = unmapped_tag(bundles, pending, value)
        if tag is not None:
            return Candidates((), unknown_tag=tag)
    if not may_compare(len(variants)):
        return Candidates((), is_too_much=True)
    return Candidates(_by_likeness(bundles, variants, value, answers))


def unmapped_tag(bundles: Bundles, pending: Pending, value: Any) -> str | None:
    """OpenAPI's discriminator, where its mapping has no word for what the value says there, nor any variant a constant."""
    hint = pending.node.discriminator
    if hint is None or not hint.words or type(value) is not dict or type(value.get(hint.name)) is not str:
        return None
    is_known = _named_by_discriminator(pending.node, pending.variants, value) or _tag(bundles, pending.variants, value)
    return None if is_known else hint.name


def _named_by_discriminator(node: Node, variants: tuple[Node, ...], value: dict[Any, Any]) -> Node | None:
    hint = node.discriminator
    found = value.get(hint.name) if hint is not None else None
    if hint is None or type(found) is not str:
        return None
    target, word = hint.mapping.get(found), hint.words.get(found, found)
    for variant in variants:
        if any(part is target or part.name == word for part in (variant, *variant.all_of)):
            return variant
    return None


def _tag(bundles: Bundles, variants: tuple[Node, ...], value: dict[Any, Any]) -> str | None:
    """A property of the value that tells the variants apart: each of them names other constants for it."""
    tables = [bundles.tags_of(variant) for variant in variants if "object" in outer_types(variant)]
    if len(tables) < 2:
        return None
    for name in tables[0]:
        if name in value and all(name in table for table in tables):
            constants = [constant for table in tables for constant in table[name]]
            if len(set(constants)) == len(constants):
                return name
    return None


def _by_tag(bundles: Bundles, tag: str, variants: tuple[Node, ...], value: dict[Any, Any]) -> Candidates:
    tables = {variant: bundles.tags_of(variant).get(tag, frozenset()) for variant in variants}
    constants = frozenset[Any]().union(*tables.values())
    possible = {standing_for(value[tag])}
    possible.update(map(standing_for, lossless(value[tag], types_of_values(constants))))
    meant = tuple(variant for variant in variants if possible & tables[variant])
    return Candidates(meant) if meant else Candidates((), unknown_tag=tag)


def _by_likeness(bundles: Bundles, variants: tuple[Node, ...], value: Any, answers: Answers) -> tuple[Node, ...]:
    scores = {variant: _score(bundles, variant, value, answers) for variant in variants}
    likely = [variant for variant in variants if scores[variant][0]]
    return tuple(sorted(likely, key=lambda variant: scores[variant], reverse=True))


def _score(bundles: Bundles, variant: Node, value: Any, answers: Answers) -> tuple[int, int, float]:
    """The right type before one that could be converted to; then the constants that are met; then the share that fits."""
    kinds = bundles.types_of(variant)
    if kinds_of(value) & kinds:
        return (2, _constants_met(bundles, variant, value), _share(bundles, variant, value, answers))
    is_convertible = any(True for _ in lossless(value, kinds)) or ("array" in kinds and value is not None)
    return (1 if is_convertible else 0, 0, 0.0)


def _constants_met(bundles: Bundles, variant: Node, value: Any) -> int:
    if type(value) is not dict:
        return 0
    return sum(1 for name, values in bundles.tags_of(variant).items() if standing_for(value.get(name)) in values)


def _share(bundles: Bundles, variant: Node, value: Any, answers: Answers) -> float:
    """How much of an array or object is valid for a variant, or for the best of its own variants."""
    if type(value) not in {dict, list}:
        return 0.0
    bundle = bundles.get((variant,))
    inner = bundle.pending.variants if bundle.pending is not None else ()
    candidates = [bundles.get((variant, other)) for other in inner] or [bundle]
    return max(_share_of(candidate, value, answers) for candidate in candidates)


def _share_of(bundle: Bundle, value: Any, answers: Answers) -> float:
    if type(value) is list:
        fitting = sum(bundle.item(position).fits(item, answers) for position, item in enumerate(value))
        return fitting / max(1, len(value))
    fitting = sum(_knows(bundle, key, item, answers) for key, item in value.items())
    missing = sum(1 for name in bundle.required if name not in value)
    return fitting / max(1, len(value) + missing)


def _knows(bundle: Bundle, key: Any, item: Any, answers: Answers) -> bool:
    if key in bundle.members:
        return bundle.child(key).fits(item, answers)
    found = bundle.extra or bundle.property(key)
    if found.nodes:
        return bundle.of(found.nodes).fits(item, answers)
    return not found.is_unknown and not found.is_refused
