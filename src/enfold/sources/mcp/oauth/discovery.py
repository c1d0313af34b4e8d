"""Discovery of the authorization server for an MCP server: challenges, metadata, and the addresses a login may use."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from enfold.auth.token_endpoint import TokenAnswer, authorization_server_urls, decoded, exchange, post, post_form
from enfold.errors import CallError
from enfold.http_client import Request, Response, WebError, open_client
from enfold.http_client.client import follow
from enfold.http_client.urls import (
    PORTS,
    Endpoint,
    Network,
    network_of,
    place_of,
    same_place,
    split_url,
    written_address,
)

T = TypeVar("T")

REDIRECTS: Final = 3
PKCE: Final = "S256"
MAX_SERVERS: Final = 5  # that are asked, however many the resource names
SECONDS: Final = 60.0  # for all of them together

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  # the token of a grammar
_PARAMETER: Final = re.compile(rf'\s*({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))\s*(?:,|$)')
_SCHEME: Final = re.compile(rf"[\s,]*({_TOKEN})(?:\s+([A-Za-z0-9._~+/-]+=*)\s*(?=,|$)|(?=\s|,|$))")
_REACHED_FROM: Final[Mapping[Network, frozenset[Network]]] = {
    "public": frozenset({"public"}),
    "private": frozenset({"public", "private"}),
    "loopback": frozenset({"public", "private", "loopback"}),
    "link-local": frozenset({"public", "private", "link-local"}),
}


def denied(sentence: str) -> CallError:
    """ACCESS_DENIED with a short text without control characters: parts of it come from other servers."""
    visible = "".join(letter if letter.isprintable() else " " for letter in sentence)
    return CallError("ACCESS_DENIED", " ".join(visible.split())[:500], {"reason": "login"})


# --- challenges -----------------------------------------------------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True):
    """One way to log in, as a server names it in `WWW-Authenticate`."""

    scheme: str = ""
    parameters: dict[str, str] = {}

    @property
    def scopes(self) -> tuple[str, ...]:
        return tuple(self.parameters.get("scope", "").split())

    @property
    def metadata_url(self) -> str:
        return self.parameters.get("resource_metadata", "")

    @property
    def error(self) -> str:
        return self.parameters.get("error", "")

    @property
    def wants_proof(self) -> bool:
        return self.scheme == "dpop"

    @property
    def wants_more_scopes(self) -> bool:
        return self.error == "insufficient_scope"


def token_challenge(headers: Iterable[str], *, prefers_proof: bool = False) -> Challenge:
    """The challenge that an access token answers, the simpler one first; an empty one where the server names none."""
    found = {challenge.scheme: challenge for header in headers for challenge in read_challenges(header)}
    schemes = ("dpop", "bearer") if prefers_proof else ("bearer", "dpop")
    return next((found[scheme] for scheme in schemes if scheme in found), Challenge())


def read_challenges(header: str) -> Iterator[Challenge]:
    """The challenges of one header, which may be several; it ends where the text stops making sense."""
    place = 0
    while (scheme := _SCHEME.match(header, place)) is not None:
        parameters, place = _read_parameters(header, scheme.end())
        yield Challenge(scheme[1].lower(), dict(parameters))


def _read_parameters(header: str, place: int) -> tuple[Mapping[str, str], int]:
    parameters: dict[str, str] = {}
    while (found := _PARAMETER.match(header, place)) is not None:
        value = found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2])
        parameters.setdefault(found[1].lower(), value)
        place = found.end()
    return parameters, place


# --- addresses ------------------------------------------------------------------------------------------------------


class AddressPolicy:
    """Which addresses a login may lead to: https, on networks that the server itself is on, or public ones.

    A name is judged when it is connected to, by the address it leads to then. What the user named may lead anywhere.
    """

    __slots__ = ("_home", "_name", "_network", "_trusted")

    def __init__(self, server_url: str, name: str) -> None:
        self._name = name
        self._network: Network = _written_network(server_url) or "public"
        self._home = place_of(server_url)
        self._trusted = {self._home} - {None}

    def trust(self, url: str) -> None:
        """Allow another server that the user has named."""
        self._trusted |= {place_of(url)} - {None}

    def learn(self, url: str, peer: str) -> None:
        """Learn the network of the server from the address it answered from."""
        if peer and place_of(url) == self._home:
            self._network = network_of(peer)

    def allows(self, endpoint: Endpoint, address: str) -> bool:
        """Whether an address may be connected to, which is asked at the moment it is."""
        is_trusted = (endpoint.scheme, endpoint.host, endpoint.port) in self._trusted
        return is_trusted or network_of(address) in _REACHED_FROM[self._network]

    def check(self, url: str, what: str) -> None:
        """Raise where a login may not lead to an address, as far as its text tells."""
        parts = _split(url)
        is_plain = parts is not None and bool(parts.hostname) and parts.username is None and not parts.fragment
        if not (is_plain and place_of(url) is not None and self._allows_written(url)):
            raise denied(
                f"The login of {self._name} was refused: the URL of {what} must use https, "
                "and may only be in a private network if the server is in it, too"
            )

    def _allows_written(self, url: str) -> bool:
        network = _written_network(url)
        if place_of(url) not in self._trusted and network not in (None, *_REACHED_FROM[self._network]):
            return False
        # Only connections on this machine cannot be intercepted.
        return url.lower().startswith("https:") or network == "loopback"


def resource_metadata_urls(server_url: str, named: str) -> list[str]:
    """The possible URLs of a server's metadata: as it says, at its path, at its root."""
    root = f"{split_url(server_url)[0]}/.well-known/oauth-protected-resource"
    path = urlsplit(server_url).path.rstrip("/")
    found = [named, f"{root}{path}", root]
    return list(dict.fromkeys(url for url in found if url))


def covers(resource: str, server_url: str) -> bool:
    """Whether a resource is the server, or something the server's path lies below."""
    whole, part = _split(resource), _split(server_url)
    if (
        whole is None
        or part is None
        or place_of(resource) != place_of(server_url)
        or whole.fragment
        or whole.query not in ("", part.query)
    ):
        return False
    above = whole.path.rstrip("/")
    return part.path == whole.path or f"{part.path}/".startswith(f"{above}/")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises where it is no number
    except ValueError:
        return None
    # An address is shown to people, on terminals too: what cannot be seen has no place in it.
    is_visible = url.isprintable() and " " not in url
    return parts if is_visible and parts.scheme in PORTS else None


def _written_network(url: str) -> Network | None:
    """The network that a host is on, as far as it is written: by a number, or by the name of this machine."""
    place = place_of(url)
    address = None if place is None else written_address(place[1])
    return None if address is None else network_of(address)


# --- requests -------------------------------------------------------------------------------------------------------


class AuthorityClient:
    """Our client for authorization servers, for the length of one login.

    It is not the user's own client: what that one sends along is for the MCP server alone.
    """

    def __init__(self, policy: AddressPolicy) -> None:
        self.policy = policy
        self._client = open_client(allows=policy.allows)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def find_first(self, urls: Iterable[str], type: type[T]) -> T | None:
        """The first document that is at one of several addresses."""
        for url in urls:
            found = await self.find(url, type)
            if found is not None:
                return found
        return None

    async def find(self, url: str, type: type[T]) -> T | None:
        """The document at an address; None where there is none of its kind."""
        self.policy.check(url, "its metadata")

        async def at_the_end(request: Request) -> Response:
            return await follow(self._send, request, lambda moved, _: _is_same_server(url, moved), REDIRECTS)

        try:
            status, _, body = await exchange(at_the_end, "GET", url, {"accept": "application/json"})
        except WebError as error:
            if error.kind == "redirect":
                return None
            raise _failure(url, error) from None
        return decoded(body, type) if status == 200 else None

    async def post_json(self, url: str, document: Mapping[str, Any], type: type[T]) -> T:
        headers = {"content-type": "application/json", "accept": "application/json"}
        try:
            return await post(self._send, url, headers, msgspec.json.encode(document), type)
        except WebError as error:
            raise _failure(url, error) from None

    async def post_form(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str], secret: str = ""
    ) -> TokenAnswer:
        """The answer to a form; GrantRefusedError where the server says no, without our secrets in its words."""
        try:
            return await post_form(self._send, url, form, headers, secret)
        except WebError as error:
            raise _failure(url, error) from None

    async def _send(self, request: Request) -> Response:
        response = await self._client.send(request)
        self.policy.learn(request.url, response.peer)
        return response


def _is_same_server(url: str, moved: str) -> bool:
    """Whether a redirect stays on its server; one that does not is no answer."""
    if not same_place(url, moved):
        raise WebError("redirect", "It redirects to another server")
    return True


def _failure(url: str, error: WebError) -> CallError:
    host = urlsplit(url).netloc
    if error.kind == "too_large":
        return CallError("PAYLOAD_TOO_LARGE", f"{host} sent too much data during the login: {error.sentence}")
    if error.kind == "refused":
        return CallError("ACCESS_DENIED", f"The login was stopped: {error.sentence}", {"reason": "login"})
    return CallError("UNAVAILABLE", f"{host} cannot be reached for the login: {error.sentence}")


# --- metadata -------------------------------------------------------------------------------------------------------


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
        raise CallError(
            "UNAVAILABLE", f"{_host(server_url)} did not name its authorization server within the time limit"
        ) from None


async def _find_place(client: AuthorityClient, server_url: str, challenge: Challenge, issuer: str) -> TokenPlace:
    urls = resource_metadata_urls(server_url, challenge.metadata_url)
    resource = await client.find_first(urls, ProtectedResource)
    if resource is None:
        return await _find_older(client, server_url)
    if not resource.authorization_servers:
        advice = "ask its operator for one, and pass it as credentials"
        raise denied(f"{_host(server_url)} does not name its authorization server: {advice}")
    if not covers(resource.resource, server_url):
        raise denied(f"{_host(server_url)} declares tokens for a different server, {resource.resource}")
    server = await _find_server(client, server_url, resource, issuer)
    needs_proof = challenge.wants_proof or bool(resource.dpop_bound_access_tokens_required)
    return TokenPlace(resource.resource, resource.scopes_supported or (), server, needs_proof=needs_proof)


async def _find_server(
    client: AuthorityClient, server_url: str, resource: ProtectedResource, issuer: str
) -> AuthorizationServer:
    """The first authorization server of the list that can be used; with a named issuer, only that one."""
    there = resource.authorization_servers
    named = [each for each in there if issuer in ("", each)]
    if not named:
        raise denied(
            f"{_host(server_url)} takes tokens of {', '.join(there)}, but the client is registered at {issuer}: register it there"
        )
    for each in named[:MAX_SERVERS]:
        client.policy.check(each, "the authorization server")
        found = await _find_metadata(client, each, (each,))
        if found is not None:
            return found
    raise denied(f"{named[0]} has no authorization server metadata")


async def _find_metadata(client: AuthorityClient, issuer: str, accepted: tuple[str, ...]) -> AuthorizationServer | None:
    found = await client.find_first(authorization_server_urls(issuer), AuthorizationServer)
    if found is None:
        return None
    if found.issuer not in accepted:
        raise denied(f"The metadata of {issuer} is that of another issuer, {found.issuer}: it was refused")
    client.policy.check(found.token_endpoint, "the token endpoint")
    for url in (found.authorization_endpoint, found.registration_endpoint):
        if url:
            client.policy.check(url, "the login page")
    return found


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
