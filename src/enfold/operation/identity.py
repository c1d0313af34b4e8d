"""Who calls, and what an operation requires of its callers. Values; `enfold.access` compares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

RESERVED_IDS: Final = frozenset({"owner", "local"})  # the owner's token, and the shell


class Identity(msgspec.Struct, frozen=True):
    """Who calls, as the transport vouches for it."""

    id: str
    scopes: frozenset[str] = frozenset()
    resources: dict[str, list[str]] | None = None
    on_behalf_of: str | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", frozenset(words(self.scopes)))


class AccessControl(msgspec.Struct, frozen=True):
    """What a caller needs: all of the first scopes, one of the second, and the action on a resource."""

    required_scopes: tuple[str, ...] = ()
    required_scopes_any: tuple[str, ...] = ()
    resource_type: str | None = None
    resource_action: str | None = None
    resource_id: str | None = None  # the name of the input argument that holds the resource's id
    public: bool = False  # open to callers without an identity, even where a surface has identities

    def __post_init__(self) -> None:
        for name in ("required_scopes", "required_scopes_any"):
            msgspec.structs.force_setattr(self, name, tuple(words(getattr(self, name))))
        if self.resource_type is None and (self.resource_action or self.resource_id):
            raise ValueError("An access rule on a resource needs its resource_type")
        if self.public and not self.is_open:
            raise ValueError("An operation that is public can have no other access rules: leave out one or the other")

    @property
    def is_open(self) -> bool:
        """Whether nothing at all is required."""
        return not (self.required_scopes or self.required_scopes_any or self.resource_type)

    @property
    def admits_anonymous(self) -> bool:
        """Whether a caller without an identity may run it."""
        return self.is_open


class ReservedAccess(AccessControl, frozen=True):
    """What operations of the namespace `enfold` require: an identity with these scopes, or nothing where nobody has one."""

    has_identities: bool = True  # of the surface that serves it

    @property
    def is_open(self) -> bool:
        return False  # an identity is checked even where anonymous callers are admitted

    @property
    def admits_anonymous(self) -> bool:
        return not self.has_identities


def words(given: str | Iterable[str]) -> Iterable[str]:
    """One word, or several: a single scope is not a list of its letters."""
    return (given,) if isinstance(given, str) else given


OPEN: Final = AccessControl()


def read_access(access: AccessControl | Mapping[str, Any] | None) -> AccessControl:
    """Access control from what a user writes; a wrong key or value is told at registration."""
    if access is None:
        return OPEN
    if isinstance(access, AccessControl):
        return access
    unknown = sorted(set(access) - set(AccessControl.__struct_fields__))
    if unknown:
        raise ValueError(f"Unknown access rule {unknown[0]!r}: use {', '.join(AccessControl.__struct_fields__)}")
    try:
        return msgspec.convert(dict(access), AccessControl)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"Wrong access rule: {error}") from error
