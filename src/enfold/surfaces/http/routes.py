"""Which operation a path leads to, and what HTTP has to know about it."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakMethod

import msgspec

from enfold.operation import Operation, OperationSpec, OperationType
from enfold.registry import Registry
from enfold.surfaces.query_string import QueryReader, query_reader

__all__ = ["Route", "Routes"]

_PREFIX: Final = "/functions/"


class Route(msgspec.Struct):
    """An operation as HTTP sees it; how its query string is read is worked out when one comes."""

    spec: OperationSpec
    id: str
    methods: tuple[str, ...]
    is_stream: bool
    is_open: bool  # nothing at all is required of its callers
    # What runs it, if it is open, and its handler asks for nothing but its arguments.
    execute: Any  # for now
    _read_query: QueryReader | None = None

    def read_query(self, query: bytes) -> dict[str, Any]:
        if self._read_query is None:
            self._read_query = query_reader(self.spec)
        return self._read_query(query)


class Routes:
    """The routes by path, found when they are first asked for; `known` is emptied whenever the registry changes."""

    __slots__ = ("__weakref__", "_registry", "_takes_structs", "known")

    def __init__(self, registry: Registry, *, takes_structs: bool) -> None:
        self._registry = registry
        self._takes_structs = takes_structs
        self.known: dict[str, Route] = {}
        forget = WeakMethod(self._forget)  # A registry may outlive many apps.
        registry.watch(lambda: (living := forget()) and living())

    def _forget(self) -> None:
        self.known = {}

    def find(self, path: str) -> Route | None:
        """The route of a path; None where it is not that of an operation, an error where there is no such operation."""
        route = self.known.get(path)
        if route is None and path.startswith(_PREFIX):
            spec = self._registry.find(path.removeprefix(_PREFIX))
            route = self.known[path] = _route_to(spec.id, self._registry, takes_structs=self._takes_structs)
        return route


def _route_to(operation_id: str, registry: Registry, *, takes_structs: bool) -> Route:
    operation = registry.get(operation_id)
    spec = operation.spec
    is_stream = spec.type is OperationType.SUBSCRIPTION
    methods = ("POST", "OPTIONS") if spec.type is OperationType.MUTATION else ("GET", "HEAD", "POST", "OPTIONS")
    is_open = spec.access_control.is_open
    is_plain = is_open and not is_stream and _asks_for_nothing(operation)
    execute = registry.prepared(operation_id, for_writing=takes_structs).execute if is_plain else None
    return Route(spec, spec.id, methods, is_stream, is_open, execute)


def _asks_for_nothing(operation: Operation) -> bool:
    signature = operation.signature
    is_async = signature is not None and signature.kind == "async" and signature.context_parameter is None
    return is_async and operation.handler is not None
