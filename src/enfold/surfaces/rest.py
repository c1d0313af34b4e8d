"""REST routes: the operation of a method and a path, and the arguments in path, query string and body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from enfold.errors import invalid_argument
from enfold.operations import Identity, OperationSpec
from enfold.operations.access import may_list
from enfold.operations.http_route import HTTPRoute, is_argument, read_route
from enfold.runtime.registry import Registry


def with_routes(registry: Registry) -> list[OperationSpec]:
    """The specs of operations that have a REST route: functions first, then those of other processes."""
    found = [operation for operation in registry if operation.spec.http is not None]
    return [operation.spec for operation in sorted(found, key=lambda each: each.origin.kind != "functions")]


class RestMatch(msgspec.Struct, frozen=True):
    """The operation that a request is for, its arguments in the path, and the methods of that path."""

    spec: OperationSpec
    path: str  # as the route has it
    arguments: dict[str, str]
    methods: tuple[str, ...]


class _Node(msgspec.Struct):
    """One part of a path: what comes after it, and the routes that end here."""

    literals: dict[str, _Node] = {}
    argument: _Node | None = None
    routes: dict[str, tuple[HTTPRoute, OperationSpec]] = {}

    def find(self, parts: list[str], place: int = 0) -> Iterator[_Node]:
        """The nodes that a path leads to; a part that is written in the route comes before an argument."""
        if place == len(parts):
            yield self
            return
        literal = self.literals.get(parts[place])
        if literal is not None:
            yield from literal.find(parts, place + 1)
        if self.argument is not None and parts[place]:
            yield from self.argument.find(parts, place + 1)


class RestPaths:
    """The routes of a registry as a tree of the parts of their paths."""

    def __init__(self, specs: Iterable[OperationSpec]) -> None:
        self._root = _Node()
        self.is_empty = True
        for spec in specs:
            if spec.http is not None:
                self._add(read_route(spec.http), spec)

    def _add(self, route: HTTPRoute, spec: OperationSpec) -> None:
        self.is_empty = False
        node = self._root
        for part in route.parts:
            if is_argument(part):
                node.argument = node = node.argument or _Node()
            else:
                node = node.literals.setdefault(part, _Node())
        node.routes.setdefault(route.method, (route, spec))

    def find(self, method: str, parts: list[str], identity: Identity | None) -> RestMatch | None:
        """The operation at a path, of those that the caller may see; with another method, one that has the path."""
        found = [
            (name, route, spec)
            for node in self._root.find(parts)
            for name, (route, spec) in node.routes.items()
            if identity is None or may_list(spec.access_control, identity)
        ]
        if not found:
            return None
        asked = "GET" if method == "HEAD" else method
        _, route, spec = next((each for each in found if each[0] == asked), found[0])
        return RestMatch(spec, route.path, _arguments(route, parts), _methods([name for name, _, _ in found]))


def _arguments(route: HTTPRoute, parts: list[str]) -> dict[str, str]:
    return {name[1:-1]: part for name, part in zip(route.parts, parts, strict=True) if is_argument(name)}


def _methods(names: list[str]) -> tuple[str, ...]:
    both = [method for name in dict.fromkeys(names) for method in ((name, "HEAD") if name == "GET" else (name,))]
    return (*both, "OPTIONS")


def merged(in_path: dict[str, str], in_query: dict[str, Any], in_body: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call; one that is given in two places is refused."""
    given: dict[str, Any] = dict(in_path)
    for place, arguments in (("query string", in_query), ("body", in_body)):
        for name in arguments:
            if name in given:
                message = f"The argument {name} is given twice: in the {place} and elsewhere"
                raise invalid_argument(name, "constraint", "given once", message)
        given |= arguments
    return given
