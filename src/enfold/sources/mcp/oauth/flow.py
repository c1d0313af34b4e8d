"""One login from the challenge to the tokens: discovery, client registration, and a request for the needed scopes only."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from secrets import token_urlsafe
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from enfold.auth.token_endpoint import GrantRefusedError
from enfold.sources.mcp.oauth.callback_page import CallbackPage, open_callback_page
from enfold.sources.mcp.oauth.discovery import (
    AddressPolicy,
    AuthorityClient,
    AuthorizationServer,
    Challenge,
    TokenPlace,
    denied,
    find_place,
)
from enfold.sources.mcp.oauth.grants import (
    JWT_BEARER,
    LoginAttempt,
    base64url,
    exchange_identity,
    find_client,
    known_client,
    request_tokens,
)
from enfold.sources.mcp.oauth.settings import (
    AssertionLogin,
    Auth,
    EnterpriseLogin,
    LoginTokens,
    RegisteredClient,
    Saved,
    UserLogin,
)
from enfold.sources.secrets import current

Tried: TypeAlias = Literal["nothing", "renewal", "login"]


async def log_in(
    auth: Auth, server_url: str, name: str, challenge: Challenge, saved: Saved, tried: Tried, peer: str = ""
) -> tuple[Saved, Tried]:
    """New tokens for a server that has refused us, and by what they came.

    `tried` is by what the token came that it has just refused: after a renewal only a full login can help, and after
    that nothing can, unless other tokens are taken now. More scopes always need a full login. `peer` is the IP address
    that the refusal came from, where it is known.
    """
    policy = _policy(auth, server_url, name)
    policy.learn(server_url, peer)
    policy.check(server_url, "the server itself")
    async with AuthorityClient(policy) as authority:
        place = await find_place(authority, server_url, challenge, auth.issuer)
        attempt = LoginAttempt(authority, auth, place, name)
        if tried == "login" and place.server.issuer == saved.issuer and not challenge.wants_more_scopes:
            raise denied(f"{name} does not accept the token that {saved.issuer} issued for it")
        saved = _of_same_issuer(attempt, saved)
        if tried == "nothing" and not challenge.wants_more_scopes:
            saved = await _refreshed(attempt, saved)
            if saved.tokens is not None:
                return saved, "renewal"
        scopes = _scopes(auth, place, challenge, saved)
        client, tokens = await _granted(attempt, saved, scopes)
    return Saved(place.server.issuer, challenge.metadata_url, client, tokens, scopes), "login"


async def refresh(auth: Auth, server_url: str, name: str, saved: Saved) -> Saved | None:
    """The same login with a new access token; None if that requires the user."""
    if isinstance(auth, UserLogin) and (saved.tokens is None or not saved.tokens.refresh):
        return None
    async with AuthorityClient(_policy(auth, server_url, name)) as authority:
        challenge = Challenge(parameters={"resource_metadata": saved.metadata_url})
        place = await find_place(authority, server_url, challenge, auth.issuer)
        if place.server.issuer != saved.issuer:
            return None
        attempt = LoginAttempt(authority, auth, place, name)
        refreshed = await _refreshed(attempt, saved)
        if refreshed.tokens is not None:
            return refreshed
        if isinstance(auth, UserLogin):
            return None
        client, tokens = await _granted(attempt, saved, saved.scopes)
        return msgspec.structs.replace(saved, client=client, tokens=tokens)


def _policy(auth: Auth, server_url: str, name: str) -> AddressPolicy:
    """Where a login may lead; the authorities that the user has named are theirs to choose."""
    policy = AddressPolicy(server_url, name)
    policy.trust(auth.issuer)
    if isinstance(auth, EnterpriseLogin):
        policy.trust(auth.provider_token_url)
    return policy


def _of_same_issuer(attempt: LoginAttempt, saved: Saved) -> Saved:
    """The saved login, if it belongs to this authorization server; else an empty one."""
    auth, issuer = attempt.auth, attempt.place.server.issuer
    if saved.issuer in ("", issuer):
        return saved
    if auth.client_id and not auth.issuer:
        # What one server knows about us is no business of another, and a user's own client id is of no use there.
        raise denied(
            f"{attempt.name} has moved from {saved.issuer} to {issuer}: register a client there, "
            "and pass its client_id together with that issuer"
        )
    return Saved()


def _scopes(auth: Auth, place: TokenPlace, challenge: Challenge, saved: Saved) -> tuple[str, ...]:
    """What to ask for: what the challenge names, else what the server offers; and never less than before."""
    wanted = (*auth.scopes, *challenge.scopes) or place.scopes
    scopes = dict.fromkeys((*saved.scopes, *wanted))
    may_stay = "offline_access" in (place.server.scopes_supported or ())
    if scopes and may_stay and isinstance(auth, UserLogin):
        scopes["offline_access"] = None
    return tuple(scopes)


async def _refreshed(attempt: LoginAttempt, saved: Saved) -> Saved:
    """The saved login with refreshed tokens; without tokens where a refresh is not possible."""
    ended = msgspec.structs.replace(saved, tokens=None)
    client = known_client(attempt.auth, attempt.place.server) or saved.client
    if client is None or saved.tokens is None or not saved.tokens.refresh:
        return ended
    grant = {"grant_type": "refresh_token", "refresh_token": saved.tokens.refresh}
    try:
        tokens = await request_tokens(attempt, client, grant, bound_to=saved.tokens.key)
    except GrantRefusedError as refused:
        # A client that is known no more is registered anew; else only the tokens have ended, or were used elsewhere.
        return msgspec.structs.replace(ended, client=None) if refused.error == "invalid_client" else ended
    return msgspec.structs.replace(saved, tokens=tokens)


async def _granted(
    attempt: LoginAttempt, saved: Saved, scopes: tuple[str, ...]
) -> tuple[RegisteredClient, LoginTokens]:
    """A full login, in the way the user has chosen."""
    try:
        if isinstance(attempt.auth, UserLogin):
            return await _ask_user(attempt, attempt.auth, saved, scopes)
        return await _log_in_alone(attempt, scopes)
    except GrantRefusedError as refused:
        raise denied(f"{attempt.name} cannot log you in: {refused}") from None


async def _log_in_alone(attempt: LoginAttempt, scopes: tuple[str, ...]) -> tuple[RegisteredClient, LoginTokens]:
    """A login without a user: by our own secret or key, or by a statement of another authority."""
    auth = attempt.auth
    client = known_client(auth, attempt.place.server) or RegisteredClient("")
    if isinstance(auth, AssertionLogin):
        grant = {"grant_type": JWT_BEARER, "assertion": await current(auth.assertion)}
    elif isinstance(auth, EnterpriseLogin):
        grant = {"grant_type": JWT_BEARER, "assertion": await exchange_identity(attempt, auth, scopes)}
    else:
        grant = {"grant_type": "client_credentials"}
    return client, await request_tokens(attempt, client, grant, scopes)


# --- a user -------------------------------------------------------------------------------------------------------


async def _ask_user(
    attempt: LoginAttempt, auth: UserLogin, saved: Saved, scopes: tuple[str, ...]
) -> tuple[RegisteredClient, LoginTokens]:
    if auth.open_url is None:
        raise denied(
            f"{attempt.name} requires a login: pass auth=UserLogin(open_url=…), or log in once with the enfold command"
        )
    # A registered client has to come back to the port it was registered with.
    port = urlsplit(saved.client.redirect_uri).port or 0 if saved.client is not None else 0
    async with open_callback_page(auth.redirect_uri, auth.redirect_port, port) as page:
        client = await find_client(attempt, auth, saved, page.redirect_uri, scopes)
        verifier, page.state = token_urlsafe(48), token_urlsafe(32)
        url = _consent_url(attempt.place, client.id, page, verifier, scopes)
        code = _read_answer(attempt.place.server, await _consent(auth, url, page, attempt.name))
        grant = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": page.redirect_uri,
            "code_verifier": verifier,
        }
        return client, await request_tokens(attempt, client, grant)


async def _consent(auth: UserLogin, url: str, page: CallbackPage, name: str) -> str:
    """Take the user to the login page, and return the query that their browser comes back with."""
    try:
        async with asyncio.timeout(auth.wait):
            opening = auth.open_url(url) if auth.open_url is not None else None
            if isinstance(opening, Awaitable):
                await opening
            return await page.answer()
    except TimeoutError:
        raise denied(f"The login to {name} was not completed within {auth.wait:g} seconds") from None


def _consent_url(place: TokenPlace, client_id: str, page: CallbackPage, verifier: str, scopes: tuple[str, ...]) -> str:
    """The address that a user is to be taken to."""
    if not place.can_prove_code:
        raise denied(f"{place.server.issuer} does not support PKCE with S256, which is required")
    if not place.server.authorization_endpoint:
        raise denied(f"{place.server.issuer} has no login page")
    fields = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": page.redirect_uri,
        "code_challenge": base64url(hashlib.sha256(verifier.encode()).digest()).decode(),
        "code_challenge_method": "S256",
        "state": page.state,
        "resource": place.resource,
    }
    if scopes:
        fields["scope"] = " ".join(scopes)
    if "offline_access" in scopes:
        fields["prompt"] = "consent"  # without it OpenID providers pass over that scope
    endpoint = place.server.authorization_endpoint
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(fields)}"


def _read_answer(server: AuthorizationServer, query: str) -> str:
    """The code an answer brings, whose state the page has checked; one that is not surely ours is not even quoted."""
    pairs = parse_qsl(query, keep_blank_values=True)
    answer = dict(pairs)
    if len(answer) < len(pairs):
        raise denied("The login response has a repeated parameter: it was refused")
    _check_issuer(server, answer.get("iss"))
    if "error" in answer:
        raise denied(f"{server.issuer} refuses: {answer.get('error_description') or answer['error']}")
    if not answer.get("code"):
        raise denied(f"{server.issuer} sent a login response without a code")
    return answer["code"]


def _check_issuer(server: AuthorizationServer, issuer: str | None) -> None:
    """Who answered must be who was asked, to the letter; one that promised to say it must say it."""
    is_missing = issuer is None and server.authorization_response_iss_parameter_supported
    if is_missing or issuer not in (None, server.issuer):
        raise denied("The login response came from another authorization server: it was refused")
