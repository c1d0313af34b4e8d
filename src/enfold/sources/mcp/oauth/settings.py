"""The settings of a login at an MCP server, and the stores that keep its tokens.

Fields with a description are keys of `auth` in a configuration.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from enfold.sources.secrets import Supplied
from enfold.storage import replace_file, try_lock

# Takes a user to an address, in their browser or otherwise; what it gives is awaited if it can be.
OpenURL: TypeAlias = Callable[[str], object]

_PAUSE: Final = 0.05  # seconds between two looks at a lock
_LOOKS: Final = 400  # twenty seconds: longer than a renewal, and shorter than a user takes


class _Client(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are to an authorization server; `issuer` names the one that knows the client, where there are several."""

    client_id: Annotated[str, Meta(description="the client, if you have registered one")] = ""
    client_secret: Annotated[str, Meta(description="its secret; give `issuer` with it")] = ""
    private_key: str = ""  # PEM; signs a statement instead of sending a secret
    key_id: Annotated[str, Meta(description="the `kid` of the private key")] = ""
    algorithm: Annotated[str, Meta(description="the signature algorithm of the private key")] = ""  # by default its own
    scopes: Annotated[
        tuple[str, ...],
        Meta(
            description="requested at the first login, in addition to those the server names",
            extra={"file": str | list[str]},
        ),
    ] = ()
    issuer: Annotated[str, Meta(description="the authorization server of this client; others are refused")] = ""
    store: LoginStore | None = None

    def __repr__(self) -> str:
        """Without its secrets: values end up in logs."""
        return f"{type(self).__name__}(client_id={self.client_id!r})"


class UserLogin(_Client, frozen=True, kw_only=True):
    """A user logs in with a browser; without a `client_id`, the program registers itself.

    `open_url` opens the login page; without it, only a stored login is used.
    `client_metadata_url` is the URL of a document about your program, for servers that accept it as a client id.
    """

    open_url: OpenURL | None = None
    client_metadata_url: Annotated[
        str,
        Meta(
            description="the https URL of your client metadata document, which some servers accept as a client id",
        ),
    ] = ""
    client_name: str = "Enfold"
    redirect_port: Annotated[
        int,
        Meta(
            description="the local port of the redirect; any free port by default",
            extra={"file": Annotated[int, Meta(ge=1, le=65535)], "expected": "a port from 1 to 65535"},
        ),
    ] = 0
    redirect_uri: Annotated[str, Meta(description="the same as a whole URL")] = "http://127.0.0.1/callback"
    wait: float = 300.0  # seconds for the user


class ClientCredentials(_Client, frozen=True, kw_only=True):
    """A program logs in as itself, with a secret or a private key."""


class AssertionLogin(_Client, frozen=True, kw_only=True):
    """A program logs in with a signed assertion about it from another authority, such as its cluster."""

    assertion: Supplied[str]


class EnterpriseLogin(_Client, frozen=True, kw_only=True):
    """A user logs in through their company's identity provider, which the server's authorization server trusts."""

    identity_token: Supplied[str]
    provider_token_url: str
    provider_client_id: str = ""
    provider_client_secret: str = ""


Auth: TypeAlias = UserLogin | ClientCredentials | AssertionLogin | EnterpriseLogin


# --- stored logins --------------------------------------------------------------------------------------------------


class RegisteredClient(msgspec.Struct, frozen=True, omit_defaults=True):
    """The client registered at one authorization server."""

    id: str
    secret: str = ""
    method: str = "none"  # by which the token endpoint hears who we are
    redirect_uri: str = ""
    until: float = 0.0  # when the secret ends; 0 never

    def __repr__(self) -> str:
        return f"RegisteredClient({self.id!r})"


class LoginTokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of a login; `until` is the time at which the access token expires, 0 if unknown."""

    access: str
    refresh: str = ""
    until: float = 0.0
    key: str = ""  # PEM, of tokens that are bound to one

    def __repr__(self) -> str:
        return "Tokens(…)"


class Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The login at one server; its client and tokens are only valid for its issuer."""

    issuer: str = ""
    metadata_url: str = ""  # where the server says what it is, if it named a place
    client: RegisteredClient | None = None
    tokens: LoginTokens | None = None
    scopes: tuple[str, ...] = ()  # that were asked for


class LoginStore(Protocol):
    """Stores logins by the URL of their server."""

    def load(self, server_url: str) -> Saved | None:
        """Return the login stored for a server."""

    def save(self, server_url: str, saved: Saved) -> None:
        """Store a login."""


class MemoryStore:
    """Stores logins in memory, until the program ends."""

    def __init__(self) -> None:
        self._kept: dict[str, Saved] = {}

    def load(self, server_url: str) -> Saved | None:
        return self._kept.get(server_url)

    def save(self, server_url: str, saved: Saved) -> None:
        self._kept[server_url] = saved


class _File(msgspec.Struct, frozen=True):
    """One file: the address is in it, because its name is only a hash."""

    server: str
    saved: Saved


class FileStore:
    """Stores each login in a separate file, so that several programs never overwrite each other's."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).expanduser()

    def load(self, server_url: str) -> Saved | None:
        """Return the stored login; None if the file cannot be read."""
        try:
            found = msgspec.json.decode(self._path(server_url).read_bytes(), type=_File)
        except (OSError, ValueError, RecursionError):  # of which what msgspec raises is one
            return None
        return found.saved if found.server == server_url else None

    def save(self, server_url: str, saved: Saved) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(server_url), msgspec.json.encode(_File(server_url, saved)))

    @asynccontextmanager
    async def alone(self, server_url: str) -> AsyncIterator[None]:
        """Wait until no other program renews this login, because a refresh token that is sent twice counts as stolen.

        The lock is on the current file, and is released when the program that holds it ends.
        """
        try:
            file = self._path(server_url).open("rb")
        except OSError:  # there is nothing to renew
            yield
            return
        with file:
            for _ in range(_LOOKS):
                if try_lock(file.fileno()) is not False:
                    break
                await asyncio.sleep(_PAUSE)
            yield

    def _path(self, server_url: str) -> Path:
        return self._folder / f"{hashlib.sha256(server_url.encode()).hexdigest()[:32]}.json"
