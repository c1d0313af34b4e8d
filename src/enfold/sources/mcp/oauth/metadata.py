"""What servers publish about their logins, found and checked: whose resource it is, and who gives tokens for it."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.mcp.oauth.address_policy import AddressPolicy, covers, resource_metadata_urls
from enfold.sources.mcp.oauth.authority_client import AuthorityClient
from enfold.sources.mcp.oauth.challenge import Challenge
from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.web.token_endpoint import authorization_server_urls
from enfold.sources.web.urls import split_url

PKCE: Final = "S256"
MAX_SERVERS: Final = 5  # that are asked, however many the resource names
SECONDS: Final = 60.0  # for all of them together


class ProtectedResource(msgspec.Struct, frozen=True):
    """The metadata of a protected resource."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None
    dpop_bound_access_tokens_required: bool | None = None


class AuthorizationServer(msgspec.Struct, frozen=True):
    """The metadata of an authorization server, of OAuth or of OpenID Connect."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class TokenPlace(msgspec.Struct, frozen=True):
    """Where to get a token, and for which resource."""

    resource: str
    scopes: tuple[str, ...]
    server: AuthorizationServer
    is_documented: bool = True  # an older server may have no metadata at all
    needs_proof: bool = False  # whether tokens must be bound to a key

    @property
    def can_prove_code(self) -> bool:
        """Whether the server supports PKCE, as far as it says so: without it a stolen code could be used."""
        return not self.is_documented or PKCE in (self.server.code_challenge_methods_supported or ())


async def find_place(client: AuthorityClient, server_url: str, challenge: Challenge, issuer: str) -> TokenPlace:
    """Who gives tokens for a server; `issuer` is the one the user named, if any."""
    try:
        async with asyncio.timeout(SECONDS):
            return await _find_place(client, server_url, challenge, issuer)
    except TimeoutError:
        raise CallError("UNAVAILABLE", f"{_host(server_url)} does not say in time who gives tokens for it") from None


async def _find_place(client: AuthorityClient, server_url: str, challenge: Challenge, issuer: str) -> TokenPlace:
    resource = await _find_resource(client, server_url, challenge)
    if resource is None:
        return await _find_older(client, server_url)
    if not resource.authorization_servers:
        advice = "ask whoever runs it for one, and give it as credentials"
        raise denied(f"{_host(server_url)} does not say who gives tokens for it: {advice}")
    if not covers(resource.resource, server_url):
        raise denied(f"{_host(server_url)} says that its tokens are for {resource.resource}, which is another server")
    server = await _find_server(client, server_url, resource, issuer)
    needs_proof = challenge.wants_proof or bool(resource.dpop_bound_access_tokens_required)
    return TokenPlace(resource.resource, resource.scopes_supported or (), server, needs_proof=needs_proof)


async def _find_resource(client: AuthorityClient, server_url: str, challenge: Challenge) -> ProtectedResource | None:
    for url in resource_metadata_urls(server_url, challenge.metadata_url):
        found = await client.find(url, ProtectedResource)
        if found is not None:
            return found
    return None


async def _find_server(
    client: AuthorityClient, server_url: str, resource: ProtectedResource, issuer: str
) -> AuthorizationServer:
    """The first authorization server of the list that can be used; with a named issuer, only that one."""
    there = resource.authorization_servers
    named = [each for each in there if issuer in ("", each)]
    if not named:
        raise denied(
            f"{_host(server_url)} takes tokens of {', '.join(there)}, and no more of {issuer}, where our client is known"
        )
    for each in named[:MAX_SERVERS]:
        client.policy.check(each, "the authorization server")
        found = await _find_metadata(client, each, (each,))
        if found is not None:
            return found
    raise denied(f"{named[0]} does not say how it gives tokens: it has no metadata")


async def _find_metadata(client: AuthorityClient, issuer: str, accepted: tuple[str, ...]) -> AuthorizationServer | None:
    for url in authorization_server_urls(issuer):
        found = await client.find(url, AuthorizationServer)
        if found is not None:
            if found.issuer not in accepted:
                raise denied(f"The metadata of {issuer} is that of another issuer, {found.issuer}: it is not used")
            _check_endpoints(client.policy, found)
            return found
    return None


def _check_endpoints(policy: AddressPolicy, server: AuthorizationServer) -> None:
    policy.check(server.token_endpoint, "the token endpoint")
    for url in (server.authorization_endpoint, server.registration_endpoint):
        if url:
            policy.check(url, "the login page")


async def _find_older(client: AuthorityClient, server_url: str) -> TokenPlace:
    """The way of the first revision with a login: a server without metadata of its own gives its tokens itself."""
    base = split_url(server_url)[0]
    found = await _find_metadata(client, base, (base, f"{base}/"))
    if found is not None:
        return TokenPlace(server_url, (), found)
    fixed = AuthorizationServer(base, f"{base}/token", f"{base}/authorize", f"{base}/register")
    return TokenPlace(server_url, (), fixed, is_documented=False)


def _host(url: str) -> str:
    return urlsplit(url).netloc
