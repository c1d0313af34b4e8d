"""The console: the web page of a server. Static files; it only uses operations and the OpenAPI document."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

from enfold.surfaces.asgi import Header, Headers
from enfold.surfaces.request import Response

FOLDER: Final = Path(__file__).parent / "static"
PARENTS: Final = ("/docs", "/redoc")  # where users of other frameworks look for a page

_TYPES: Final = {".html": b"text/html", ".css": b"text/css", ".js": b"text/javascript"}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; media-src blob:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE: Final[tuple[Header, ...]] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
# A file is in a folder with the name of all their content: a browser need not ask for it again. Without that folder,
# or in that of another release, it is there as well, for a page that was opened before the server was renewed.
_FILE: Final = re.compile(r"/console/(?:([0-9a-f]{16})/)?([a-z]+\.[a-z]+)")
_LOOK_AGAIN: Final = (b"cache-control", b"no-cache")
_FOREVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")


def console_file(path: str, root: str, headers: Headers) -> Response | None:
    """Return the console's file at a path of a server mounted at `root`; None if there is none."""
    if path in ("", *PARENTS):
        return Response(b"", 307, [(b"location", f"{root}/".encode())])
    asked = _FILE.fullmatch(path)
    if path != "/" and asked is None:
        return None
    release, name = ("", "index.html") if asked is None else asked.groups()
    page = _files().get(name)  # a path cannot leave the folder, because it is compared and never joined
    if page is None:
        return None
    is_known = headers.get(b"if-none-match") == dict(page.headers)[b"etag"]
    age = _FOREVER if release == _release() else _LOOK_AGAIN
    told = [*page.headers, age]
    return Response(b"", 304, told) if is_known else Response(page.body, 200, told, page.media_type)


@cache
def _files() -> dict[str, Response]:
    return {name: _page(name, body) for name, body in _contents().items()}


@cache
def _contents() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(FOLDER.iterdir()) if file.suffix in _TYPES}


@cache
def _release() -> str:
    return hashlib.sha256(b"\0".join(_contents().values())).hexdigest()[:16]


def _page(name: str, body: bytes) -> Response:
    vary = [(b"vary", b"accept")] if name == "index.html" else []
    if name == "index.html":
        body = body.replace(b'"console/', f'"console/{_release()}/'.encode())
    etag = (b"etag", f'"{hashlib.sha256(body).hexdigest()[:16]}"'.encode())
    return Response(body, 200, [etag, *vary, *_SAFE], _TYPES[Path(name).suffix] + b"; charset=utf-8")
