"""Which operation a path leads to, and what a web server has to know about it."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakMethod

import msgspec

from enfold.operation import Identity, OperationSpec, OperationType
from enfold.registry import Registry
from enfold.reserved import is_reserved
from enfold.runtime import PreparedOperation
from enfold.surfaces.query_string import QueryReader, query_reader

PREFIX: Final = "/functions/"


class Route(msgspec.Struct, eq=False):
    """An operation as a web server sees it; how its query string is read is worked out when one comes."""

    spec: OperationSpec
    prepared: PreparedOperation
    # The same for an answer in the surface's own format, where that takes structs.
    for_writing: PreparedOperation
    needs_context: bool  # its handler takes one, or something is required of its callers
    methods: tuple[str, ...]
    known: dict[str, Route]  # the table it stands in, which is replaced when the registry changes
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

    def find(self, path: str, identity: Identity | None) -> Route | None:
        """The route of a path; None where it is not that of an operation, an error where the caller knows of none."""
        if not path.startswith(PREFIX):
            return None
        name = path.removeprefix(PREFIX)
        spec = self._registry.find(name, identity)
        route = self.known.get(path)
        if route is not None and route.spec is spec:
            return route
        route = self.route_to(spec)
        if self._is_same_for_all(name):
            self.known[path] = route
        return route

    def _is_same_for_all(self, name: str) -> bool:
        """Whether a name means the same operation whoever asks, if they find one."""
        return is_reserved(name) or sum(name in (spec.id, spec.name) for spec in self._registry.list()) == 1

    def route_to(self, spec: OperationSpec) -> Route:
        prepared = self._registry.prepared(spec.id)
        writes = prepared.variant(for_writing=True) if self._takes_structs else prepared
        needs_context = prepared.needs_context or not prepared.is_open
        return Route(spec, prepared, writes, needs_context, methods_of(spec), self.known)


def methods_of(spec: OperationSpec) -> tuple[str, ...]:
    """The HTTP methods of an operation: GET only where it does not change anything."""
    return ("POST", "OPTIONS") if spec.type is OperationType.MUTATION else ("GET", "HEAD", "POST", "OPTIONS")
