"""One login from its challenge to its tokens: find who gives them, say who we are, and ask for no more than is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from enfold.sources.mcp.oauth.challenge import Challenge
from enfold.sources.mcp.oauth.clients import find_client, known_client
from enfold.sources.mcp.oauth.consent import ConsentQuestion, ask, read_answer
from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.mcp.oauth.grants import JWT_BEARER, exchange_identity, request_tokens, text_of
from enfold.sources.mcp.oauth.login_reach import LoginReach
from enfold.sources.mcp.oauth.login_settings import AssertionLogin, Auth, EnterpriseLogin, UserLogin
from enfold.sources.mcp.oauth.login_store import LoginTokens, RegisteredClient, Saved
from enfold.sources.mcp.oauth.metadata import TokenPlace, find_place
from enfold.sources.mcp.oauth.receiver import Receiver, open_receiver
from enfold.sources.mcp.oauth.wire import LoginConversation, open_wire
from enfold.sources.web.token_endpoint import GrantRefusedError

__all__ = ["Tried", "log_in", "refresh"]

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
        grant = {"grant_type": JWT_BEARER, "assertion": await text_of(auth.assertion)}
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
        question = ask(place, client.id, receiver.redirect_uri, scopes)
        receiver.state = question.state
        code = await _consent(auth, question, receiver, name)
        grant = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": question.redirect_uri,
            "code_verifier": question.verifier,
        }
        return client, await request_tokens(wire, auth, place, client, grant)


async def _consent(auth: UserLogin, question: ConsentQuestion, receiver: Receiver, name: str) -> str:
    try:
        async with asyncio.timeout(auth.wait):
            opening = auth.open_url(question.url) if auth.open_url is not None else None
            if isinstance(opening, Awaitable):
                await opening
            return read_answer(question, await receiver.answer())
    except TimeoutError:
        raise denied(f"Nobody logged in to {name} within {auth.wait:g} seconds") from None


def _port(saved: Saved) -> int:
    """The port that a registered client has to come back to."""
    return urlsplit(saved.client.redirect_uri).port or 0 if saved.client is not None else 0
