"""Who calls over HTTP, and where a client without a token is told to get one (RFC 9728)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import quote

from enfold.identities.challenges import WELL_KNOWN, challenge, metadata_url, protected_resource, scopes_of
from enfold.identities.tokens import Door, Verifier
from enfold.mcp.json_rpc import INVALID_REQUEST, ProtocolError, encode
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.asgi.messages import IDENTITY, IS_CLOSED, Header, Scope
from enfold.surfaces.mcp.reply import RefusalError

__all__ = ["Authorization"]

Headers: TypeAlias = Mapping[bytes, bytes]


class Authorization:
    """Turns a request's token into an identity, and says whether nobody may come in without one."""

    def __init__(
        self, registry: Registry, tokens: Verifier | None, servers: tuple[str, ...], *, allow_anonymous: bool
    ) -> None:
        self._registry = registry
        self._door = None if tokens is None else Door(tokens)
        self._allow_anonymous = allow_anonymous
        self.has_door = tokens is not None
        self._servers = servers

    def is_closed(self, scope: Scope) -> bool:
        """Whether who has no identity gets nothing but what is public: by our own tokens, or those of who mounts us."""
        return scope.get(IS_CLOSED, False) or (self.has_door and not self._allow_anonymous)

    async def identify(self, scope: Scope, headers: Headers) -> Identity | None:
        """Who calls: whom the app that mounts us has found, or who is behind the token; None without a token."""
        identity: Identity | None = scope.get(IDENTITY)
        header = headers.get(b"authorization")
        if self._door is None or identity is not None or header is None:
            return identity
        identity = await self._door.enter(header.decode("latin-1"), scope.get("client"))
        if identity is None:
            raise self.challenge(scope, headers, is_wrong=True)
        return identity

    def challenge(self, scope: Scope, headers: Headers, *, is_wrong: bool = False) -> RefusalError:
        """The refusal of a caller without a good token, which says where to get one."""
        path = quote(scope["path"], safe="/:@!$&()*+,;=~")  # as it may stand in a header
        told = challenge(
            "invalid_token" if is_wrong else None,
            scope=scopes_of(self._registry.list()),
            resource_metadata=metadata_url(_origin(scope, headers), path),
        )
        header: Header = (b"www-authenticate", told.encode())
        message = "The token is not valid" if is_wrong else "This server needs a bearer token"
        return RefusalError(401, ProtocolError(INVALID_REQUEST, message), headers=[header])

    def is_metadata(self, scope: Scope) -> bool:
        return self._door is not None and WELL_KNOWN in scope["path"]

    def metadata(self, scope: Scope, headers: Headers) -> bytes:
        """The document that tells a client for which resource it needs a token, and who gives them."""
        resource = f"{_origin(scope, headers)}{scope['path'].partition(WELL_KNOWN)[2]}"
        issuers = [*self._servers, *([] if self._door is None else self._door.issuers)]
        scopes = scopes_of(self._registry.list())
        return encode(protected_resource(resource, issuers=issuers, scopes=scopes, name="Enfold MCP server"))


def _origin(scope: Scope, headers: Headers) -> str:
    """Where the client sees us; the host has been checked."""
    return f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'localhost').decode('latin-1')}"
