"""The addresses of a service: what its document says, what the user gave, and which may be contacted. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urljoin, urlsplit

from enfold.http_client.urls import PORTS, Place, display_url, place_of
from enfold.sources.openapi.document import DocumentPlace, Library
from enfold.sources.openapi.operations import FoundOperation

_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")


class Reach:
    """The addresses that may be contacted: the user's own, and the hosts they allowed beside it."""

    def __init__(self, home: str, allow_hosts: Iterable[str] = ()) -> None:
        self.home = place_of(home)
        self._allowed = frozenset(map(_spelled, allow_hosts))

    def is_home(self, url: str) -> bool:
        return self.home is not None and place_of(url) == self.home

    def refusal(self, url: str) -> str | None:
        """Why an address may not be contacted, as a sentence; None where it may."""
        found = place_of(url)
        if found is None:
            return f"{display_url(url)} is not an http(s) address"
        if found == self.home or self._is_allowed(found):
            return None
        return (
            f"{display_url(url)} is on another host than the one you gave: pass allow_hosts=[{found[1]!r}] to allow it"
        )

    def _is_allowed(self, found: Place) -> bool:
        scheme, host, port = found
        if f"{scheme}://{host}:{port}" in self._allowed or f"{scheme}://{host}" in self._allowed:
            return True
        # A name alone does not allow to go from an encrypted connection to a plain one.
        if scheme == "http" and self.home is not None and self.home[0] == "https":
            return False
        return f"{host}:{port}" in self._allowed or host in self._allowed


def _spelled(allowed: str) -> str:
    """Spell a host as `place_of` does, with its scheme and port."""
    text = allowed.lower().rstrip("/")
    scheme, _, authority = text.rpartition("://")
    place = None if text.isascii() else place_of(f"{scheme or 'https'}://{authority}")
    return text if place is None else text.replace(authority.partition(":")[0], place[1])


class Servers:
    """The base address of each operation: the user's, or what the document says as far as it may be contacted."""

    def __init__(
        self,
        library: Library,
        base_url: str | None,
        variables: Mapping[str, str],
        allow_hosts: Iterable[str],
    ) -> None:
        self._variables = variables
        self._address = library.retrieved_from  # what is relative is relative to it
        self._declared = self._declared_server(library)
        base, _, self.query = (base_url or self._declared or "").partition("#")[0].partition("?")
        self.base = base.rstrip("/")
        # A document in the user's hands speaks for them; one from an address speaks for that address only.
        came_by_http = place_of(self._address) is not None
        self.reach = Reach(base_url or (self._address if came_by_http else self.base), allow_hosts)
        self._stands_in = base_url is not None

    def base_for(self, found: FoundOperation) -> str:
        """Return the base address of an operation, with the query of its requests."""
        own = self._first(found.place.child("servers")) or self._first(found.item.child("servers"))
        return self._with_query(self.base) if own is None else self._rebased(own)

    def refusal(self, base: str) -> str | None:
        """Why requests to this base are refused, as a sentence; None where they are not."""
        if not base or place_of(base) is None:
            return "The document has no server URL: pass base_url"
        return self.reach.refusal(base)

    def _declared_server(self, library: Library) -> str | None:
        root = library.place()
        if library.version == "2.0":
            return self._absolute(_old_server(root.node, self._address))
        # Without servers the document is served where it came from.
        return self._first(root.child("servers")) or (self._absolute("/") if place_of(self._address) else None)

    def _first(self, servers: DocumentPlace) -> str | None:
        for server in servers.elements():
            url = server.fields.get("url")
            if isinstance(url, str):
                return self._absolute(self._filled(url, server.child("variables")))
        return None

    def _filled(self, url: str, variables: DocumentPlace) -> str:
        def value(match: re.Match[str]) -> str:
            return self._value(match[1], variables.child(match[1]).fields)

        return _VARIABLE.sub(value, url)

    def _value(self, name: str, variable: dict[str, Any]) -> str:
        given = self._variables.get(name)
        allowed = variable.get("enum")
        if given is not None:
            if isinstance(allowed, list) and allowed and given not in map(str, allowed):
                raise ValueError(
                    f"The server variable {name} must be one of {', '.join(map(str, allowed))}, not {given}"
                )
            return given
        default = variable.get("default", allowed[0] if isinstance(allowed, list) and allowed else "")
        return str(default)

    def _absolute(self, url: str) -> str:
        return urljoin(self._address, url) if place_of(self._address) else url

    def _rebased(self, url: str) -> str:
        """Return an operation's own server; a base_url replaces the document's server here too."""
        if place_of(url) is None:
            return self._with_query(urljoin(f"{self.base}/", url))
        if self._stands_in and self._declared and place_of(url) == place_of(self._declared):
            return self._with_query(urljoin(self.base, urlsplit(url).path))
        return url

    def _with_query(self, base: str) -> str:
        return f"{base}?{self.query}" if self.query and "?" not in base else base


def in_query(base: str) -> set[tuple[str, str]]:
    """Return the query parameters of a base address, which are not arguments."""
    return {("query", name) for name, _ in parse_qsl(urlsplit(base).query, keep_blank_values=True)}


def _old_server(root: dict[str, Any], address: str) -> str:
    """Return the server of a 2.0 document: scheme, host and basePath, completed from the document's address."""
    host, path = root.get("host"), root.get("basePath")
    path = path if isinstance(path, str) else ""
    if not isinstance(host, str) or not host:
        return path or "/"
    schemes = root.get("schemes")
    declared = schemes if isinstance(schemes, list) else []
    listed = [each for each in declared if isinstance(each, str) and each in PORTS]
    came_by = urlsplit(address).scheme
    fallback = came_by if came_by in PORTS else "https"
    scheme = "https" if "https" in listed else listed[0] if listed else fallback
    return f"{scheme}://{host}/{path.lstrip('/')}"
