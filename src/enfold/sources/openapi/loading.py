"""Getting documents: from a file, from an address, and the parts they refer to, each only from where it may come."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from enfold.sources.openapi.document import BrokenReferenceError, read_document
from enfold.sources.openapi.referred_files import Folders, referred_file
from enfold.sources.openapi.security import Credential
from enfold.sources.openapi.server_urls import Reach
from enfold.sources.web import Request, Response, WebError, open_client
from enfold.sources.web.http_messages import Headers
from enfold.sources.web.redirects import follow
from enfold.sources.web.supplied import current
from enfold.sources.web.urls import basic_authorization, place_of, shown, split_url

if TYPE_CHECKING:
    from enfold.sources.web import AnyClient

_MAX_REDIRECTS: Final = 5
_TIMEOUT: Final = 30.0
_ACCEPT: Final = "application/json, application/yaml, */*;q=0.5"


class Loaded(msgspec.Struct, frozen=True):
    """A document, and the address that what it refers to is relative to; empty for one that came as data."""

    root: Any
    uri: str


class DocumentLogin(msgspec.Struct, frozen=True):
    """What the user gave for their own server, which a document of that server may ask for as well."""

    client: Any = None
    headers: Mapping[str, str] = {}
    credentials: tuple[Credential, ...] = ()


class Loader:
    """Reads what documents refer to: files beside a file, addresses of the same origin or allowed hosts."""

    def __init__(
        self,
        allow_hosts: Iterable[str],
        max_bytes: int,
        base_url: str | None = None,
        allow_files: Folders = (),
        login: DocumentLogin | None = None,
    ) -> None:
        """`base_url` is the server the user gave: its origin is as good as the document's own.

        The login is for that server; without a `base_url` it is the document's own.
        """
        self._login = login or DocumentLogin()
        self._base_url = base_url
        base = place_of(base_url or "")
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
        if isinstance(source, str) and place_of(source):
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
        try:
            return _in_a_loop_of_its_own(self._get(url))
        except WebError as error:
            raise BrokenReferenceError(f"{shown(url)} cannot be read: {error.sentence}") from error
        except TimeoutError:
            raise BrokenReferenceError(f"{shown(url)} did not answer within {_TIMEOUT:g} seconds") from None

    async def _get(self, url: str) -> bytes:
        reach = Reach(self._home, self._allow_hosts)
        # What belongs to the user's server goes nowhere else: with a `base_url` elsewhere, not to the document's either.
        own = Reach(self._base_url or self._home)
        client = open_client(self._login.client)
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._read_answer(client, url, reach, own)
        finally:
            await client.aclose()

    async def _read_answer(self, client: AnyClient, url: str, reach: Reach, own: Reach) -> bytes:
        response = await self._ask(client, url, reach, own, {})
        if response.status == 401 and own.is_home(url):
            challenge = response.header("www-authenticate") or ""
            async for headers in _authorizations(self._login.credentials, challenge):
                await response.close()
                response = await self._ask(client, url, reach, own, headers)
                if response.status != 401:
                    break
        try:
            if response.status != 200:
                raise BrokenReferenceError(f"{shown(url)} answered {response.status}{_advice(response.status)}")
            return await response.body(self._max_bytes)
        except WebError as error:
            if error.kind != "too_large":
                raise
            raise BrokenReferenceError(f"{shown(url)} is over the limit of {self._max_bytes} bytes") from None
        finally:
            await response.close()

    async def _ask(self, client: AnyClient, url: str, reach: Reach, own: Reach, headers: Mapping[str, str]) -> Response:
        def keeps_headers(moved: str, _status: int) -> bool:
            refusal = reach.refusal(moved)
            if refusal is not None:
                raise BrokenReferenceError(f"a redirect was refused: {refusal}")
            return own.is_home(moved)

        async def send(request: Request) -> Response:
            return await client.send(request, is_own=own.is_home(request.url))

        sent: Headers = [("Accept", _ACCEPT)]
        if own.is_home(url):
            given = [pair for pair in self._login.headers.items() if not headers or pair[0].lower() != "authorization"]
            sent += [*given, *headers.items()]
        if self._login.client is not None:
            sent.append(("Connection", "close"))  # the user's client is for another loop than this one
        return await follow(send, Request("GET", *split_url(url), sent), keeps_headers, _MAX_REDIRECTS)


async def _authorizations(credentials: Iterable[Credential], challenge: str) -> AsyncIterator[dict[str, str]]:
    """The credentials of the API as its document's server may take them; its schemes are in the document."""
    for credential in credentials:
        given: Any = await current(credential)
        if isinstance(given, Mapping):
            pair = (given.get("username", ""), given.get("password", ""))
            given = given.get("token") or given.get("value") or given.get("access_token") or (pair if any(pair) else "")
        if isinstance(given, tuple | list):
            yield {"Authorization": basic_authorization(":".join(map(str, given)))}
        elif isinstance(given, str) and given:
            is_pair = ":" in given and "basic" in challenge.lower()
            yield {"Authorization": basic_authorization(given) if is_pair else f"Bearer {given}"}


def _advice(status: int) -> str:
    return ": give headers, credentials or a client that are let in" if status in (401, 403) else ""


def _in_a_loop_of_its_own(work: Coroutine[Any, Any, bytes]) -> bytes:
    """Wait for some work in a thread: documents are read before there is a loop, or while it stands still."""
    done: Future[bytes] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="enfold-document", daemon=True).start()
    return done.result()


def _is_text(source: str) -> bool:
    """Whether a string is a document and no path: no path has several lines, or begins like JSON."""
    return "\n" in source or source.lstrip().startswith("{")
