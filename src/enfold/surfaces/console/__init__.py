"""The console: a page for people at the address of a server. Static files; all it shows are operations and the document."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from enfold.surfaces.asgi.messages import Header, Headers

__all__ = ["Console", "Page", "wants_page"]

FOLDER: Final = Path(__file__).parent / "static"
PREFIX: Final = "/console/"
PARENTS: Final = ("/docs", "/redoc")  # where users of other frameworks look for a page

_TYPES: Final = {".html": b"text/html", ".css": b"text/css", ".js": b"text/javascript"}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE: Final[tuple[Header, ...]] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


class Page(msgspec.Struct, frozen=True):
    """A whole answer."""

    body: bytes = b""
    headers: Sequence[Header] = ()
    status: int = 200


class Console:
    """The files of the console, each read when it is first asked for."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}

    def page(self, path: str, root: str, headers: Headers) -> Page | None:
        """What is at a path of a server that is mounted at `root`; None where that is nothing of the console."""
        if path in ("", *PARENTS):
            return Page(headers=[(b"location", f"{root}/".encode())], status=307)
        name = "index.html" if path == "/" else path.removeprefix(PREFIX)
        if path != "/" and not (path.startswith(PREFIX) and name in _names()):
            return None
        page = self._pages.get(name)
        if page is None:
            page = self._pages[name] = _read(FOLDER / name)
        is_known = headers.get(b"if-none-match") == dict(page.headers)[b"etag"]
        return Page(b"", page.headers, 304) if is_known else page


def wants_page(accept: bytes | None) -> bool:
    """Whether who asks is a browser; a program that takes anything gets JSON."""
    return accept is not None and b"text/html" in accept.lower()


@cache
def _names() -> frozenset[str]:
    """The files that there are: a path cannot leave the folder, because it is compared and never joined."""
    return frozenset(file.name for file in FOLDER.iterdir() if file.suffix in _TYPES)


def _read(file: Path) -> Page:
    body = file.read_bytes()
    kind = (b"content-type", _TYPES[file.suffix] + b"; charset=utf-8")
    etag = (b"etag", f'"{hashlib.sha256(body).hexdigest()[:16]}"'.encode())
    vary = [(b"vary", b"accept")] if file.name == "index.html" else []
    return Page(body, [kind, etag, *vary, *_SAFE])
