"""What may be said of an operation, as typed options: a misspelt one fails in mypy and at registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Required, TypedDict

from enfold.operation.call import Middleware
from enfold.operation.identity import AccessControl
from enfold.operation.policy import Normalize
from enfold.operation.spec import Durable, ErrorSchema, LazySchema, OnCrash, OperationType


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
