"""Operations composed inside a handler: `context.env.namespace.operation(input)`. It is given its registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, Protocol

from enfold.access import check_access
from enfold.envelope import ResponseEnvelope
from enfold.operation import Context, OperationSpec, OperationType

__all__ = ["Env", "Operations", "build_env"]


class Operations(Protocol):
    """What an env needs of a registry."""

    def get_spec(self, operation_id: str) -> OperationSpec: ...

    def needs_loop(self, operation_id: str) -> bool: ...

    def execute(
        self, operation_id: str, input: Mapping[str, Any], context: Context | None = None
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]: ...

    def subscribe(
        self, operation_id: str, input: Mapping[str, Any], context: Context | None = None
    ) -> AsyncIterator[ResponseEnvelope[Any]]: ...


def build_env(registry: Operations, context: Context, enforce: bool = False) -> Env:
    """The operations of a registry for one handler; `enforce` checks access on every nested call."""
    return Env(registry, context, enforce, "")


class Env:
    """A namespace, or an operation of it: attributes lead down, a call runs what the path names."""

    __slots__ = ("_context", "_enforce", "_path", "_registry")

    def __init__(self, registry: Operations, context: Context, enforce: bool, path: str) -> None:
        self._registry = registry
        self._context = context
        self._enforce = enforce
        self._path = path

    def __getattr__(self, name: str) -> Env:
        if name.startswith("__"):  # Python itself asks, for copying, pickling and the like.
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Env:
        """As an attribute, for names that are no Python names: `env["my-api"]["get-user"]`."""
        path = f"{self._path}.{name}" if self._path else name
        return Env(self._registry, self._context, self._enforce, path)

    def __repr__(self) -> str:
        return f"<Env {self._path or '(root)'}>"

    def __call__(self, input: Mapping[str, Any] | None = None, /, **arguments: Any) -> Any:
        """Run the operation: an awaitable envelope, an async iterator of them, or in a `def` the envelope itself."""
        given = {**(input or {}), **arguments} if arguments or input is None else input
        spec = self._registry.get_spec(self._path)
        nested = self._context.child()
        if self._enforce:
            check_access(spec, nested.identity, given)
        if spec.type is OperationType.SUBSCRIPTION:
            return self._registry.subscribe(self._path, given, nested)
        call = self._registry.execute(self._path, given, nested)
        if self._context.wait_for is None:
            return call
        return self._context.wait_for(call, self._registry.needs_loop(self._path))
