"""The addresses of OAuth: which may be used, where metadata stands, and what names the same resource. No I/O."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import inet_aton
from urllib.parse import SplitResult, urlsplit

from enfold.sources.mcp.oauth.denial import denied

__all__ = ["Reach", "authorization_server_urls", "covers", "origin", "resource_metadata_urls"]

_PORTS = {"http": 80, "https": 443}


class Reach:
    """Which addresses a login may lead to: https anywhere; this machine only where the server itself is on it."""

    __slots__ = ("_allows_loopback", "_name")

    def __init__(self, server_url: str, name: str) -> None:
        self._allows_loopback = _is_loopback(urlsplit(server_url))
        self._name = name

    def check(self, url: str, what: str) -> str:
        """The same address, if it may be used."""
        parts = _split(url)
        is_plain = parts is not None and bool(parts.hostname) and parts.username is None and not parts.fragment
        if parts is not None and is_plain and self._allows(parts):
            return url
        raise denied(f"{self._name} names an address for its login that is not used: {what} must be an https URL")

    def _allows(self, parts: SplitResult) -> bool:
        # A server elsewhere must not be able to have us ask the programs on this machine.
        is_local = _is_loopback(parts)
        return self._allows_loopback if is_local else parts.scheme == "https"


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def resource_metadata_urls(server_url: str, named: str) -> list[str]:
    """Where the metadata of a server may stand: where it says, at its path, at its root."""
    root = f"{origin(server_url)}/.well-known/oauth-protected-resource"
    path = urlsplit(server_url).path.rstrip("/")
    found = [named, f"{root}{path}", root]
    return list(dict.fromkeys(url for url in found if url))


def authorization_server_urls(issuer: str) -> list[str]:
    """Where the metadata of an issuer may stand, in the order of the specification."""
    root = origin(issuer)
    path = urlsplit(issuer).path.rstrip("/")
    found = [
        f"{root}/.well-known/oauth-authorization-server{path}",
        f"{root}/.well-known/openid-configuration{path}",
        f"{root}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(found))


def covers(resource: str, server_url: str) -> bool:
    """Whether a resource is the server, or something the server's path lies below."""
    whole, part = _split(resource), _split(server_url)
    if (
        whole is None
        or part is None
        or _place(whole) != _place(part)
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
    return parts if is_visible and parts.scheme in _PORTS else None


def _place(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS[parts.scheme]


def _is_loopback(parts: SplitResult) -> bool:
    """Whether a host is this machine, by any name or number that leads here."""
    host = (parts.hostname or "").removesuffix(".")
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is written as; systems also take old spellings, such as 127.1 and 0x7f000001."""
    try:
        found = ip_address(host)
    except ValueError:
        try:
            return IPv4Address(inet_aton(host))
        except (OSError, ValueError):
            return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
