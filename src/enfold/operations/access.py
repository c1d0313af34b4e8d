"""Identities, access rules, and whether a caller may run an operation. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.operations.spec import OperationSpec

RESERVED_IDS: Final = frozenset({"owner", "local"})  # the owner's token, and the shell


class Identity(msgspec.Struct, frozen=True):
    """The authenticated caller: an id with its scopes and resources."""

    id: str
    scopes: frozenset[str] = frozenset()
    resources: dict[str, list[str]] | None = None
    on_behalf_of: str | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", frozenset(words(self.scopes)))


_SCOPES: Final = {"file": str | list[str], "expected": "scopes"}


class AccessControl(msgspec.Struct, frozen=True):
    """Access rules: all of `required_scopes`, one of `required_scopes_any`, and the action on a resource."""

    required_scopes: Annotated[
        tuple[str, ...], Meta(description="the caller needs all of these scopes", extra=_SCOPES)
    ] = ()
    required_scopes_any: Annotated[
        tuple[str, ...], Meta(description="the caller needs at least one of these scopes", extra=_SCOPES)
    ] = ()
    resource_type: Annotated[
        str | None, Meta(description="the type of the resource that the caller needs a grant for, such as `project`")
    ] = None
    resource_action: Annotated[
        str | None, Meta(description="the action that the caller must be granted, such as `read`")
    ] = None
    resource_id: Annotated[str | None, Meta(description="the argument that holds the id of the resource")] = None
    public: Annotated[
        bool,
        Meta(
            description="callable without a token, even if the server requires one; cannot be combined with other rules"
        ),
    ] = False

    def __post_init__(self) -> None:
        for name in ("required_scopes", "required_scopes_any"):
            msgspec.structs.force_setattr(self, name, tuple(words(getattr(self, name))))
        if self.resource_type is None and (self.resource_action or self.resource_id):
            raise ValueError("An access rule with resource_action or resource_id also needs resource_type")
        if self.public and not self.is_open:
            raise ValueError("A public operation cannot have other access rules: remove `public` or the other rules")

    @property
    def is_open(self) -> bool:
        """Whether there are no access rules."""
        return not (self.required_scopes or self.required_scopes_any or self.resource_type)

    @property
    def admits_anonymous(self) -> bool:
        """Whether a caller without an identity may run it."""
        return self.is_open


class ReservedAccess(AccessControl, frozen=True):
    """What operations of the namespace `enfold` require: an identity with these scopes; nothing if authentication is off."""

    has_identities: bool = True  # of the surface that serves it

    @property
    def is_open(self) -> bool:
        return False  # an identity is checked even where anonymous callers are admitted

    @property
    def admits_anonymous(self) -> bool:
        return not self.has_identities


def words(given: str | Iterable[str]) -> Iterable[str]:
    """Return a list of words; a single string is one word, not a list of letters."""
    return (given,) if isinstance(given, str) else given


OPEN: Final = AccessControl()


def read_access(access: AccessControl | Mapping[str, Any] | None) -> AccessControl:
    """Read access rules as users write them; raise ValueError for an unknown key or a wrong value."""
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


EVERYTHING: Final = "*"  # the scope that satisfies every rule


def may_call(access: AccessControl, identity: Identity | None, input: Mapping[str, Any]) -> bool:
    """Whether the caller has the scopes, and the action on the resource that the input names."""
    if access.resource_type is None:
        return may_list(access, identity)
    if identity is None:
        return access.admits_anonymous
    if EVERYTHING in identity.scopes:
        return True
    return _has_scopes(access, identity.scopes) and _has_resource(access, identity, input)


def may_list(access: AccessControl, identity: Identity | None) -> bool:
    """Whether the caller may run it with at least some inputs; lists show only such operations."""
    if identity is None:
        return access.admits_anonymous
    scopes = identity.scopes
    if access.resource_type is None and not access.required_scopes_any and scopes.issuperset(access.required_scopes):
        return True  # the usual case
    if EVERYTHING in scopes:
        return True
    return _has_scopes(access, scopes) and (access.resource_type is None or _has_some_resource(access, identity))


def is_hidden(access: AccessControl, identity: Identity | None) -> bool:
    """Whether a caller must not learn that it exists; a caller without an identity gets a 401 instead."""
    return identity is not None and not may_list(access, identity)


def grants_all_of(identity: Identity, other: Identity) -> bool:
    """Whether an identity may do all that another may: compares a caller now with the same caller earlier."""
    if EVERYTHING in identity.scopes:
        return True
    resources = (other.resources or {}).items()
    return other.scopes <= identity.scopes and all(
        _actions(identity, name).issuperset(actions) for name, actions in resources
    )


def narrower(first: Identity, second: Identity) -> Identity:
    """Return the first identity with only the rights that both have: those a caller had earlier and still has."""
    if EVERYTHING in first.scopes:
        return replace(first, scopes=second.scopes, resources=second.resources)
    if EVERYTHING in second.scopes:
        return first
    names = {**(first.resources or {}), **(second.resources or {})}
    common = {name: sorted(_actions(first, name) & _actions(second, name)) for name in names}
    granted = {name: actions for name, actions in common.items() if actions}
    return replace(first, scopes=first.scopes & second.scopes, resources=granted or None)


def _actions(identity: Identity, name: str) -> set[str]:
    """Return what a caller may do with a resource, by its own name or by `kind:*`."""
    granted, kind = identity.resources or {}, name.partition(":")[0]
    return {*granted.get(name, ()), *granted.get(f"{kind}:*", ())}


def check_access(spec: OperationSpec, identity: Identity | None, input: object) -> None:
    """Raise unless the caller may: OPERATION_NOT_FOUND where no input would let them, else ACCESS_DENIED.

    Without an identity the surface answers 401 instead of 403.
    """
    access = spec.access_control
    if may_list(access, identity) if access.resource_type is None else may_call(access, identity, _arguments(input)):
        return
    if identity is None:
        raise CallError("ACCESS_DENIED", f"{spec.id} needs a bearer token", {"reason": "no_identity"})
    if is_hidden(spec.access_control, identity):
        raise CallError("OPERATION_NOT_FOUND", f"Operation not found: {spec.id}")
    raise CallError("ACCESS_DENIED", f"{identity.id} may not call {spec.id}", {"reason": "not_allowed"})


def _arguments(input: object) -> Mapping[str, Any]:
    return input if isinstance(input, Mapping) else {}


def _has_scopes(access: AccessControl, scopes: frozenset[str]) -> bool:
    if not scopes.issuperset(access.required_scopes):
        return False
    return not access.required_scopes_any or not scopes.isdisjoint(access.required_scopes_any)


def _has_resource(access: AccessControl, identity: Identity, input: Mapping[str, Any]) -> bool:
    keys = [f"{access.resource_type}:*"]
    resource_id = input.get(access.resource_id) if access.resource_id else None
    if isinstance(resource_id, float) and resource_id.is_integer():
        resource_id = int(resource_id)  # as an integer that is written 42.0 is read
    if isinstance(resource_id, str | int) and not isinstance(resource_id, bool):
        keys.append(f"{access.resource_type}:{resource_id}")
    return any(_grants(access, identity, key) for key in keys)


def _grants(access: AccessControl, identity: Identity, key: str) -> bool:
    actions = (identity.resources or {}).get(key, ())
    return access.resource_action is None or access.resource_action in actions if actions else False


def _has_some_resource(access: AccessControl, identity: Identity) -> bool:
    prefix = f"{access.resource_type}:"
    return any(key.startswith(prefix) and _grants(access, identity, key) for key in identity.resources or {})
