"""Getting documents: from a file, from an address, and the parts they refer to, each only from where it may come."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import msgspec

from enfold.sources.openapi.document import BrokenReferenceError, read_document
from enfold.sources.openapi.files import Folders, referred_file
from enfold.sources.openapi.servers import Reach, origin

_MAX_REDIRECTS: Final = 5
_TIMEOUT: Final = 30.0


class Loaded(msgspec.Struct, frozen=True):
    """A document, and the address that what it refers to is relative to; empty for one that came as data."""

    root: Any
    uri: str


class Loader:
    """Reads what documents refer to: files beside a file, addresses of the same origin or allowed hosts."""

    def __init__(
        self, allow_hosts: Iterable[str], max_bytes: int, base_url: str | None = None, allow_files: Folders = ()
    ) -> None:
        """`base_url` is the server the user gave: its origin is as good as the document's own."""
        base = origin(base_url or "")
        self._allow_hosts = (*allow_hosts, *([f"{base[0]}://{base[1]}:{base[2]}"] if base else []))
        self._allow_files = allow_files
        self._max_bytes = max_bytes
        self._home = ""

    def load(self, source: Mapping[str, Any] | str | bytes | os.PathLike[str]) -> Loaded:
        """The document a user gave: data, a path, an address, or the text itself."""
        if isinstance(source, Mapping):
            return Loaded(source if isinstance(source, dict) else dict(source), "")
        if isinstance(source, bytes):
            return Loaded(read_document(source), "")
        if isinstance(source, str) and origin(source):
            self._home = source
            return Loaded(read_document(self._fetch(source)), source)
        if isinstance(source, str) and _is_text(source):
            return Loaded(read_document(source.encode()), "")
        path = Path(source).absolute()
        self._home = path.as_uri()
        return Loaded(read_document(self._read(path)), self._home)

    def part(self, uri: str) -> bytes:
        """A part that a document refers to; a BrokenReferenceError says why it may not be read."""
        scheme = urlsplit(uri).scheme
        if scheme in ("http", "https"):
            refusal = Reach(self._home, self._allow_hosts).refusal(uri)
            if refusal is not None:
                raise BrokenReferenceError(refusal)
            return self._fetch(uri)
        return self._read(referred_file(uri, self._home, self._allow_files))

    def _read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            content = file.read(self._max_bytes + 1)
        if len(content) > self._max_bytes:
            raise BrokenReferenceError(f"{path.name} is over the limit of {self._max_bytes} bytes")
        return content

    def _fetch(self, url: str) -> bytes:
        """Read an address; redirects only lead to where we may go."""
        import httpx2

        reach = Reach(self._home, self._allow_hosts)
        with httpx2.Client(follow_redirects=False, timeout=_TIMEOUT) as client:
            for _ in range(_MAX_REDIRECTS):
                try:
                    location, content = self._get(client, url)
                except httpx2.HTTPError as error:
                    raise BrokenReferenceError(f"{url} cannot be read: {error}") from error
                if location is None:
                    return content
                url = urljoin(url, location)
                refusal = reach.refusal(url)
                if refusal is not None:
                    raise BrokenReferenceError(f"a redirect was refused: {refusal}")
        raise BrokenReferenceError(f"more than {_MAX_REDIRECTS} redirects")

    def _get(self, client: Any, url: str) -> tuple[str | None, bytes]:
        with client.stream("GET", url, headers={"Accept": "application/json, application/yaml, */*;q=0.5"}) as response:
            if response.has_redirect_location:
                return response.headers["location"], b""
            if response.status_code != 200:
                raise BrokenReferenceError(f"{url} answered {response.status_code}")
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > self._max_bytes:
                    raise BrokenReferenceError(f"{url} is over the limit of {self._max_bytes} bytes")
        return None, bytes(content)


def _is_text(source: str) -> bool:
    """Whether a string is a document and no path: no path has several lines, or begins like JSON."""
    return "\n" in source or source.lstrip().startswith("{")
