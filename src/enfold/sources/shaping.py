"""What a user changes about imported operations: fixed arguments, short descriptions, and fields selected by default.

A fixed argument is no longer in the schema: callers neither see nor send it, and no record of a call has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from enfold.operation import Context, Operation, OperationSpec, OperationType
from enfold.operation.call import Middleware
from enfold.operation.operation import checked_middleware
from enfold.schema.arguments import coerce
from enfold.schema.keywords import properties_of
from enfold.sources.known_secrets import KnownSecrets

Describe: TypeAlias = Literal["short", "full"]


def shaping(
    fix: Mapping[str, Any] | None = None,
    describe: Describe | None = None,
    select: str | Mapping[str, str] | None = None,
    middleware: Iterable[Middleware] = (),
) -> Shaping:
    """The changes of a user.

    `fix` maps arguments to the values that every operation gets which has them; `describe="short"` shows a sentence of each
    description; `select` maps names of operations to the fields of their results that are given unasked, or is one for all;
    `middleware` wraps their calls, the first one outermost.
    """
    if describe not in (None, "short", "full"):
        raise ValueError(f"Operations are described short or full, not {describe!r}")
    return Shaping(dict(fix or {}), describe, select or {}, checked_middleware(middleware))


class Shaping(msgspec.Struct, frozen=True):
    """The changes; an operation that none of them concerns stays as it is."""

    fix: dict[str, Any]
    describe: Describe | None
    select: str | Mapping[str, str]
    middleware: tuple[Middleware, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return not self.fix and self.describe != "short" and not self.select and not self.middleware

    def apply(self, operation: Operation) -> Operation:
        if self.changes_nothing:
            return operation
        operation = self._described(operation)
        if self.middleware:
            operation = operation.replace(middleware=(*self.middleware, *operation.middleware))
        if self.fix and operation.signature is None and operation.handler is not None:
            return _with_fixed_arguments(operation, operation.handler, self.fix)
        return operation

    def _described(self, operation: Operation) -> Operation:
        spec = operation.spec
        added = {"describe": "short"} if self.describe == "short" else {}
        select = self._selection(spec)
        added |= {} if select is None else {"select": select}
        return operation.replace(spec=spec.replace(meta={**spec.meta, **added})) if added else operation

    def _selection(self, spec: OperationSpec) -> str | None:
        if isinstance(self.select, str):
            return self.select
        names = (spec.name, spec.id, str(spec.meta.get("original_name", spec.name)))
        return next((self.select[name] for name in names if name in self.select), None)


def _with_fixed_arguments(operation: Operation, handler: Callable[..., Any], fix: Mapping[str, Any]) -> Operation:
    """The operation with some of its arguments fixed; which it has is found out when somebody reads its schema."""
    fixed = _FixedArguments(operation.spec, fix)
    spec = operation.spec.replace(input_schema=lambda: fixed.schema)

    async def call(input: dict[str, Any], context: Context) -> Any:
        with fixed.secrets.hidden_in_errors():
            return fixed.secrets.redact_result(await handler(fixed.input(input), context))

    async def stream(input: dict[str, Any], context: Context) -> AsyncIterator[Any]:
        items = handler(fixed.input(input), context)
        try:
            with fixed.secrets.hidden_in_errors():
                async for item in items:
                    yield fixed.secrets.redact_result(item)
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()

    is_stream = operation.spec.type is OperationType.SUBSCRIPTION
    return operation.replace(spec=spec, handler=stream if is_stream else call)


class _FixedArguments:
    """The arguments of one operation that are fixed, and its schema without them."""

    def __init__(self, spec: OperationSpec, fix: Mapping[str, Any]) -> None:
        self._spec = spec
        self._fix = fix

    def input(self, given: dict[str, Any]) -> dict[str, Any]:
        """The input with what is fixed: whoever sends it nevertheless does not change it."""
        return {**given, **self._values}

    @cached_property
    def _values(self) -> dict[str, Any]:
        """What is fixed, of those arguments that there are; a text from the environment may stand for a number."""
        properties = properties_of(self._spec.input_schema)
        values = {name: value for name, value in self._fix.items() if name in properties}
        made: dict[str, Any] = coerce({"type": "object", "properties": properties}, values)
        return made

    @cached_property
    def secrets(self) -> KnownSecrets:
        secrets = KnownSecrets()
        secrets.remember_named(self._values)
        return secrets

    @cached_property
    def schema(self) -> dict[str, Any]:
        schema = self._spec.input_schema
        properties = properties_of(schema)
        hidden = [name for name in self._fix if name in properties]
        if not hidden:
            return schema
        kept = {name: each for name, each in properties.items() if name not in hidden}
        required = [name for name in schema.get("required", ()) if name not in hidden]
        rest = {key: value for key, value in schema.items() if key not in ("properties", "required", "examples")}
        return {**rest, "properties": kept, **({"required": required} if required else {})}
