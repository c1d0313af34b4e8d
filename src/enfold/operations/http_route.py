"""The REST route that an operation may have beside `/functions/{id}`: `GET /items/{id}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from enfold.operations.spec import OperationSpec

READING: Final = ("GET", "POST")
CHANGING: Final = ("POST", "PUT", "PATCH", "DELETE")
WITH_BODY: Final = ("POST", "PUT", "PATCH")

# First parts of paths that the HTTP surface needs itself.
TAKEN: Final = frozenset(
    {
        ".well-known",
        "call",
        "console",
        "docs",
        "functions",
        "health",
        "healthz",
        "mcp",
        "metrics",
        "openapi.json",
        "operations",
        "readyz",
        "redoc",
        "tasks",
    }
)

_LITERAL: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@")


class HTTPRoute(msgspec.Struct, frozen=True):
    """A method and a path; a part of the path in braces is an argument."""

    method: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def path(self) -> str:
        return "/" + "/".join(self.parts)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments in the path."""
        return tuple(part[1:-1] for part in self.parts if is_argument(part))

    @property
    def shape(self) -> tuple[str, ...]:
        """Equal for routes that the same requests would match."""
        return (self.method, *("{}" if is_argument(part) else part for part in self.parts))

    def below(self, prefix: str) -> HTTPRoute:
        """The same route below a prefix of ids, whose parts are separated by dots."""
        return HTTPRoute(self.method, (*prefix.split("."), *self.parts))


def route_below(prefix: str, http: str | None) -> str | None:
    """The route of another process below a prefix of ids; None where the server needs that path itself."""
    if http is None or not prefix:
        return http
    try:
        return str(read_route(str(read_route(http).below(prefix))))
    except ValueError:
        return None


def is_argument(part: str) -> bool:
    return part.startswith("{")


def read_route(text: str) -> HTTPRoute:
    """Read `GET /items/{id}`; raise ValueError for what is not a route."""
    if not isinstance(text, str):
        raise TypeError(f"http is a method and a path, as in http='GET /items/{{id}}', not {text!r}")
    method, _, path = text.strip().partition(" ")
    path = path.strip()
    if method not in {*READING, *CHANGING}:
        raise _wrong(text, f"{method or 'it'} is not a method: use GET, POST, PUT, PATCH or DELETE before the path")
    if not path.startswith("/"):
        raise _wrong(text, "the path must begin with /")
    parts = tuple(path[1:].split("/"))
    if "" in parts:
        raise _wrong(
            text, "the path has an empty segment: remove the / at its end; / itself is reserved for the server"
        )
    for part in parts:
        _check_part(text, part)
    if parts[0] in TAKEN:
        raise _wrong(text, f"paths below /{parts[0]} are reserved for the server")
    if is_argument(parts[0]):
        raise _wrong(text, "the path begins with an argument, which would match the server's own paths")
    route = HTTPRoute(method, parts)
    twice = [name for name in route.arguments if route.arguments.count(name) > 1]
    if twice:
        raise _wrong(text, f"the path has the argument {twice[0]} twice")
    return route


def _check_part(text: str, part: str) -> None:
    name = part[1:-1]
    if part.startswith("{") and part.endswith("}") and "{" not in name and "}" not in name:
        if not name.isidentifier():
            raise _wrong(text, f"{part} is not a valid argument name")
        return
    if "{" in part or "}" in part or part.startswith(":"):
        raise _wrong(text, f"an argument must be a whole segment of the path, as in /{{id}}/, not {part}")
    if part in (".", "..") or not _LITERAL.issuperset(part):
        raise _wrong(text, f"{part!r} cannot be a segment of a path: use letters, digits and -._~!$&'()*+,;=:@")


def check_route(route: HTTPRoute, spec: OperationSpec) -> None:
    """Raise ValueError if an operation cannot be called by this method, or lacks an argument that the path has."""
    methods = CHANGING if spec.type == "mutation" else READING
    if route.method not in methods:
        allowed = f"{', '.join(methods[:-1])} or {methods[-1]}"
        raise _wrong(str(route), f"{spec.id} is a {spec.type.value}: use {allowed}")
    known: Mapping[str, Any] = spec.input_schema.get("properties") or {}
    for name in route.arguments:
        if name not in known:
            have = f"its arguments are {', '.join(known)}" if known else "it has none"
            raise _wrong(str(route), f"{spec.id} has no argument {name}: {have}")
        types = _types(name, spec.input_schema)
        if types <= {"array", "object"}:
            raise _wrong(str(route), f"the argument {name} is an {min(types)}, which a path cannot contain")


def _types(name: str, schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that an argument may have, besides null."""
    from enfold.schema.nodes import TooLargeError, read_nodes  # which few programs need to start
    from enfold.schema.nodes.traits import ALL_TYPES, nullable_inner, outer_types

    try:
        node = (read_nodes(schema)[0].properties or {})[name]
    except (TooLargeError, KeyError):
        return ALL_TYPES
    return outer_types(nullable_inner(node) or node) or ALL_TYPES


def _wrong(text: str, why: str) -> ValueError:
    return ValueError(f"http={text!r}: {why}")
