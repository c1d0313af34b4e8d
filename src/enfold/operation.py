"""What an operation is: its spec, who may call it, the context of one call; and how a function becomes one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from enfold.env import Env
    from enfold.envelope import ResponseEnvelope
    from enfold.errors import CallError
    from enfold.schema.signature import Signature

Schema: TypeAlias = dict[str, Any]
Normalize: TypeAlias = Literal["repair", "typebox", "off"]

DEFAULT_TIMEOUT: Final = 60.0
MAX_ID_PARTS: Final = 6
MAX_ID_LENGTH: Final = 200
MAX_NAME_LENGTH: Final = 64

_PART: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")


class OperationType(StrEnum):
    """Reads (query), changes something (mutation), or gives a stream (subscription)."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"


# --- who may call -------------------------------------------------------------------------------------------------


class Identity(msgspec.Struct, frozen=True):
    """Who calls, as the transport vouches for it."""

    id: str
    scopes: frozenset[str] = frozenset()
    resources: dict[str, list[str]] | None = None
    on_behalf_of: str | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", frozenset(_words(self.scopes)))


class AccessControl(msgspec.Struct, frozen=True):
    """What a caller needs: all of the first scopes, one of the second, and the action on a resource."""

    required_scopes: tuple[str, ...] = ()
    required_scopes_any: tuple[str, ...] = ()
    resource_type: str | None = None
    resource_action: str | None = None
    resource_id: str | None = None  # the name of the input argument that holds the resource's id

    def __post_init__(self) -> None:
        for name in ("required_scopes", "required_scopes_any"):
            msgspec.structs.force_setattr(self, name, tuple(_words(getattr(self, name))))
        if self.resource_type is None and (self.resource_action or self.resource_id):
            raise ValueError("An access rule on a resource needs its resource_type")

    @property
    def is_open(self) -> bool:
        """Whether nothing at all is required."""
        return not (self.required_scopes or self.required_scopes_any or self.resource_type)


def _words(given: str | Iterable[str]) -> Iterable[str]:
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


class Policy(msgspec.Struct, frozen=True):
    """How calls are treated; a field that is None is taken from the registry."""

    normalize: Normalize | None = None
    strict_output: bool | None = None
    coerce: bool | None = None
    extras: Literal["strip", "keep"] | None = None
    expose_errors: bool | None = None

    def __post_init__(self) -> None:
        if self.normalize not in (None, "repair", "typebox", "off"):
            raise ValueError(f"Unknown normalize policy {self.normalize!r}: use repair, typebox or off")
        if self.extras not in (None, "strip", "keep"):
            raise ValueError(f"Unknown extras policy {self.extras!r}: use strip or keep")

    def over(self, base: Policy) -> Policy:
        """This policy where it says something, the base where it does not."""
        chosen = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        return msgspec.structs.replace(base, **chosen) if chosen else base


INHERIT: Final = Policy()
DEFAULT_POLICY: Final = Policy("repair", False, True, "strip", True)


# --- the spec -----------------------------------------------------------------------------------------------------


class ErrorSchema(msgspec.Struct, frozen=True):
    """A code the handler may raise of its own, and what its details look like."""

    code: str
    description: str = ""
    schema: Schema = {}
    http_status: int | None = None


LazySchema: TypeAlias = Schema | Callable[[], Schema]


class OperationSpec:
    """The contract of one operation: an immutable value; schemas given as functions are made when first read."""

    __slots__ = (
        "_digest",
        "_input_schema",
        "_output_schema",
        "access_control",
        "description",
        "destructive",
        "error_schemas",
        "id",
        "idempotent",
        "meta",
        "name",
        "namespace",
        "resumable",
        "tags",
        "timeout",
        "title",
        "type",
        "values",
        "version",
    )

    def __init__(
        self,
        *,
        name: str,
        namespace: str = "",
        version: str = "1.0.0",
        type: OperationType | str = OperationType.QUERY,
        title: str | None = None,
        description: str = "",
        tags: Iterable[str] = (),
        input_schema: LazySchema | None = None,
        output_schema: LazySchema | None = None,
        error_schemas: Iterable[ErrorSchema | Mapping[str, Any]] = (),
        access_control: AccessControl | Mapping[str, Any] | None = None,
        idempotent: bool | None = None,
        destructive: bool = False,
        resumable: bool = False,
        timeout: float | Literal["default"] | None = "default",
        values: int = 1,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """`values` is how many values the handler returns: one, none (0), or several."""
        put = object.__setattr__
        kind = _read_type(type)
        put(self, "id", operation_id(namespace, name))
        put(self, "namespace", namespace)
        put(self, "name", name)
        put(self, "version", version)
        put(self, "type", kind)
        put(self, "title", title)
        put(self, "description", description)
        put(self, "tags", tuple(_words(tags)))
        put(self, "_input_schema", {"type": "object"} if input_schema is None else input_schema)
        put(self, "_output_schema", {} if output_schema is None else output_schema)
        put(self, "error_schemas", tuple(_read_error_schema(error) for error in error_schemas))
        put(self, "access_control", read_access(access_control))
        put(self, "idempotent", kind is OperationType.QUERY if idempotent is None else idempotent)
        put(self, "destructive", destructive)
        put(self, "resumable", resumable)
        put(self, "timeout", _default_timeout(kind) if timeout == "default" else _read_timeout(timeout))
        put(self, "values", values)
        put(self, "meta", dict(meta or {}))
        put(self, "_digest", None)

    if TYPE_CHECKING:
        id: str
        namespace: str
        name: str
        version: str
        type: OperationType
        title: str | None
        description: str
        tags: tuple[str, ...]
        error_schemas: tuple[ErrorSchema, ...]
        access_control: AccessControl
        idempotent: bool
        destructive: bool
        resumable: bool
        timeout: float | None
        values: int
        meta: dict[str, Any]
        _input_schema: LazySchema
        _output_schema: LazySchema
        _digest: str | None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A spec does not change: use replace({name}=...)")

    @property
    def input_schema(self) -> Schema:
        return self._made("_input_schema")

    @property
    def output_schema(self) -> Schema:
        return self._made("_output_schema")

    def _made(self, slot: str) -> Schema:
        schema: LazySchema = getattr(self, slot)
        if callable(schema):
            schema = schema()
            object.__setattr__(self, slot, schema)
        return schema

    @property
    def digest(self) -> str:
        """The SHA-256 of the spec's canonical JSON: equal specs have equal digests, in every process."""
        if self._digest is None:
            text = msgspec.json.encode(_canonical(self.to_dict()), order="deterministic")
            object.__setattr__(self, "_digest", _sha256(text))
        return str(self._digest)

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
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        schemas = {"input_schema": self._input_schema, "output_schema": self._output_schema}
        return OperationSpec(**{**fields, **schemas, **changes})

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON data."""
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        schemas = {"input_schema": self.input_schema, "output_schema": self.output_schema}
        wire: dict[str, Any] = msgspec.to_builtins({**fields, **schemas}, enc_hook=str, order="deterministic")
        return wire

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> OperationSpec:
        """The spec that `to_dict` described; fields this version does not know are ignored."""
        known = {*_PLAIN_FIELDS, "input_schema", "output_schema"}
        return cls(**{key: value for key, value in wire.items() if key in known})


_PLAIN_FIELDS: Final = (
    "name",
    "namespace",
    "version",
    "type",
    "title",
    "description",
    "tags",
    "error_schemas",
    "access_control",
    "idempotent",
    "destructive",
    "resumable",
    "timeout",
    "values",
    "meta",
)


def _canonical(value: Any) -> Any:
    """JSON data in which equal numbers are written alike."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_timeout(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"A timeout is a number of seconds above zero, or None, not {timeout!r}")
    return float(timeout)


def _read_type(value: OperationType | str) -> OperationType:
    try:
        return OperationType(value)
    except ValueError:
        raise ValueError(f"Unknown operation type {value!r}: use query, mutation or subscription") from None


def _read_error_schema(error: ErrorSchema | Mapping[str, Any]) -> ErrorSchema:
    return error if isinstance(error, ErrorSchema) else msgspec.convert(dict(error), ErrorSchema)


def _default_timeout(kind: OperationType) -> float | None:
    return None if kind is OperationType.SUBSCRIPTION else DEFAULT_TIMEOUT


# --- names --------------------------------------------------------------------------------------------------------


def operation_id(namespace: str, name: str) -> str:
    """The id of a name in a namespace; a part that is not legal, or an id too long, is told at once."""
    if not _PART.match(name):
        raise ValueError(f"{name!r} is not a legal operation name: 1 to 64 of A-Z a-z 0-9 _ -")
    parts = namespace.split(".") if namespace else []
    for part in parts:
        if not _PART.match(part):
            raise ValueError(f"{namespace!r} is not a legal namespace: each part is 1 to 64 of A-Z a-z 0-9 _ -")
    found = f"{namespace}.{name}" if namespace else name
    if len(parts) + 1 > MAX_ID_PARTS or len(found) > MAX_ID_LENGTH:
        raise ValueError(f"The id {found!r} is too long: at most {MAX_ID_PARTS} parts and {MAX_ID_LENGTH} characters")
    return found


def legal_name(original: str) -> str:
    """An imported name with every character that an id may not have turned into `_`."""
    return _ILLEGAL.sub("_", original)[:MAX_NAME_LENGTH] or "_"


def legal_names(originals: Iterable[str], hashed: Callable[[str], str] | None = None) -> dict[str, str]:
    """A legal name for each imported one; in a clash each that had to change gets 8 digits of its hash.

    `hashed` gives the text to hash for an original where that is not the name itself.
    """
    wanted = {original: legal_name(original) for original in originals}
    holders: dict[str, int] = {}
    for name in wanted.values():
        holders[name] = holders.get(name, 0) + 1
    return {
        original: name
        if name == original or holders[name] == 1
        else with_hash(name, hashed(original) if hashed else original)
        for original, name in wanted.items()
    }


def with_hash(name: str, original: str) -> str:
    """The name, cut to stay within 64 characters, with the first 8 digits of its original's SHA-256."""
    digest = _sha256(original.encode("utf-8", "surrogatepass"))
    return f"{name[: MAX_NAME_LENGTH - 9]}_{digest[:8]}"


def _sha256(text: bytes) -> str:
    import hashlib

    return hashlib.sha256(text).hexdigest()


# --- the context of one call --------------------------------------------------------------------------------------


def new_request_id() -> str:
    """An id nobody can guess; no UUID, because making one costs several times more."""
    return os.urandom(16).hex()


class Progress(msgspec.Struct, frozen=True):
    """How far a call is."""

    progress: float
    total: float | None = None
    message: str | None = None


class LogMessage(msgspec.Struct, frozen=True):
    """What a handler says to its caller while it works."""

    message: str
    level: str = "info"
    data: Any = None


Notify: TypeAlias = Callable[[Progress | LogMessage], None]


class Recording(Protocol):
    """One run that is being recorded: calls made inside it name it as their parent, and its outcome is told to it."""

    def nested(self) -> Recording: ...

    def succeeded(self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]: ...

    def failed(self, spec: OperationSpec, input: Any, error: CallError) -> dict[str, Any] | None: ...

    def request(self) -> dict[str, Any]: ...

    def adopt(self, wire: Any) -> None: ...


class Context:
    """One call as its handler sees it: who asks, how long it may take, and a way to speak while it works."""

    __slots__ = (
        "_call_deadline",
        "_cancelled",
        "_carry",
        "_deadline",
        "_env",
        "_event_id",
        "_is_taken",
        "_make_env",
        "_notify",
        "_origin",
        "_parent",
        "_request_id",
        "identity",
        "inline",
        "is_in_place",
        "last_event_id",
        "meta",
        "parent_request_id",
        "recording",
        "wait_for",
    )

    def __init__(
        self,
        *,
        request_id: str | None = None,
        parent_request_id: str | None = None,
        identity: Identity | None = None,
        timeout: float | None = None,
        last_event_id: str | None = None,
        notify: Notify | None = None,
        inline: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """`timeout` counts from now; `notify` is told of progress and log messages; `inline` runs `def` in place."""
        self._request_id = request_id
        self.parent_request_id = parent_request_id
        self.identity = identity
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._call_deadline: float | None = None
        self.last_event_id = last_event_id
        self._event_id: str | None = None
        self._notify = notify
        self._carry: Callable[[Notify, Progress | LogMessage], object] | None = None
        self.inline = inline
        self.is_in_place = False  # whether a `def` is being run in place, and so what it calls, too
        self.meta = meta
        self.recording: Recording | None = None  # set by a surface whose caller asked for provenance
        self._cancelled = False
        self._is_taken = False  # whether a call has begun under this very context
        self._origin: Context | None = None  # the context a caller gave to several calls; this is one of them
        self._parent: Context | None = None
        self._make_env: Callable[[Context], Env] | None = None
        self._env: Env | None = None
        # Set while a `def` runs: how a nested call, which is a coroutine, is waited for from there.
        self.wait_for: Callable[[Coroutine[Any, Any, Any], bool], Any] | None = None

    @property
    def request_id(self) -> str:
        if self._request_id is None:
            self._request_id = new_request_id()
        return self._request_id

    def remaining(self) -> float | None:
        """The seconds left, never below zero; None where there is no deadline."""
        deadline = self._deadline
        if self._call_deadline is not None and (deadline is None or self._call_deadline < deadline):
            deadline = self._call_deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the caller has given up or the time is over: a `def` in a thread looks here now and then."""
        if self._cancelled or self.remaining() == 0.0:
            return True
        return any(context is not None and context.cancelled for context in (self._parent, self._origin))

    def cancel(self) -> None:
        self._cancelled = True

    @property
    def env(self) -> Env:
        """The registry's other operations: `context.env.namespace.operation(input)`."""
        if self._env is None:
            if self._make_env is None:
                raise RuntimeError("This context belongs to no registry: it has an env only inside a call")
            self._env = self._make_env(self)
        return self._env

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far the call is; without a listener nothing happens."""
        self._tell(Progress(progress, total, message))

    def log(self, message: str, level: str = "info", data: Any = None) -> None:
        """Tell the caller something on the way."""
        self._tell(LogMessage(message, level, data))

    def _tell(self, message: Progress | LogMessage) -> None:
        if self._notify is None:
            return
        if self._carry is None:
            self._notify(message)
        else:
            self._carry(self._notify, message)

    @property
    def event_id(self) -> str | None:
        """The id of the item that is yielded next, by which a client can resume."""
        return self._event_id

    @event_id.setter
    def event_id(self, value: str | None) -> None:
        self._event_id = value
        if self._origin is not None:
            self._origin.event_id = value

    def enter(self, timeout: float | None, make_env: Callable[[Context], Env]) -> Context:
        """Begin a call: its context is this one, or, where that is taken by another call, one like it."""
        context = self._like_this() if self._is_taken else self
        context._is_taken = True
        context._call_deadline = None if timeout is None else time.monotonic() + timeout
        context._make_env = make_env
        return context

    def _like_this(self) -> Context:
        another = Context(
            request_id=self.request_id,
            parent_request_id=self.parent_request_id,
            identity=self.identity,
            last_event_id=self.last_event_id,
            notify=self._notify,
            inline=self.inline,
            meta=self.meta,
        )
        another._deadline = self._deadline
        another._parent = self._parent
        another._origin = self
        another.recording = self.recording
        return another

    def notify_through(self, carry: Callable[[Notify, Progress | LogMessage], object]) -> None:
        """Send progress and log messages by another way, such as from a worker thread to the loop."""
        self._carry = carry

    def child(self) -> Context:
        """The context of a call made inside this one: same caller, the time that is left, this call as its parent."""
        nested = Context(
            parent_request_id=self.request_id,
            identity=self.identity,
            inline=self.inline or self.is_in_place,
            meta=self.meta,
        )
        left = self.remaining()
        nested._deadline = None if left is None else time.monotonic() + left
        nested._parent = self
        if self.recording is not None:
            nested.recording = self.recording.nested()
        return nested


# --- an operation -------------------------------------------------------------------------------------------------


class Operation:
    """A spec and the handler that does it; a function's signature says how its arguments are read.

    Without a signature the handler is called as `handler(input, context)`.
    """

    __slots__ = ("handler", "inline", "policy", "signature", "spec")

    def __init__(
        self,
        spec: OperationSpec,
        handler: Callable[..., Any] | None,
        *,
        signature: Signature | None = None,
        policy: Policy = INHERIT,
        inline: bool = False,
    ) -> None:
        self.spec = spec
        self.handler = handler
        self.signature = signature
        self.policy = policy
        self.inline = inline

    def __repr__(self) -> str:
        return f"<Operation {self.spec.id} ({self.spec.type.value})>"

    def with_spec(self, spec: OperationSpec) -> Operation:
        return Operation(spec, self.handler, signature=self.signature, policy=self.policy, inline=self.inline)


def operation_from_function(
    function: Callable[..., Any],
    *,
    type: OperationType | str | None = None,
    namespace: str = "",
    name: str | None = None,
    description: str | None = None,
    inline: bool = False,
    policy: Policy = INHERIT,
    **fields: Any,
) -> Operation:
    """A function as an operation: schemas from its signature, words from its docstring; `fields` are of the spec."""
    from enfold.schema.signature import read_signature

    signature = read_signature(function, context_type=Context)
    original = name or function_name(function)
    legal = legal_name(original)
    meta = dict(fields.pop("meta", None) or {})
    if legal != original:
        meta.setdefault("original_name", original)
    # What is not said to be a query may change something: nothing is claimed that nobody promised.
    kind = OperationType.SUBSCRIPTION if signature.kind == "stream" else OperationType.MUTATION
    spec = OperationSpec(
        namespace=namespace,
        name=legal,
        type=_agreed_type(kind if type is None else _read_type(type), signature.kind, original),
        description=signature.description if description is None else description,
        input_schema=lambda: signature.input_schema,
        output_schema=lambda: signature.output_schema,
        values=0 if signature.no_value else signature.several or 1,
        meta=meta,
        **fields,
    )
    return Operation(spec, function, signature=signature, policy=policy, inline=inline)


def function_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None)
    if name is None or name == "<lambda>":
        raise TypeError(f"{function!r} has no name: pass name=...")
    return str(name)


def _agreed_type(kind: OperationType, signature_kind: str, name: str) -> OperationType:
    if signature_kind == "stream" and kind is not OperationType.SUBSCRIPTION:
        raise TypeError(f"{name} is an async generator: register it as a subscription")
    return kind
