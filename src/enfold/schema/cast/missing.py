"""What TypeBox says of a required property that is not there."""

from __future__ import annotations

from enfold.schema.cast.kinds import CastSchema, Import, Intersect, Kind, Not, Ref, Reference, Union, Unknown


class MissingRules:
    """Answers worked out once for each kind, because no value takes part in them."""

    def __init__(self, document: CastSchema, *, may_throw: bool) -> None:
        self._document = document
        # Where a check may throw, the first of two faults decides, so their order is kept.
        self.may_throw = may_throw
        self._refusals: dict[int, bool] = {}

    def never_fits(self, node: Kind) -> bool:
        """Whether an object without this required property is surely invalid."""
        if isinstance(node, Unknown) or self.refuses(node):
            return True
        return not self.may_throw and extends_undefined(node)

    def refuses(self, node: Kind) -> bool:
        """Whether the kind surely does not accept what is missing, and does not throw at it."""
        known = self._refusals.get(node.number)
        if known is None:
            self._refusals[node.number] = False  # A circle is left to the check itself.
            known = self._refusals[node.number] = self._refuses_now(node)
        return known

    def _refuses_now(self, node: Kind) -> bool:
        match node:
            case Unknown() | Not():
                return False
            case Union():
                return all(map(self.refuses, node.variants))
            case Intersect():
                return not self.may_throw and any(map(self.refuses, node.members))
            case Ref() | Import():
                target = self._document.follow(node)
                return not isinstance(target, Reference) and self.refuses(target)
            case _:
                return True


def extends_undefined(node: Kind) -> bool:
    match node:
        case Intersect():
            return all(map(extends_undefined, node.members))
        case Union():
            return any(map(extends_undefined, node.variants))
        case Not():
            return not extends_undefined(node.inner)
        case _:
            return False
