"""Operations composed inside a handler: `context.env.namespace.operation(input)`. It is given its registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from enfold.envelope import ResponseEnvelope, unwrap
from enfold.errors import CallError
from enfold.operations import Context, OperationSpec, OperationType
from enfold.operations.access import check_access


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


def build_env(
    registry: Operations,
    context: Context,
    enforce: bool = False,
    namespaces: Collection[str] | None = None,
    *,
    raise_on_error: bool = False,
) -> Env:
    """Return the operations of a registry in the form of `context.env`: `env.namespace.operation(input)`.

    `enforce` checks access on every nested call; `namespaces` limits it to these namespaces and those
    below them; `raise_on_error` raises if an MCP tool reports an error.
    """
    reachable = None if namespaces is None else frozenset(namespaces)
    return Env(_Nesting(registry, context, enforce, reachable, raise_on_error), "")


class _Nesting(msgspec.Struct, frozen=True):
    """What all names of one env share."""

    registry: Operations
    context: Context
    enforce: bool
    namespaces: frozenset[str] | None
    raise_on_error: bool

    def run(self, operation_id: str, input: Mapping[str, Any]) -> Any:
        if not self._reaches(operation_id):
            raise CallError("OPERATION_NOT_FOUND", f"Operation not found: {operation_id}")
        spec = self.registry.get_spec(operation_id)
        nested = self.context.child()
        if self.enforce:
            check_access(spec, nested.identity, input)
        if spec.type is OperationType.SUBSCRIPTION:
            return self.registry.subscribe(operation_id, input, nested)
        call = self.registry.execute(operation_id, input, nested)
        if self.raise_on_error:
            call = _raising(call)
        return self.context.nested_result(call, needs_loop=self.registry.needs_loop(operation_id))

    def _reaches(self, operation_id: str) -> bool:
        if self.namespaces is None:
            return True
        namespace = operation_id.rpartition(".")[0]
        return any(namespace == each or namespace.startswith(f"{each}.") for each in self.namespaces)


async def _raising(call: Coroutine[Any, Any, ResponseEnvelope[Any]]) -> ResponseEnvelope[Any]:
    envelope = await call
    unwrap(envelope, raise_on_error=True)
    return envelope


class Env:
    """A namespace, or an operation of it: attributes lead down, a call runs what the path names."""

    __slots__ = ("_nesting", "_path")

    def __init__(self, nesting: _Nesting, path: str) -> None:
        self._nesting = nesting
        self._path = path

    def __getattr__(self, name: str) -> Env:
        if name.startswith("__"):  # Python itself asks, for copying, pickling and the like.
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Env:
        """Return a namespace or operation whose name is not a Python name: `env["my-api"]["get-user"]`."""
        path = f"{self._path}.{name}" if self._path else name
        return Env(self._nesting, path)

    def __repr__(self) -> str:
        return f"<Env {self._path or '(root)'}>"

    def __call__(self, input: Mapping[str, Any] | None = None, /, **arguments: Any) -> Any:
        """Run the operation: an awaitable envelope, an async iterator of them, or in a `def` the envelope itself."""
        given = {**(input or {}), **arguments} if arguments or input is None else input
        return self._nesting.run(self._path, given)
