"""The logins of a configuration: what a file says about them, and how the program that reads it reaches its user."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.sources.mcp.oauth import Auth
    from enfold.sources.mcp.oauth.login_settings import OpenURL


class Logins(msgspec.Struct, frozen=True):
    """How a login page is opened for a user, and the folder that keeps tokens; without either, that is not done."""

    open_url: OpenURL | None = None
    folder: str | None = None
    patience: float = 0.0  # seconds that a start waits for a user, if any source has a login


def auth_of(table: Mapping[str, Any] | None, logins: Logins, place: str) -> Auth | None:
    """The login that a table describes; its files are below the folder `place`."""
    if table is None:
        return None
    from enfold.sources.mcp.oauth import AssertionLogin, ClientCredentials, FileStore, UserLogin

    scopes = table.get("scopes", ())
    common = {
        name: table[name] for name in ("client_id", "client_secret", "key_id", "algorithm", "issuer") if name in table
    }
    common["scopes"] = tuple(scopes.split() if isinstance(scopes, str) else scopes)
    common["store"] = None if logins.folder is None else FileStore(logins.folder)
    if "private_key_file" in table:
        common["private_key"] = _read(place, table["private_key_file"])
    grant = table.get("grant", "authorization_code")
    if grant == "client_credentials":
        return ClientCredentials(**common)
    if grant == "jwt_bearer":
        # Such a statement lives for minutes, and whoever gave it writes the next one into the same file.
        return AssertionLogin(**common, assertion=partial(_read, place, table.get("assertion_file", "")))
    page = {name: table[name] for name in ("client_metadata_url", "redirect_port", "redirect_uri") if name in table}
    return UserLogin(**common, **page, open_url=logins.open_url)


def _read(folder: str, name: str) -> str:
    try:
        return (Path(folder) / name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise CallError(
            "VALIDATION_ERROR", f"{name or 'assertion_file'}, which the login needs, cannot be read"
        ) from None
