"""Grants: requests tokens from an authorization server as a known or newly registered client.

Client assertions and DPoP proofs (RFC 9449) need the package `joserfc` (extra `auth`), loaded when first used.
"""

from __future__ import annotations

import hashlib
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from enfold.auth.issuers import algorithms_of
from enfold.auth.token_endpoint import GrantRefusedError, Method, TokenAnswer, identify
from enfold.errors import CallError, missing_package
from enfold.sources.mcp.oauth.discovery import AddressPolicy, AuthorityClient, AuthorizationServer, TokenPlace, denied
from enfold.sources.mcp.oauth.settings import Auth, EnterpriseLogin, LoginTokens, RegisteredClient, Saved, UserLogin
from enfold.sources.secrets import current

if TYPE_CHECKING:
    from joserfc.jwk import Key


JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPE: Final = "urn:ietf:params:oauth:token-type"
_STATEMENT: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LIFE: Final = 120  # seconds of a statement about ourselves

_METHODS: Final[tuple[Method, ...]] = ("client_secret_basic", "client_secret_post", "none")
# Without a secret there is nothing to lose; and servers differ less in how they read a form than a header.
_PREFERRED: Final = ("none", "client_secret_post", "client_secret_basic")
_SENDABLE: Final = re.compile(r"[\x21-\x7e]+\Z")


class LoginAttempt(msgspec.Struct, frozen=True):
    """What every step of one login needs: the authorization server, and the settings of the user."""

    authority: AuthorityClient
    auth: Auth
    place: TokenPlace
    name: str  # of the MCP server, for messages


# --- clients ------------------------------------------------------------------------------------------------------


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
    attempt: LoginAttempt, auth: UserLogin, saved: Saved, redirect_uri: str, scopes: tuple[str, ...]
) -> RegisteredClient:
    """The client for a user's login, in the order of the specification."""
    server = attempt.place.server
    known = known_client(auth, server)
    if known is not None:
        return known
    if auth.client_metadata_url and server.client_id_metadata_document_supported:
        return RegisteredClient(auth.client_metadata_url, method="private_key_jwt" if auth.private_key else "none")
    if saved.client is not None and saved.client.redirect_uri == redirect_uri and is_current(saved.client):
        return saved.client
    if server.registration_endpoint:
        return await _register(attempt, auth.client_name, redirect_uri, scopes)
    raise denied(
        f"{server.issuer} does not support client registration: register a client there, and pass its client_id"
    )


def is_current(client: RegisteredClient) -> bool:
    return not client.until or time.time() < client.until


class _Registered(msgspec.Struct, frozen=True):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


async def _register(
    attempt: LoginAttempt, client_name: str, redirect_uri: str, scopes: tuple[str, ...]
) -> RegisteredClient:
    place = attempt.place
    usual = ("client_secret_basic",) if place.is_documented else ()
    supported = place.server.token_endpoint_auth_methods_supported or usual
    method = next((method for method in _PREFERRED if method in supported), "none")
    document: dict[str, Any] = {
        "client_name": client_name,
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
        made = await attempt.authority.post_json(place.server.registration_endpoint or "", document, _Registered)
    except GrantRefusedError as refused:
        advice = "register a client there, and pass its client_id"
        raise denied(f"{refused.host} refused to register a client ({refused.reason}): {advice}") from None
    if not made.client_secret:
        return RegisteredClient(made.client_id, redirect_uri=redirect_uri)
    method = made.token_endpoint_auth_method or method
    secret = "" if method == "none" else made.client_secret
    return RegisteredClient(made.client_id, secret, method, redirect_uri, made.client_secret_expires_at or 0.0)


# --- grants -------------------------------------------------------------------------------------------------------


async def request_tokens(
    attempt: LoginAttempt,
    client: RegisteredClient,
    grant: Mapping[str, str],
    scopes: tuple[str, ...] = (),
    *,
    bound_to: str = "",
) -> LoginTokens:
    """Ask for tokens for the resource, bound to a key where one is given or must be; GrantRefusedError where that is refused."""
    place = attempt.place
    form = {**grant, "resource": place.resource, **({"scope": " ".join(scopes)} if scopes else {})}
    new = new_key() if place.needs_proof and not bound_to else None
    key = ProofKey(bound_to) if bound_to else new
    try:
        answer = await _post(attempt, client, form, key)
    except GrantRefusedError as refused:
        has_other = "client_secret_post" in (place.server.token_endpoint_auth_methods_supported or ())
        if client.method != "client_secret_basic" or not has_other or not refused.may_be_unseen:
            raise
        other = msgspec.structs.replace(client, method="client_secret_post")
        answer = await _post(attempt, other, form, key)
    is_bound = key is not None and answer.token_type.lower() == "dpop"
    if not (is_bound or answer.token_type.lower() == "bearer") or not _SENDABLE.match(answer.access_token):
        raise denied(f"{place.server.issuer} issued a token of an unsupported type")
    refresh = answer.refresh_token or grant.get("refresh_token", "")
    until = time.time() + answer.seconds if answer.seconds else 0.0  # 0 if unknown
    return LoginTokens(answer.access_token, refresh, until, key.pem if is_bound and key else "")


async def _post(
    attempt: LoginAttempt, client: RegisteredClient, form: Mapping[str, str], key: ProofKey | None
) -> TokenAnswer:
    server = attempt.place.server
    url = server.token_endpoint
    who, headers = _identify(attempt.auth, client, server.issuer)

    async def send(proof: dict[str, str]) -> TokenAnswer:
        return await attempt.authority.post_form(url, {**form, **who}, {**headers, **proof}, client.secret)

    if key is None:
        return await send({})
    try:
        return await send({"dpop": key.prove("POST", url)})
    except GrantRefusedError as refused:
        if refused.error != "use_dpop_nonce" or not refused.nonce:
            raise
        nonce = refused.nonce
    return await send({"dpop": key.prove("POST", url, nonce=nonce)})


async def exchange_identity(attempt: LoginAttempt, auth: EnterpriseLogin, scopes: tuple[str, ...]) -> str:
    """What the identity provider says about its user, for the authorization server to read."""
    place = attempt.place
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
    AddressPolicy(url, "The identity provider").check(url, "its token endpoint")
    return (await attempt.authority.post_form(url, form, {})).access_token


def _identify(auth: Auth, client: RegisteredClient, issuer: str) -> tuple[dict[str, str], dict[str, str]]:
    """Who we are, as fields of the form and as headers."""
    if client.method == "private_key_jwt":
        return {"client_assertion_type": _STATEMENT, "client_assertion": _statement(auth, client, issuer)}, {}
    for method in _METHODS:
        if client.method == method:
            return identify(client.id, client.secret, method)
    raise denied(f"{issuer} requires the client authentication method {client.method}, which is not supported")


def _statement(auth: Auth, client: RegisteredClient, issuer: str) -> str:
    now = int(time.time())
    claims = {"iss": client.id, "sub": client.id, "aud": issuer, "iat": now, "exp": now + _LIFE, "jti": str(uuid4())}
    signer = load_signer(auth.private_key, auth.algorithm)
    return signer.sign(claims, kid=auth.key_id) if auth.key_id else signer.sign(claims)


# --- signed tokens (JWT) --------------------------------------------------------------------------------------------


class KeySigner(msgspec.Struct, frozen=True):
    """A private key and the way it signs."""

    key: Any
    algorithm: str

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """The claims under a signature of the key."""
        from joserfc.jws import JWSRegistry

        named = {"alg": self.algorithm, "typ": "JWT", **header}
        text = b".".join(base64url(msgspec.json.encode(part)) for part in (named, claims))
        signature = JWSRegistry.algorithms[self.algorithm].sign(text, self.key)
        return b".".join((text, base64url(signature))).decode()


def base64url(value: bytes) -> bytes:
    return urlsafe_b64encode(value).rstrip(b"=")


def load_signer(pem: str, algorithm: str = "") -> KeySigner:
    """What signs with a private key (PEM); without an algorithm in the usual way of its kind."""
    key = _read_key(pem)
    possible = algorithms_of(key.as_dict(private=False))
    if not possible or algorithm not in ("", *possible):
        wanted = algorithm or "any algorithm"
        raise CallError("VALIDATION_ERROR", f"The private key of the login cannot sign with {wanted}")
    return KeySigner(key, algorithm or possible[0])


def _read_key(pem: str) -> Key:
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, OKPKey, RSAKey
    except ImportError:
        raise missing_package("A login with a private key needs joserfc", "auth") from None
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):  # whose words may hold parts of the key
            continue
        if key.is_private:
            return key
    raise CallError("VALIDATION_ERROR", "The private key of the login must be a PEM file without a password")


# --- proofs of possession -----------------------------------------------------------------------------------------


class ProofKey:
    """The key that the tokens of one login are bound to, stored with them."""

    def __init__(self, pem: str) -> None:
        self.pem = pem

    def prove(self, method: str, url: str, *, token: str = "", nonce: str = "") -> str:
        """A proof for one request, and for no other."""
        parts = urlsplit(url)
        claims: dict[str, Any] = {
            "jti": str(uuid4()),
            "htm": method,
            "htu": f"{parts.scheme}://{parts.netloc}{parts.path}",
            "iat": int(time.time()),
        }
        if token:
            claims["ath"] = base64url(hashlib.sha256(token.encode()).digest()).decode()
        if nonce:
            claims["nonce"] = nonce
        return self._signer.sign(claims, typ="dpop+jwt", jwk=self._signer.key.as_dict(private=False))

    @cached_property
    def _signer(self) -> KeySigner:
        return load_signer(self.pem)


def new_key() -> ProofKey:
    try:
        from joserfc.jwk import ECKey
    except ImportError:
        raise missing_package("Tokens that are bound to a key need joserfc", "auth") from None
    return ProofKey(ECKey.generate_key("P-256").as_pem(private=True).decode())
