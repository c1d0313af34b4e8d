"""One login from its challenge to its tokens: find who gives them, say who we are, and ask for no more than is needed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from enfold.sources.mcp.oauth.challenge import Challenge
from enfold.sources.mcp.oauth.clients import find_client, known_client
from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.mcp.oauth.grants import JWT_BEARER, exchange_identity, request_tokens
from enfold.sources.mcp.oauth.jwt import base64url
from enfold.sources.mcp.oauth.login_reach import LoginReach
from enfold.sources.mcp.oauth.login_settings import AssertionLogin, Auth, EnterpriseLogin, UserLogin
from enfold.sources.mcp.oauth.login_store import LoginTokens, RegisteredClient, Saved
from enfold.sources.mcp.oauth.metadata import AuthorizationServer, TokenPlace, find_place
from enfold.sources.mcp.oauth.receiver import Receiver, open_receiver
from enfold.sources.mcp.oauth.wire import LoginConversation, open_wire
from enfold.sources.web.supplied import current
from enfold.sources.web.token_endpoint import GrantRefusedError

Tried: TypeAlias = Literal["nothing", "renewal", "login"]


async def log_in(
    auth: Auth, server_url: str, name: str, challenge: Challenge, saved: Saved, tried: Tried, peer: str = ""
) -> tuple[Saved, Tried]:
    """New tokens for a server that has refused us, and by what they came.

    `tried` is by what the token came that it has just refused: after a renewal only a full login can help, and after
    that nothing can, unless other tokens are taken now. More scopes always need a full login. `peer` is the IP address
    that the refusal came from, where it is known.
    """
    reach = _reach(auth, server_url, name)
    reach.learn(server_url, peer)
    reach.check(server_url, "the server itself")
    async with open_wire(reach) as wire:
        place = await find_place(wire, reach, server_url, challenge, auth.issuer)
        if tried == "login" and place.server.issuer == saved.issuer and not challenge.wants_more_scopes:
            raise denied(f"{name} does not accept the token that {saved.issuer} gave for it")
        saved = _bound(auth, place, saved, name)
        if tried == "nothing" and not challenge.wants_more_scopes:
            saved = await _renewed(wire, auth, place, saved)
            if saved.tokens is not None:
                return saved, "renewal"
        scopes = _scopes(auth, place, challenge, saved)
        client, tokens = await _granted(wire, auth, place, saved, scopes, name)
    return Saved(place.server.issuer, challenge.metadata_url, client, tokens, scopes), "login"


async def refresh(auth: Auth, server_url: str, name: str, saved: Saved) -> Saved | None:
    """The same login with a new access token; None where that cannot be had without asking a user."""
    if isinstance(auth, UserLogin) and (saved.tokens is None or not saved.tokens.refresh):
        return None
    reach = _reach(auth, server_url, name)
    async with open_wire(reach) as wire:
        challenge = Challenge(parameters={"resource_metadata": saved.metadata_url})
        place = await find_place(wire, reach, server_url, challenge, auth.issuer)
        if place.server.issuer != saved.issuer:
            return None
        renewed = await _renewed(wire, auth, place, saved)
        if renewed.tokens is not None:
            return renewed
        if isinstance(auth, UserLogin):
            return None
        client, tokens = await _granted(wire, auth, place, saved, saved.scopes, name)
        return msgspec.structs.replace(saved, client=client, tokens=tokens)


def _reach(auth: Auth, server_url: str, name: str) -> LoginReach:
    """Where a login may lead; the authorities that the user has named are theirs to choose."""
    reach = LoginReach(server_url, name)
    reach.trust(auth.issuer)
    if isinstance(auth, EnterpriseLogin):
        reach.trust(auth.provider_token_url)
    return reach


def _bound(auth: Auth, place: TokenPlace, saved: Saved, name: str) -> Saved:
    """The saved login, if it belongs to this authorization server; else an empty one."""
    if saved.issuer in ("", place.server.issuer):
        return saved
    if auth.client_id and not auth.issuer:
        # What one server knows about us is no business of another, and a user's own client id is of no use there.
        raise denied(
            f"{name} has moved from {saved.issuer} to {place.server.issuer}: register a client there, "
            "and give its client_id together with that issuer"
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


async def _renewed(wire: LoginConversation, auth: Auth, place: TokenPlace, saved: Saved) -> Saved:
    """The saved login with refreshed tokens; without tokens where a refresh is not possible."""
    ended = msgspec.structs.replace(saved, tokens=None)
    client = known_client(auth, place.server) or saved.client
    if client is None or saved.tokens is None or not saved.tokens.refresh:
        return ended
    grant = {"grant_type": "refresh_token", "refresh_token": saved.tokens.refresh}
    try:
        tokens = await request_tokens(wire, auth, place, client, grant, bound_to=saved.tokens.key)
    except GrantRefusedError as refused:
        # A client that is known no more is registered anew; else only the tokens have ended, or were used elsewhere.
        return msgspec.structs.replace(ended, client=None) if refused.error == "invalid_client" else ended
    return msgspec.structs.replace(saved, tokens=tokens)


async def _granted(
    wire: LoginConversation, auth: Auth, place: TokenPlace, saved: Saved, scopes: tuple[str, ...], name: str
) -> tuple[RegisteredClient, LoginTokens]:
    """A full login, in the way the user has chosen."""
    try:
        if isinstance(auth, UserLogin):
            return await _ask_user(wire, auth, place, saved, scopes, name)
        return await _vouch(wire, auth, place, scopes)
    except GrantRefusedError as refused:
        raise denied(f"{name} cannot be logged in to: {refused}") from None


async def _vouch(
    wire: LoginConversation, auth: Auth, place: TokenPlace, scopes: tuple[str, ...]
) -> tuple[RegisteredClient, LoginTokens]:
    """A login without a user: by our own secret or key, or by a statement of another authority."""
    client = known_client(auth, place.server) or RegisteredClient("")
    if isinstance(auth, AssertionLogin):
        grant = {"grant_type": JWT_BEARER, "assertion": await current(auth.assertion)}
    elif isinstance(auth, EnterpriseLogin):
        grant = {"grant_type": JWT_BEARER, "assertion": await exchange_identity(wire, auth, place, scopes)}
    else:
        grant = {"grant_type": "client_credentials"}
    return client, await request_tokens(wire, auth, place, client, grant, scopes)


# --- a user -------------------------------------------------------------------------------------------------------


async def _ask_user(
    wire: LoginConversation, auth: UserLogin, place: TokenPlace, saved: Saved, scopes: tuple[str, ...], name: str
) -> tuple[RegisteredClient, LoginTokens]:
    if auth.open_url is None:
        raise denied(
            f"{name} asks for a login, and there is nobody here to ask: give auth=UserLogin(open_url=…), "
            "or log in once with the enfold command"
        )
    async with open_receiver(auth.redirect_uri, auth.redirect_port, _port(saved)) as receiver:
        client = await find_client(wire, auth, place, saved, receiver.redirect_uri, scopes)
        question = _consent_question(place, client.id, receiver.redirect_uri, scopes)
        receiver.state = question.state
        code = await _consent(auth, question, receiver, name)
        grant = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": question.redirect_uri,
            "code_verifier": question.verifier,
        }
        return client, await request_tokens(wire, auth, place, client, grant)


async def _consent(auth: UserLogin, question: _ConsentQuestion, receiver: Receiver, name: str) -> str:
    try:
        async with asyncio.timeout(auth.wait):
            opening = auth.open_url(question.url) if auth.open_url is not None else None
            if isinstance(opening, Awaitable):
                await opening
            return _read_answer(question, await receiver.answer())
    except TimeoutError:
        raise denied(f"Nobody logged in to {name} within {auth.wait:g} seconds") from None


def _port(saved: Saved) -> int:
    """The port that a registered client has to come back to."""
    return urlsplit(saved.client.redirect_uri).port or 0 if saved.client is not None else 0


class _ConsentQuestion(msgspec.Struct, frozen=True):
    """What an authorization request asked for, kept until the user's browser brings the answer."""

    url: str
    state: str
    verifier: str
    server: AuthorizationServer
    redirect_uri: str

    def __repr__(self) -> str:
        return f"ConsentQuestion({self.server.issuer!r})"


def _consent_question(
    place: TokenPlace, client_id: str, redirect_uri: str, scopes: tuple[str, ...]
) -> _ConsentQuestion:
    """The address that a user is to be taken to."""
    if not place.can_prove_code:
        raise denied(f"{place.server.issuer} does not say that it protects its codes (PKCE with S256): it is not used")
    if not place.server.authorization_endpoint:
        raise denied(f"{place.server.issuer} has no page for a user to log in")
    state, verifier = token_urlsafe(32), token_urlsafe(48)
    fields = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "code_challenge": base64url(hashlib.sha256(verifier.encode()).digest()).decode(),
        "code_challenge_method": "S256",
        "state": state,
        "resource": place.resource,
    }
    if scopes:
        fields["scope"] = " ".join(scopes)
    if "offline_access" in scopes:
        fields["prompt"] = "consent"  # without it OpenID providers pass over that scope
    page = place.server.authorization_endpoint
    url = f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(fields)}"
    return _ConsentQuestion(url, state, verifier, place.server, redirect_uri)


def _read_answer(question: _ConsentQuestion, query: str) -> str:
    """The code an answer brings; one that is not surely the answer to our question is not even quoted."""
    pairs = parse_qsl(query, keep_blank_values=True)
    answer = dict(pairs)
    if len(answer) < len(pairs):
        raise denied("The answer to the login says something twice: it was thrown away")
    if not compare_digest(answer.get("state", "").encode(), question.state.encode()):
        raise denied("The answer to the login does not belong to our question (state): it was thrown away")
    _check_issuer(question.server, answer.get("iss"))
    if "error" in answer:
        raise denied(f"{question.server.issuer} refuses: {answer.get('error_description') or answer['error']}")
    if not answer.get("code"):
        raise denied(f"{question.server.issuer} answered the login without a code")
    return answer["code"]


def _check_issuer(server: AuthorizationServer, issuer: str | None) -> None:
    """Who answered must be who was asked, to the letter; one that promised to say it must say it."""
    is_missing = issuer is None and server.authorization_response_iss_parameter_supported
    if is_missing or issuer not in (None, server.issuer):
        raise denied(
            "The answer to the login came from another authorization server than was asked: it was thrown away"
        )
