"""Who calls over HTTP, and where a client without a token is told to get one (RFC 9728)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from enfold.mcp.messages import INVALID_REQUEST, ProtocolError, encode
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.asgi.messages import IDENTITY, Header, Scope
from enfold.surfaces.mcp.reply import RefusalError
from enfold.tokens import Verifier, bearer_token, verified

__all__ = ["Authorization"]

Headers: TypeAlias = Mapping[bytes, bytes]

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class Authorization:
    """Turns a request's token into an identity; with tokens nobody calls without one."""

    def __init__(self, registry: Registry, tokens: Verifier | None, servers: tuple[str, ...]) -> None:
        self._registry = registry
        self._tokens = tokens
        self.is_needed = tokens is not None  # nobody calls without a token
        self._servers = servers

    async def identify(self, scope: Scope, headers: Headers) -> Identity | None:
        """Who calls: whom the app that mounts us has found, or who is behind the token."""
        identity: Identity | None = scope.get(IDENTITY)
        if self._tokens is None or identity is not None:
            return identity
        token = bearer_token(headers.get(b"authorization", b"").decode("latin-1"))
        identity = None if token is None else await verified(self._tokens, token)
        if identity is None:
            raise self._challenge(scope, headers, is_wrong=token is not None)
        return identity

    def _challenge(self, scope: Scope, headers: Headers, *, is_wrong: bool) -> RefusalError:
        path = quote(scope["path"], safe="/:@!$&()*+,;=~")  # as it may stand in a header
        parts = ['Bearer realm="enfold"', f'resource_metadata="{_origin(scope, headers)}{WELL_KNOWN}{path}"']
        if is_wrong:
            parts.append('error="invalid_token"')
        challenge: Header = (b"www-authenticate", ", ".join(parts).encode("latin-1", "replace"))
        message = "The token is not valid" if is_wrong else "This server needs a bearer token"
        return RefusalError(401, ProtocolError(INVALID_REQUEST, message), headers=[challenge])

    def is_metadata(self, scope: Scope) -> bool:
        return self._tokens is not None and WELL_KNOWN in scope["path"]

    def metadata(self, scope: Scope, headers: Headers) -> bytes:
        """The document that tells a client for which resource it needs a token, and who gives them."""
        document: dict[str, Any] = {
            "resource": f"{_origin(scope, headers)}{scope['path'].partition(WELL_KNOWN)[2]}",
            "bearer_methods_supported": ["header"],
            "resource_name": "Enfold MCP server",
        }
        if self._servers:
            document["authorization_servers"] = list(self._servers)
        scopes = sorted({scope for spec in self._registry.list() for scope in _scopes(spec.access_control)})
        return encode({**document, "scopes_supported": scopes} if scopes else document)


def _scopes(access: Any) -> tuple[str, ...]:
    return (*access.required_scopes, *access.required_scopes_any)


def _origin(scope: Scope, headers: Headers) -> str:
    """Where the client sees us; the host has been checked."""
    return f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'localhost').decode('latin-1')}"
