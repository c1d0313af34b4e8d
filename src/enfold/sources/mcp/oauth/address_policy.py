"""The addresses of OAuth: which may be used, where metadata stands, and what names the same resource. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.web.urls import PORTS, Endpoint, Network, network_of, place_of, split_url, written_address

_REACHED_FROM: Final[Mapping[Network, frozenset[Network]]] = {
    "public": frozenset({"public"}),
    "private": frozenset({"public", "private"}),
    "loopback": frozenset({"public", "private", "loopback"}),
    "link-local": frozenset({"public", "private", "link-local"}),
}


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
                f"{self._name} names an address for its login that is not used: {what} must be an https URL, "
                "and not of a network that the server itself is not on"
            )

    def _allows_written(self, url: str) -> bool:
        network = _written_network(url)
        if place_of(url) not in self._trusted and network not in (None, *_REACHED_FROM[self._network]):
            return False
        # Only to programs on this machine nobody in between can listen.
        return url.lower().startswith("https:") or network == "loopback"


def resource_metadata_urls(server_url: str, named: str) -> list[str]:
    """Where the metadata of a server may stand: where it says, at its path, at its root."""
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
