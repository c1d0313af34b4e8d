"""Which variant of a union a value that fits none was meant for: its tag first, then how much of it fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from enfold.schema.nodes.compare import is_member
from enfold.schema.nodes.node import Node
from enfold.schema.nodes.traits import kinds_of, types_of_values
from enfold.schema.nodes.variants import Tag
from enfold.schema.repairs.bundle import Bundle, Bundles, KnownResults, Pending
from enfold.schema.repairs.conversions import lossless


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
