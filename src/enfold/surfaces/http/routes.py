"""Which operation a path leads to, and what HTTP has to know about it."""

from __future__ import annotations

from typing import Any, Final

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
    is_plain: bool  # it is open, and its handler asks for nothing but its arguments
    _read_query: QueryReader | None = None

    def read_query(self, query: bytes) -> dict[str, Any]:
        if self._read_query is None:
            self._read_query = query_reader(self.spec)
        return self._read_query(query)


class Routes:
    """The routes by path, found when they are first asked for, and forgotten when the registry changes."""

    __slots__ = ("_known", "_registry", "_version")

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._version = registry.version
        self._known: dict[str, Route] = {}

    @property
    def is_current(self) -> bool:
        """Whether what is known of the registry is still true."""
        return self._version == self._registry.version

    def known(self, path: str) -> Route | None:
        """The route of a path that has been asked for before."""
        return self._known.get(path) if self._version == self._registry.version else None

    def find(self, path: str) -> Route | None:
        """The route of a path; None where it is not that of an operation, an error where there is no such operation."""
        if not self.is_current:
            self._version, self._known = self._registry.version, {}
        route = self._known.get(path)
        if route is None and path.startswith(_PREFIX):
            spec = self._registry.find(path.removeprefix(_PREFIX))
            route = self._known[path] = _route_to(self._registry.get(spec.id))
        return route


def _route_to(operation: Operation) -> Route:
    spec = operation.spec
    is_stream = spec.type is OperationType.SUBSCRIPTION
    methods = ("POST", "OPTIONS") if spec.type is OperationType.MUTATION else ("GET", "HEAD", "POST", "OPTIONS")
    is_open = spec.access_control.is_open
    is_plain = is_open and not is_stream and _asks_for_nothing(operation)
    return Route(spec, spec.id, methods, is_stream, is_open, is_plain)


def _asks_for_nothing(operation: Operation) -> bool:
    signature = operation.signature
    return signature is not None and signature.kind == "async" and signature.context_parameter is None
