"""How a user says that we log in to an MCP server: as that user, as a program, or by what another authority says of us."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from enfold.sources.mcp.oauth.login_store import LoginStore
from enfold.sources.web.supplied import Supplied

# Takes a user to an address, in their browser or otherwise; what it gives is awaited if it can be.
OpenURL: TypeAlias = Callable[[str], object]


class _Client(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are to an authorization server; `issuer` names the one that knows the client, where there are several."""

    client_id: str = ""
    client_secret: str = ""
    private_key: str = ""  # PEM; signs a statement instead of sending a secret
    key_id: str = ""
    algorithm: str = ""  # of the signature; found from the key where it is not said
    scopes: tuple[str, ...] = ()
    issuer: str = ""
    store: LoginStore | None = None

    def __repr__(self) -> str:
        """Without its secrets: values end up in logs."""
        return f"{type(self).__name__}(client_id={self.client_id!r})"


class UserLogin(_Client, frozen=True, kw_only=True):
    """A user logs in with their browser; a client id is found where none is given.

    `open_url` takes them to the login page; without it nobody can be asked, and only a stored login is used.
    `client_metadata_url` is the address of a document about your program, for servers that take it as a client id.
    """

    open_url: OpenURL | None = None
    client_metadata_url: str = ""
    client_name: str = "Enfold"
    redirect_uri: str = "http://127.0.0.1/callback"
    redirect_port: int = 0  # 0 takes a free one
    wait: float = 300.0  # seconds for the user


class ClientCredentials(_Client, frozen=True, kw_only=True):
    """A program logs in as itself, with a secret or a private key."""


class AssertionLogin(_Client, frozen=True, kw_only=True):
    """A program logs in by a signed statement of another authority about it, such as that of its cluster."""

    assertion: Supplied[str]


class EnterpriseLogin(_Client, frozen=True, kw_only=True):
    """A user is known to their company's identity provider, which vouches for them at the server's own."""

    identity_token: Supplied[str]
    provider_token_url: str
    provider_client_id: str = ""
    provider_client_secret: str = ""


Auth: TypeAlias = UserLogin | ClientCredentials | AssertionLogin | EnterpriseLogin
