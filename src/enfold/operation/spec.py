"""The contract of one operation: a value that can be written down, sent and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack

import msgspec

from enfold.errors import CATEGORIES, CODES, Code, code_row
from enfold.operation.identity import OPEN, AccessControl, read_access, words
from enfold.operation.names import json_digest, operation_id

if TYPE_CHECKING:
    from enfold.operation.options import SpecFields

Schema: TypeAlias = dict[str, Any]
LazySchema: TypeAlias = Schema | Callable[[], Schema]
Durable: TypeAlias = Literal["never", "optional", "required"]
OnCrash: TypeAlias = Literal["retry", "fail"]

DEFAULT_TIMEOUT: Final = 60.0


class OperationType(StrEnum):
    """Reads (query), changes something (mutation), or gives a stream (subscription)."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"


class ErrorSchema(msgspec.Struct, frozen=True):
    """A code the handler may raise of its own, what its details look like, and what it means on each surface."""

    code: str
    description: str = ""
    schema: Schema = {}
    http_status: int | None = None
    category: str | None = None
    recoverable: bool | None = None
    exit: int | None = None

    def __post_init__(self) -> None:
        if self.category is not None and self.category not in CATEGORIES:
            raise ValueError(f"Unknown category {self.category!r}: use {', '.join(CATEGORIES)}")
        if self.exit is not None and not 0 < self.exit < 256:
            raise ValueError(f"An error has an exit code from 1 to 255, not {self.exit}")

    @property
    def row(self) -> Code:
        """The row of the table of codes, with what is declared here; a status that tells of no error is left out."""
        status = self.http_status if self.http_status is not None and 400 <= self.http_status <= 599 else None
        declared = {
            "http_status": status,
            "category": self.category,
            "recoverable": self.recoverable,
            "exit_code": self.exit,
        }
        chosen = {name: value for name, value in declared.items() if value is not None}
        return msgspec.structs.replace(code_row(self.code), **chosen)


class OperationSpec:
    """The contract of one operation: an immutable value; schemas given as functions are made when first read.

    The fields are what is kept; `SpecFields` says what may be given for each of them.
    """

    id: str  # `namespace.name`, or the name alone
    name: str
    namespace: str = ""
    version: str = "1.0.0"
    type: OperationType = OperationType.QUERY
    title: str | None = None
    description: str = ""
    tags: tuple[str, ...] = ()
    error_schemas: tuple[ErrorSchema, ...] = ()
    access_control: AccessControl = OPEN
    idempotent: bool
    destructive: bool = False
    resumable: bool = False
    timeout: float | None
    durable: Durable = "never"
    on_crash: OnCrash
    asks_first: bool = False
    values: int = 1
    meta: dict[str, Any]

    def __init__(self, **fields: Unpack[SpecFields]) -> None:
        """`values` is how many values the handler returns: one, none (0), or several.

        `durable` says whether it may, or must, run as a task; `on_crash` what happens to a task, or a call with an
        idempotency key, whose process dies (by default it runs again if the operation is idempotent); with `asks_first`
        it runs in the call up to `context.detach()`.
        """
        _check_names(fields)
        kept = self.__dict__
        kept.update(fields)
        kept["id"] = operation_id(self.namespace, self.name)
        kept["type"] = read_type(self.type)
        kept["tags"] = tuple(words(self.tags))
        for name, default in (("input_schema", {"type": "object"}), ("output_schema", {})):
            kept[name] = default if kept.get(name) is None else kept[name]
        kept["error_schemas"] = tuple(map(_read_error_schema, self.error_schemas))
        kept["access_control"] = read_access(self.access_control)
        if fields.get("idempotent") is None:
            kept["idempotent"] = self.type is OperationType.QUERY
        kept["timeout"] = _read_timeout(fields.get("timeout", "default"), self.type)
        kept["durable"] = _read_durable(self.durable, self.type)
        kept["on_crash"] = _read_on_crash(fields.get("on_crash"), idempotent=self.idempotent)
        kept["meta"] = dict(fields.get("meta") or {})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A spec does not change: use replace({name}=...)")

    @property
    def input_schema(self) -> Schema:
        return self._read_schema("input_schema")

    @property
    def output_schema(self) -> Schema:
        return self._read_schema("output_schema")

    def _read_schema(self, field: str) -> Schema:
        schema: LazySchema = self.__dict__[field]
        if callable(schema):
            schema = self.__dict__[field] = schema()
        return schema

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the spec's canonical JSON: equal specs have equal digests, in every process."""
        return json_digest(self.to_dict())

    def lies_in(self, namespace: str) -> bool:
        """Whether it is in a namespace, or in one below it."""
        return self.namespace == namespace or self.namespace.startswith(f"{namespace}.")

    def declared_row(self, code: str) -> Code | None:
        """What a code of the operation's own means where this operation declares it."""
        return next((error.row for error in self.error_schemas if error.code == code and code not in CODES), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperationSpec) and (self is other or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<OperationSpec {self.id} ({self.type.value})>"

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], OperationSpec], tuple[dict[str, Any]]]:
        return OperationSpec.from_dict, (self.to_dict(),)

    def replace(self, **changes: Any) -> OperationSpec:
        """A copy with some fields changed; schemas not yet made stay unmade."""
        fields = {name: value for name, value in self.__dict__.items() if name in SPEC_FIELDS}
        return OperationSpec(**{**fields, **changes})

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON data."""
        fields = {name: getattr(self, name) for name in SPEC_FIELDS}
        wire: dict[str, Any] = msgspec.to_builtins(fields, enc_hook=str, order="deterministic")
        return wire

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> OperationSpec:
        """The spec that `to_dict` described; fields this version does not know are ignored."""
        return cls(**{key: value for key, value in wire.items() if key in SPEC_FIELDS})


# The fields by name, all but the id, which follows from two of them.
SPEC_FIELDS: Final = frozenset({*OperationSpec.__annotations__, "input_schema", "output_schema"} - {"id"})


def _check_names(fields: Mapping[str, Any]) -> None:
    if "name" not in fields:
        raise TypeError("An OperationSpec needs a name")
    if unknown := fields.keys() - SPEC_FIELDS:
        raise TypeError(f"OperationSpec has no field {min(unknown)!r}: use {', '.join(sorted(SPEC_FIELDS))}")


def _read_timeout(timeout: Any, kind: OperationType) -> float | None:
    if timeout == "default":
        return None if kind is OperationType.SUBSCRIPTION else DEFAULT_TIMEOUT
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"A timeout is a number of seconds above zero, or None, not {timeout!r}")
    return float(timeout)


def _read_durable(durable: Durable | bool, kind: OperationType) -> Durable:
    if isinstance(durable, bool):
        durable = "optional" if durable else "never"
    if durable not in ("never", "optional", "required"):
        raise ValueError(f"Unknown durable {durable!r}: use never, optional or required; True is optional")
    if durable != "never" and kind is OperationType.SUBSCRIPTION:
        raise ValueError("A subscription cannot be durable: make it a query or a mutation, or leave durable out")
    return durable


def _read_on_crash(on_crash: OnCrash | None, *, idempotent: bool) -> OnCrash:
    if on_crash is None:
        return "retry" if idempotent else "fail"
    if on_crash not in ("retry", "fail"):
        raise ValueError(f"Unknown on_crash {on_crash!r}: use retry or fail")
    return on_crash


def read_type(value: OperationType | str) -> OperationType:
    try:
        return OperationType(value)
    except ValueError:
        raise ValueError(f"Unknown operation type {value!r}: use query, mutation or subscription") from None


def _read_error_schema(error: ErrorSchema | Mapping[str, Any]) -> ErrorSchema:
    return error if isinstance(error, ErrorSchema) else msgspec.convert(dict(error), ErrorSchema)
