"""The options of an operation, as a decorator or `register` takes them: a misspelt one fails in mypy and at registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

from enfold.operation.identity import AccessControl
from enfold.operation.policy import Normalize
from enfold.operation.spec import Durable, ErrorSchema, OnCrash, OperationType

__all__ = ["OperationOptions"]


class OperationOptions(TypedDict, total=False):
    """What can be said of a function beside its signature and its docstring; docs/operations.md lists them."""

    name: str
    namespace: str
    type: OperationType | str
    version: str
    title: str | None
    description: str
    tags: str | Iterable[str]
    access: AccessControl | Mapping[str, Any]
    error_schemas: Iterable[ErrorSchema | Mapping[str, Any]]
    idempotent: bool
    destructive: bool
    resumable: bool
    timeout: float | None
    durable: Durable | bool  # may or must run as a task; True is "optional"
    on_crash: OnCrash  # what becomes of a task whose worker died: "retry" or "fail"
    asks_first: bool  # runs in the call until `context.detach()`, then again as a task
    inline: bool  # a `def` runs on the event loop, and not in a worker thread
    meta: Mapping[str, Any]
    # policies, which otherwise come from the registry
    normalize: Normalize
    strict_output: bool
    coerce: bool
    extras: Literal["strip", "keep"]
    expose_errors: bool
    raise_on_error: bool
    detect: Literal["all", "instances"]
