"""The namespace `enfold`: operations about the running program. Other packages offer them; this module stores and protects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from enfold.operations import (
    OPEN,
    AccessControl,
    Identity,
    Operation,
    OperationType,
    ReservedAccess,
    operation_from_function,
)
from enfold.operations.access import EVERYTHING

if TYPE_CHECKING:
    from enfold.runtime.prepared import PreparedOperation

RESERVED: Final = "enfold"
TASK_VERBS: Final = "enfold.tasks"  # the one part of it that peers are offered
READ: Final = "enfold:read"  # the scope for reading about this program
READERS: Final = AccessControl(required_scopes=(READ,))
ADMIN: Final = "enfold:admin"  # the scope for seeing the calls and tasks of other callers

Make: TypeAlias = Callable[[], Iterable[Operation]]


def is_reserved(namespace_or_id: str) -> bool:
    return namespace_or_id == RESERVED or namespace_or_id.startswith(f"{RESERVED}.")


def check_namespace(namespace: str) -> None:
    """Refuse a user's operation in the reserved namespace."""
    if is_reserved(namespace):
        raise ValueError(f"The namespace {RESERVED} is reserved for Enfold's own operations: choose another one")


def reserved_operation(
    function: Callable[..., Any],
    id: str,
    *,
    type: OperationType | str = OperationType.QUERY,
    scopes: tuple[str, ...] = (READ,),
    **fields: Any,
) -> Operation:
    """Turn a function into an operation of `enfold`; `scopes` are required where callers have identities."""
    namespace, _, name = id.rpartition(".")
    access = ReservedAccess(required_scopes=scopes) if scopes else OPEN
    return operation_from_function(function, type=type, namespace=namespace, name=name, access_control=access, **fields)


def only_caller(identity: Identity | None) -> str | None:
    """Restrict results to this identity id; None for administrators, or without authentication."""
    if identity is None or not identity.scopes.isdisjoint((ADMIN, EVERYTHING)):
        return None
    return identity.id


class Reserved:
    """The reserved operations of one registry: parts of the program offer them, and they are made when first needed."""

    def __init__(self, prepare: Callable[[Operation], PreparedOperation], changed: Callable[[], None]) -> None:
        self._prepare = prepare
        self._changed = changed
        self._offers: dict[str, Make] = {}
        self._made: dict[str, PreparedOperation] | None = None

    def offer(self, part: str, make: Make) -> None:
        """Add the operations of a part of the program; they replace what the same part offered before."""
        self._offers[part] = make
        if self._made is not None:
            self._made = None
            self._changed()

    def refresh(self) -> None:
        """Make the operations again, because who may call them has changed."""
        if self._made is not None:
            self._made = None
            self._changed()

    def has(self, part: str) -> bool:
        """Whether a part of the program has offered anything."""
        return part in self._offers

    def operations(self) -> Mapping[str, PreparedOperation]:
        """Return the operations by id."""
        if self._made is None:
            offered = [operation for make in self._offers.values() for operation in make()]
            self._made = {operation.spec.id: self._prepare(operation) for operation in offered}
        return self._made
