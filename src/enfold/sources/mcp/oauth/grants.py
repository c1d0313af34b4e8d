"""Requests to a token endpoint: what each grant sends, how we say who we are, and what an answer gives."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

import msgspec

from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.mcp.oauth.jwt import load_signer
from enfold.sources.mcp.oauth.login_reach import LoginReach
from enfold.sources.mcp.oauth.login_settings import Auth, EnterpriseLogin
from enfold.sources.mcp.oauth.login_store import LoginTokens, RegisteredClient
from enfold.sources.mcp.oauth.metadata import TokenPlace
from enfold.sources.mcp.oauth.proof import ProofKey, new_key
from enfold.sources.mcp.oauth.wire import LoginConversation
from enfold.sources.web.supplied import current
from enfold.sources.web.token_endpoint import GrantRefusedError, Method, TokenAnswer, identify

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPE: Final = "urn:ietf:params:oauth:token-type"
_STATEMENT: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LIFE: Final = 120  # seconds of a statement about ourselves

_METHODS: Final[tuple[Method, ...]] = ("client_secret_basic", "client_secret_post", "none")
_SENDABLE: Final = re.compile(r"[\x21-\x7e]+\Z")


async def request_tokens(
    wire: LoginConversation,
    auth: Auth,
    place: TokenPlace,
    client: RegisteredClient,
    grant: Mapping[str, str],
    scopes: tuple[str, ...] = (),
    *,
    bound_to: str = "",
) -> LoginTokens:
    """Ask for tokens for the resource; GrantRefusedError where the server says no."""
    form = {**grant, "resource": place.resource, **({"scope": " ".join(scopes)} if scopes else {})}
    key = _key(place, bound_to)
    try:
        answer = await _post(wire, auth, place, client, form, key)
    except GrantRefusedError as refused:
        has_other = "client_secret_post" in (place.server.token_endpoint_auth_methods_supported or ())
        if client.method != "client_secret_basic" or not has_other or not refused.may_be_unseen:
            raise
        other = msgspec.structs.replace(client, method="client_secret_post")
        answer = await _post(wire, auth, place, other, form, key)
    is_bound = key is not None and answer.token_type.lower() == "dpop"
    if not (is_bound or answer.token_type.lower() == "bearer") or not _SENDABLE.match(answer.access_token):
        raise denied(f"{place.server.issuer} gives a token of a kind that is not known here")
    refresh = answer.refresh_token or grant.get("refresh_token", "")
    return LoginTokens(answer.access_token, refresh, _end(answer.seconds), key.pem if is_bound and key else "")


def _key(place: TokenPlace, bound_to: str) -> ProofKey | None:
    """The key that the new tokens are to be bound to: that of the old ones, or a new one where they must be."""
    if bound_to:
        return ProofKey(bound_to)
    return new_key() if place.needs_proof else None


async def _post(
    wire: LoginConversation,
    auth: Auth,
    place: TokenPlace,
    client: RegisteredClient,
    form: Mapping[str, str],
    key: ProofKey | None,
) -> TokenAnswer:
    url = place.server.token_endpoint
    who, headers = _identify(auth, client, place.server.issuer)

    async def send(proof: dict[str, str]) -> TokenAnswer:
        return await wire.post_form(url, {**form, **who}, {**headers, **proof}, client.secret)

    if key is None:
        return await send({})
    try:
        return await send({"dpop": key.prove("POST", url)})
    except GrantRefusedError as refused:
        if refused.error != "use_dpop_nonce" or not refused.nonce:
            raise
        nonce = refused.nonce
    return await send({"dpop": key.prove("POST", url, nonce=nonce)})


async def exchange_identity(
    wire: LoginConversation, auth: EnterpriseLogin, place: TokenPlace, scopes: tuple[str, ...]
) -> str:
    """What the identity provider says about its user, for the authorization server to read."""
    form = {
        "grant_type": _EXCHANGE,
        "requested_token_type": f"{_TYPE}:id-jag",
        "audience": place.server.issuer,
        "resource": place.resource,
        "subject_token": await current(auth.identity_token),
        "subject_token_type": f"{_TYPE}:id_token",
        **({"scope": " ".join(scopes)} if scopes else {}),
        **({"client_id": auth.provider_client_id} if auth.provider_client_id else {}),
        **({"client_secret": auth.provider_client_secret} if auth.provider_client_secret else {}),
    }
    url = auth.provider_token_url
    LoginReach(url, "The identity provider").check(url, "its token endpoint")
    return (await wire.post_form(url, form, {})).access_token


def _identify(auth: Auth, client: RegisteredClient, issuer: str) -> tuple[dict[str, str], dict[str, str]]:
    """Who we are, as fields of the form and as headers."""
    if client.method == "private_key_jwt":
        return {"client_assertion_type": _STATEMENT, "client_assertion": _statement(auth, client, issuer)}, {}
    for method in _METHODS:
        if client.method == method:
            return identify(client.id, client.secret, method)
    raise denied(f"{issuer} wants to know its clients by {client.method}, which is not known here")


def _statement(auth: Auth, client: RegisteredClient, issuer: str) -> str:
    now = int(time.time())
    claims = {"iss": client.id, "sub": client.id, "aud": issuer, "iat": now, "exp": now + _LIFE, "jti": str(uuid4())}
    signer = load_signer(auth.private_key, auth.algorithm)
    return signer.sign(claims, kid=auth.key_id) if auth.key_id else signer.sign(claims)


def _end(seconds: float) -> float:
    """When a token ends, as a time; 0 where nobody knows."""
    return time.time() + seconds if seconds else 0.0
