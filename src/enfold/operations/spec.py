"""The spec of an operation, its options, and its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict, Unpack

import msgspec

from enfold.errors import CATEGORIES, CODES, Code, code_row
from enfold.operations.access import OPEN, AccessControl, read_access, words
from enfold.operations.call import Middleware
from enfold.operations.policy import Normalize

MAX_ID_PARTS: Final = 6
MAX_ID_LENGTH: Final = 200
MAX_NAME_LENGTH: Final = 64

# A set, because two patterns would be a good part of what importing `enfold` costs.
_LEGAL: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def operation_id(namespace: str, name: str) -> str:
    """Return the id of a name in a namespace; raise ValueError for an invalid part or an id that is too long."""
    if not _is_legal(name):
        raise ValueError(f"{name!r} is not a valid operation name: use 1 to 64 of A-Z a-z 0-9 _ -")
    parts = namespace.split(".") if namespace else []
    for part in parts:
        if not _is_legal(part):
            raise ValueError(f"{namespace!r} is not a valid namespace: each part needs 1 to 64 of A-Z a-z 0-9 _ -")
    found = f"{namespace}.{name}" if namespace else name
    if len(parts) + 1 > MAX_ID_PARTS or len(found) > MAX_ID_LENGTH:
        raise ValueError(f"The id {found!r} is too long: at most {MAX_ID_PARTS} parts and {MAX_ID_LENGTH} characters")
    return found


def _is_legal(part: Any) -> bool:
    return isinstance(part, str) and 0 < len(part) <= MAX_NAME_LENGTH and _LEGAL.issuperset(part)


def legal_name(original: str) -> str:
    """Replace every character of an imported name that an id cannot have with `_`."""
    kept = original[:MAX_NAME_LENGTH]
    if not _LEGAL.issuperset(kept):
        kept = "".join(each if each in _LEGAL else "_" for each in kept)
    return kept or "_"


def legal_names(originals: Iterable[str]) -> dict[str, str]:
    """Return a valid name for each imported one; clashing names that had to change get 8 digits of their hash."""
    wanted = [WantedName(original, original) for original in dict.fromkeys(originals)]
    return {each.original: name for each, name in zip(wanted, distinct_names(wanted), strict=True)}


class WantedName(msgspec.Struct, frozen=True):
    """A name to be made legal, and the text that tells it from others that would become the same."""

    original: str
    hashed: str
    may_stay: bool = True  # where it is legal as it is, and others clash with it


def distinct_names(wanted: Sequence[WantedName]) -> list[str]:
    """Return a distinct valid name for each: clashing names get their hash, except one that can stay as it is.

    A name may be chosen to be what a hash makes of another: who clashes then gets another hash, until none do.
    """
    names = found = [legal_name(each.original) for each in wanted]
    stay = [each.may_stay and each.original == name for each, name in zip(wanted, names, strict=True)]
    staying = Counter(name for name, stays in zip(names, stay, strict=True) if stays)
    for turn in range(min(len(wanted), 100)):
        holders = Counter(found)
        if len(holders) == len(found):
            break
        found = [
            now if holders[now] == 1 or (stays and staying[name] == 1) else with_hash(name, each.hashed + " " * turn)
            for each, name, now, stays in zip(wanted, names, found, stay, strict=True)
        ]
    return found


def with_hash(name: str, original: str) -> str:
    """Append the first 8 digits of the original's SHA-256 to a name, cut to stay within 64 characters."""
    digest = sha256(original.encode("utf-8", "surrogatepass"))
    return f"{name[: MAX_NAME_LENGTH - 9]}_{digest[:8]}"


def json_digest(value: Any) -> str:
    """Return the SHA-256 of JSON data; it does not depend on the order of keys or on how integers are written."""
    return sha256(msgspec.json.encode(_with_whole_numbers(value), order="deterministic"))


def _with_whole_numbers(value: Any) -> Any:
    """Replace 1.0 with 1, which is the same number in JSON."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _MAX_EXACT_INTEGER else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    return [_with_whole_numbers(each) for each in value] if isinstance(value, list | tuple) else value


_MAX_EXACT_INTEGER: Final = 2**53  # below it every whole number is a float, too


def sha256(text: bytes) -> str:
    import hashlib  # slow to import, and only for digests and clashes

    return hashlib.sha256(text).hexdigest()


Schema: TypeAlias = dict[str, Any]
LazySchema: TypeAlias = Schema | Callable[[], Schema]
Durable: TypeAlias = Literal["never", "optional", "required"]
OnCrash: TypeAlias = Literal["retry", "fail"]

DEFAULT_TIMEOUT: Final = 60.0


class OperationType(StrEnum):
    """Whether an operation reads (query), changes something (mutation), or returns a stream (subscription)."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"


class ErrorSchema(msgspec.Struct, frozen=True):
    """An error code that an operation declares: the schema of its details, and its status, category and exit code."""

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
            raise ValueError(f"The exit code of an error must be from 1 to 255, not {self.exit}")

    @property
    def row(self) -> Code:
        """The row of the table of codes with the declared values; a status that is not an error is ignored."""
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
    """The description of an operation. It is immutable; schemas given as functions are created when first read.

    `SpecFields` lists the values that can be passed for each field.
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
    http: str | None = None  # its REST route, `GET /items/{id}`
    meta: dict[str, Any]

    def __init__(self, **fields: Unpack[SpecFields]) -> None:
        """`values` is the number of values that the handler returns: one, none (0), or several.

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
        if self.http is not None:
            kept["http"] = _read_http(self.http, self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"An OperationSpec is immutable: use spec.replace({name}=...)")

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
        """Whether the operation is in this namespace, or in one below it."""
        return self.namespace == namespace or self.namespace.startswith(f"{namespace}.")

    def declared_row(self, code: str) -> Code | None:
        """Return the declared properties of a custom error code."""
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
        """Return a copy with some fields changed; schemas that were not built yet stay unbuilt."""
        fields = {name: value for name, value in self.__dict__.items() if name in SPEC_FIELDS}
        return OperationSpec(**{**fields, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON data."""
        fields = {name: getattr(self, name) for name in SPEC_FIELDS}
        wire: dict[str, Any] = msgspec.to_builtins(fields, enc_hook=str, order="deterministic")
        return wire

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> OperationSpec:
        """Read a spec from `to_dict`; fields that this version does not know are ignored."""
        return cls(**{key: value for key, value in wire.items() if key in SPEC_FIELDS})


# The fields by name, all but the id, which follows from two of them.
SPEC_FIELDS: Final = frozenset({*OperationSpec.__annotations__, "input_schema", "output_schema"} - {"id"})


def _check_names(fields: Mapping[str, Any]) -> None:
    if "name" not in fields:
        raise TypeError("An OperationSpec needs a name")
    if unknown := fields.keys() - SPEC_FIELDS:
        raise TypeError(f"OperationSpec has no field {min(unknown)!r}: use {', '.join(sorted(SPEC_FIELDS))}")


def _read_http(text: str, spec: OperationSpec) -> str:
    from enfold.operations.http_route import check_route, read_route  # which few programs need

    route = read_route(text)
    check_route(route, spec)
    return str(route)


def _read_timeout(timeout: Any, kind: OperationType) -> float | None:
    if timeout == "default":
        return None if kind is OperationType.SUBSCRIPTION else DEFAULT_TIMEOUT
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"A timeout must be a number of seconds above zero, or None, not {timeout!r}")
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


class _Described(TypedDict, total=False):
    """What a spec and the decorator of a function both take; docs/operations.md lists it."""

    namespace: str
    type: OperationType | str
    version: str
    title: str | None
    description: str
    tags: str | Iterable[str]
    error_schemas: Iterable[ErrorSchema | Mapping[str, Any]]
    idempotent: bool | None
    destructive: bool
    resumable: bool
    timeout: float | Literal["default"] | None
    durable: Durable | bool  # may or must run as a task; True is "optional"
    on_crash: OnCrash | None  # what happens to a task, or a call with a key, whose process died: "retry" or "fail"
    http: str | None  # a REST route beside `/functions/{id}`, as in "GET /items/{id}"
    asks_first: bool  # runs in the call until `context.detach()`, then again as a task
    meta: Mapping[str, Any] | None


class SpecFields(_Described, total=False):
    """What `OperationSpec` takes; it keeps each as the type that stands at its field."""

    name: Required[str]
    input_schema: LazySchema | None
    output_schema: LazySchema | None
    access_control: AccessControl | Mapping[str, Any] | None
    values: int


class OperationOptions(_Described, total=False):
    """What can be said of a function beside its signature and its docstring."""

    name: str
    access: AccessControl | Mapping[str, Any]
    inline: bool  # a `def` runs on the event loop, and not in a worker thread
    select: str  # what of the result is given where a caller does not say
    middleware: Iterable[Middleware]  # around its calls, inside that of the registry; the first is the outermost
    # policies, which otherwise come from the registry
    normalize: Normalize
    strict_output: bool
    coerce: bool
    extras: Literal["strip", "keep"]
    expose_errors: bool
    raise_on_error: bool
    detect: Literal["all", "instances"]
