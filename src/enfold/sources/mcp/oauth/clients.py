"""Who we are to an authorization server: known to it beforehand, by a document, or registered now."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.mcp.oauth.login_settings import Auth, UserLogin
from enfold.sources.mcp.oauth.login_store import RegisteredClient, Saved
from enfold.sources.mcp.oauth.metadata import AuthorizationServer, TokenPlace
from enfold.sources.mcp.oauth.wire import LoginConversation
from enfold.sources.web.token_endpoint import GrantRefusedError

# Without a secret there is nothing to lose; and servers differ less in how they read a form than a header.
_PREFERRED = ("none", "client_secret_post", "client_secret_basic")


def known_client(auth: Auth, server: AuthorizationServer) -> RegisteredClient | None:
    """The client that the user registered at the server; None where they gave no id."""
    if not auth.client_id:
        return None
    if auth.private_key:
        return RegisteredClient(auth.client_id, method="private_key_jwt")
    if not auth.client_secret:
        return RegisteredClient(auth.client_id)
    supported = server.token_endpoint_auth_methods_supported or ("client_secret_basic",)
    is_basic = "client_secret_basic" in supported or "client_secret_post" not in supported
    return RegisteredClient(
        auth.client_id, auth.client_secret, "client_secret_basic" if is_basic else "client_secret_post"
    )


async def find_client(
    wire: LoginConversation,
    auth: UserLogin,
    place: TokenPlace,
    saved: Saved,
    redirect_uri: str,
    scopes: tuple[str, ...],
) -> RegisteredClient:
    """The client for a user's login, in the order of the specification."""
    server = place.server
    known = known_client(auth, server)
    if known is not None:
        return known
    if auth.client_metadata_url and server.client_id_metadata_document_supported:
        return RegisteredClient(auth.client_metadata_url, method="private_key_jwt" if auth.private_key else "none")
    if saved.client is not None and saved.client.redirect_uri == redirect_uri and is_current(saved.client):
        return saved.client
    if server.registration_endpoint:
        return await _register(wire, auth, place, redirect_uri, scopes)
    raise denied(f"{server.issuer} registers no clients by itself: register one there, and give its client_id")


def is_current(client: RegisteredClient) -> bool:
    return not client.until or time.time() < client.until


class _Registered(msgspec.Struct, frozen=True):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


async def _register(
    wire: LoginConversation, auth: UserLogin, place: TokenPlace, redirect_uri: str, scopes: tuple[str, ...]
) -> RegisteredClient:
    server = place.server
    method = _method(server, is_documented=place.is_documented)
    document: dict[str, Any] = {
        "client_name": auth.client_name,
        "redirect_uris": [redirect_uri],
        "application_type": "native",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    wanted = dict.fromkeys((*scopes, *place.scopes))
    if wanted:  # some let a client ask only for what it was registered with
        document["scope"] = " ".join(wanted)
    try:
        made = await wire.post_json(server.registration_endpoint or "", document, _Registered)
    except GrantRefusedError as refused:
        advice = "register a client there, and give its client_id"
        raise denied(f"{refused.host} does not register us ({refused.reason}): {advice}") from None
    return _client(made, method, redirect_uri)


def _client(made: _Registered, asked: str, redirect_uri: str) -> RegisteredClient:
    method = made.token_endpoint_auth_method or asked
    secret = made.client_secret or ""
    if not secret:
        method = "none"
    until = made.client_secret_expires_at or 0.0
    return RegisteredClient(
        made.client_id, "" if method == "none" else secret, method, redirect_uri, until if secret else 0.0
    )


def _method(server: AuthorizationServer, *, is_documented: bool) -> str:
    supported = server.token_endpoint_auth_methods_supported or (("client_secret_basic",) if is_documented else ())
    return next((method for method in _PREFERRED if method in supported), "none")
