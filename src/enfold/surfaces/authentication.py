"""Authentication over HTTP: allowed hosts and origins, tokens, and challenges for callers without a valid token (RFC 9728)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec

from enfold.auth.challenges import challenge, metadata_url, protected_resource, scopes_of
from enfold.auth.tokens import Authenticator, Verifier, bearer_token, while_admitted
from enfold.operations import Identity
from enfold.operations.access import words
from enfold.runtime.registry import Registry
from enfold.surfaces.asgi import Header, Headers, Receive, Scope, origin_of, root_of, until_disconnected
from enfold.surfaces.hosts import Hosts

_CHALLENGE: Final = b"www-authenticate"


class Authentication:
    """Decides who may call one app."""

    def __init__(
        self,
        registry: Registry,
        tokens: Verifier | None,
        hosts: Hosts,
        *,
        allow_anonymous: bool,
        authorization_servers: Iterable[str] = (),
    ) -> None:
        self.hosts = hosts
        self.authenticator = None if tokens is None else Authenticator(tokens)
        self.is_closed = tokens is not None and not allow_anonymous  # but for what is public
        self.registry = registry
        self._servers = tuple(words(authorization_servers))

    async def authenticate(self, scope: Scope, headers: Headers, receive: Receive) -> Identity | None:
        """Return the identity of the request's `Authorization` header; a rejection may be delayed."""
        if self.authenticator is None:
            return None
        gone = partial(until_disconnected, scope, headers, receive)
        return await self.authenticator.authenticate(
            headers[b"authorization"].decode("latin-1"), scope.get("client"), gone
        )

    def while_admitted(
        self,
        headers: Headers,
        identity: Identity | None,
        refuse: Callable[[], None],
        verifier: Verifier | None = None,
    ) -> AbstractContextManager[None]:
        """Call `refuse` if the token of a stream's caller becomes invalid while the stream is open.

        `verifier` is that of an app above this one, where that one has let them in.
        """
        own = None if self.authenticator is None else self.authenticator.verifier
        token = bearer_token(headers.get(b"authorization", b"").decode("latin-1"))
        return while_admitted(verifier or own, token, identity, refuse)

    def with_challenge(self, own: Sequence[Header], scope: Scope, headers: Headers, path: str = "") -> Sequence[Header]:
        """Return the headers of a rejection; a challenge also names the scopes and the metadata of token issuers."""
        short = dict(own).get(_CHALLENGE)
        if short is None:
            return own
        detailed = challenge(
            "invalid_token" if b"invalid_token" in short else None,
            scope=scopes_of(self.registry.list()),
            resource_metadata=metadata_url(*self._origin_and_path(scope, headers, path)),
        )
        return [*(header for header in own if header[0] != _CHALLENGE), (_CHALLENGE, detailed.encode())]

    def metadata(self, scope: Scope, headers: Headers, path: str, name: str) -> bytes:
        """Return the document that tells clients which issuers' tokens a path accepts (RFC 9728)."""
        issuers = [*self._servers, *([] if self.authenticator is None else self.authenticator.issuers)]
        scopes = scopes_of(self.registry.list())
        resource = "".join(self._origin_and_path(scope, headers, path))
        return msgspec.json.encode(protected_resource(resource, issuers=issuers, scopes=scopes, name=name))

    def _origin_and_path(self, scope: Scope, headers: Headers, path: str) -> tuple[str, str]:
        """Return the origin that the client sees, and the path below it."""
        root = root_of(scope)
        return f"{origin_of(scope, headers)}{root}", quote(path.removeprefix(root), safe="/:@!$&()*+,;=~")
