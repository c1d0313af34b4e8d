"""Getting documents: from a file, from an address, and the parts they refer to, each only from where it may come."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.openapi.document import BrokenReferenceError, Library, read_document
from enfold.sources.openapi.requests import Outgoing
from enfold.sources.openapi.responses import ReceivedResponse
from enfold.sources.openapi.security import Credential
from enfold.sources.openapi.server_urls import Reach
from enfold.sources.openapi.service_client import OpenAPILimits, ServiceClient
from enfold.sources.web.supplied import current
from enfold.sources.web.urls import basic_authorization, display_url, place_of, split_url

Folders: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_TIMEOUT: Final = 30.0
_ACCEPT: Final = "application/json, application/yaml, */*;q=0.5"
_SUFFIXES: Final = (".json", ".yaml", ".yml")


class Loader:
    """Reads the user's document and what it refers to: files beside a file, addresses of its origin or of allowed hosts."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        allow_hosts: Iterable[str] = (),
        allow_files: Folders = (),
        limits: OpenAPILimits,
        client: Any = None,
        headers: Mapping[str, str] | None = None,
        credentials: Iterable[Credential] = (),
    ) -> None:
        """The client, the headers and the credentials are for the server at `base_url`, or else for the document's own."""
        self._base_url = base_url
        self._allow_hosts = tuple(allow_hosts)
        self._allow_files = allow_files
        self._limits = msgspec.structs.replace(limits, response_bytes=limits.document_bytes)
        self._client = client
        self._headers = headers
        self._credentials = credentials
        self._home = ""  # where the document came from; empty for one that came as data

    def load(self, source: Mapping[str, Any] | str | bytes | os.PathLike[str]) -> Library:
        """The document a user gave, as data, a path, an address, or the text itself."""
        return Library(self._read_source(source), self._home, self._part)

    def _read_source(self, source: Mapping[str, Any] | str | bytes | os.PathLike[str]) -> Any:
        if isinstance(source, Mapping):
            return source if isinstance(source, dict) else dict(source)
        if isinstance(source, bytes):
            return read_document(source)
        if isinstance(source, str) and place_of(source):
            self._home = source
            return read_document(self._fetch(source))
        # No path has several lines, or begins like JSON.
        if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
            return read_document(source.encode())
        path = Path(source).absolute()
        self._home = path.as_uri()
        return read_document(self._read(path))

    def _part(self, uri: str) -> bytes:
        """A part that a document refers to; a BrokenReferenceError says why it may not be read."""
        if urlsplit(uri).scheme in ("http", "https"):
            refusal = self._reach().refusal(uri)
            if refusal is not None:
                raise BrokenReferenceError(refusal)
            return self._fetch(uri)
        return self._read(_referred_file(uri, self._home, self._allow_files))

    def _reach(self) -> Reach:
        """The document's own server is allowed; with a `base_url` elsewhere it gets nothing that belongs to the user's."""
        own = place_of(self._home)
        allowed = (*self._allow_hosts, *([f"{own[0]}://{own[1]}:{own[2]}"] if own else []))
        return Reach(self._base_url or self._home, allowed)

    def _read(self, path: Path) -> bytes:
        limit = self._limits.document_bytes
        with path.open("rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise BrokenReferenceError(f"{path.name} is over the limit of {limit} bytes")
        return content

    def _fetch(self, url: str) -> bytes:
        """Read an address; redirects only lead to where we may go."""
        try:
            answer = _run_in_thread(self._get(url))
        except CallError as error:
            raise BrokenReferenceError(f"{display_url(url)} cannot be read: {error.message}") from error
        except TimeoutError:
            raise BrokenReferenceError(f"{display_url(url)} did not answer within {_TIMEOUT:g} seconds") from None
        if answer.status != 200:
            is_login = answer.status in (401, 403)
            advice = ": give headers, credentials or a client that are let in" if is_login else ""
            raise BrokenReferenceError(f"{display_url(url)} answered {answer.status}{advice}")
        return answer.content

    async def _get(self, url: str) -> ReceivedResponse:
        reach = self._reach()
        client = ServiceClient(reach, self._limits, self._client, self._headers)
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await client.fetch(self._request(url))
                if answer.status == 401 and reach.is_home(url):
                    challenge = answer.header("www-authenticate") or ""
                    async for authorization in _authorizations(self._credentials, challenge):
                        answer = await client.fetch(self._request(url, ("Authorization", authorization)))
                        if answer.status != 401:
                            break
                return answer
        finally:
            await client.aclose()

    def _request(self, url: str, *headers: tuple[str, str]) -> Outgoing:
        origin, target = split_url(url)
        request = Outgoing("GET", origin, target, [], [("Accept", _ACCEPT), *headers], [])
        if self._client is not None:
            request.add_header("Connection", "close")  # the user's client is for another loop than this one
        return request


# --- files --------------------------------------------------------------------------------------------------------


def _referred_file(uri: str, home: str, allowed: Folders = ()) -> Path:
    """The file that a `file:` address names, with every link followed; a BrokenReferenceError says why it may not be read."""
    if not home.startswith("file:"):
        raise BrokenReferenceError("only a document that is a file itself may refer to files")
    given = _path(uri)
    # Documents are often not our own: what they can make us read is documents.
    if given.suffix.lower() not in _SUFFIXES:
        raise BrokenReferenceError(f"{given.name} is no .json, .yaml or .yml file")
    path = given.resolve()
    if not any(path.is_relative_to(folder) for folder in _folders(_path(home), allowed)):
        raise BrokenReferenceError(
            f"{given.name} lies outside the document's folder: pass allow_files=[{str(path.parent)!r}] to allow it"
        )
    return path


def _path(uri: str) -> Path:
    parts = urlsplit(uri)
    text = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or "\0" in text:
        raise BrokenReferenceError("a reference to a file names a path of this machine")
    return Path(text)


def _folders(home: Path, allowed: Folders) -> Iterator[Path]:
    """The folder the user sees the document in, the one it really lies in where it is a link, and those allowed."""
    yield home.parent.resolve()
    yield home.resolve().parent
    for each in [allowed] if isinstance(allowed, (str, os.PathLike)) else allowed:
        yield Path(each).resolve()


# --- addresses ----------------------------------------------------------------------------------------------------


async def _authorizations(credentials: Iterable[Credential], challenge: str) -> AsyncIterator[str]:
    """The credentials of the API as its document's server may take them; its schemes are in the document."""
    for credential in credentials:
        given: Any = await current(credential)
        if isinstance(given, Mapping):
            pair = (given.get("username", ""), given.get("password", ""))
            given = given.get("token") or given.get("value") or given.get("access_token") or (pair if any(pair) else "")
        if isinstance(given, tuple | list):
            yield basic_authorization(":".join(map(str, given)))
        elif isinstance(given, str) and given:
            is_pair = ":" in given and "basic" in challenge.lower()
            yield basic_authorization(given) if is_pair else f"Bearer {given}"


def _run_in_thread(work: Coroutine[Any, Any, ReceivedResponse]) -> ReceivedResponse:
    """Wait for some work in a thread: documents are read before there is a loop, or while it stands still."""
    done: Future[ReceivedResponse] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="enfold-document", daemon=True).start()
    return done.result()
