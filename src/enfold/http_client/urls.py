"""URLs, endpoints and IP address classes. No I/O."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import inet_aton
from typing import Final, Literal, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

import msgspec

from enfold.http_client.errors import WebError

Network: TypeAlias = Literal["public", "private", "loopback", "link-local"]
Place: TypeAlias = tuple[str, str, int]

PORTS: Final = {"http": 80, "https": 443}

_HOST: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=-]+\Z")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))
_UNSENDABLE: Final = re.compile(r"[\x00-\x20\x7f]")


class Endpoint(msgspec.Struct, frozen=True):
    """The address to connect to and the value of `Host` for an origin."""

    scheme: str
    host: str  # ASCII, in lower case, an IPv6 address without brackets
    port: int
    authority: str  # the host, with the port unless it is the default
    credentials: str = ""  # `user:password` of the URL, decoded

    @property
    def with_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authorization(self) -> str:
        """The `Authorization` value for the credentials of the URL; empty without them."""
        return basic_authorization(self.credentials) if self.credentials else ""


def basic_authorization(user_and_password: str) -> str:
    """Return the value of `Authorization` for `user:password`."""
    return f"Basic {b64encode(user_and_password.encode()).decode()}"


@lru_cache(maxsize=1024)
def read_endpoint(origin: str) -> Endpoint:
    """Return the endpoint of `scheme://authority`; raise WebError if it is not an http(s) URL."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise WebError("unsendable", f"Invalid URL: {error}") from None
    if parts.scheme not in PORTS or not host:
        raise WebError("unsendable", "Not an http(s) URL")
    user = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    name, usual = _ascii_host(host), PORTS[parts.scheme]
    written = f"[{name}]" if ":" in name else name
    authority = written if port in (None, usual) else f"{written}:{port}"
    # Port 0 is invalid and would be treated as missing.
    return Endpoint(parts.scheme, name, usual if port is None else port, authority, user)


@lru_cache(maxsize=256)
def split_url(url: str) -> tuple[str, str]:
    """Split a URL into origin and request target; invalid characters are escaped."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise WebError("unsendable", f"Invalid URL: {error}") from None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", target if is_sendable(target) else quote(target, safe=_PRINTABLE)


def is_sendable(target: str) -> bool:
    return target.isascii() and _UNSENDABLE.search(target) is None


def joined(url: str, location: str) -> str:
    """Return the absolute URL of a redirect; a malformed one is returned unchanged and rejected later."""
    try:
        return urljoin(url, location.partition("#")[0])
    except ValueError:
        return location


def place_of(url: str) -> Place | None:
    """Return the normalized scheme, host and port of an http(s) URL; None for other URLs."""
    try:
        parts = urlsplit(url)
        found = read_endpoint(f"{parts.scheme}://{parts.netloc}")
    except (ValueError, WebError):
        return None
    return found.scheme, found.host, found.port


def display_url(url: str) -> str:
    """Return a URL for display, without credentials and query, which may be secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "An invalid URL"
    written = f"[{host}]" if ":" in host else host
    return SplitResult(parts.scheme, f"{written}:{port}" if port else written, parts.path, "", "").geturl()


def same_place(one: str, other: str) -> bool:
    """Whether two URLs have the same origin."""
    place = place_of(one)
    return place is not None and place == place_of(other)


def _ascii_host(host: str) -> str:
    if host.isascii():
        if ":" not in host and not _HOST.match(host):
            raise WebError("unsendable", "The host name has invalid characters")
        return host.lower()
    try:
        import idna

        found = idna.encode(host, uts46=True).decode()
    except (ImportError, ValueError):  # ValueError includes IDNA errors
        raise WebError("unsendable", "The host name is invalid") from None
    return found.lower()


# --- networks -----------------------------------------------------------------------------------------------------


def network_of(address: str) -> Network:
    """Return the class of an IP address; reserved addresses count as link-local."""
    found = _plain(ip_address(address.partition("%")[0]))
    if found.is_loopback or found.is_unspecified:
        return "loopback"
    if found.is_link_local or found.is_multicast:
        return "link-local"
    return "public" if found.is_global else "private"


def literal_address(host: str) -> str | None:
    """Parse a host as an IP address, including legacy forms such as 127.1 and 0x7f000001."""
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return str(IPv4Address(inet_aton(host))) if host.isascii() else None
    except (OSError, ValueError):
        return None


def written_address(host: str) -> str | None:
    """Return the IP address of a host without a lookup: a literal, or localhost."""
    name = host.removesuffix(".")
    return "127.0.0.1" if name == "localhost" or name.endswith(".localhost") else literal_address(name)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address embedded in an IPv6 address, if any."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None) or address
