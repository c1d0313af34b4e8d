"""Questions to authorization servers: bounded in size and time, never led elsewhere, and their refusals as values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode, urljoin, urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.mcp.oauth.addresses import Reach, origin

__all__ = ["RefusedError", "Wire", "open_wire"]

T = TypeVar("T")

# What a server may repeat in its complaint, and must not be repeated by us.
_SECRETS: Final = (
    "client_secret",
    "code",
    "code_verifier",
    "refresh_token",
    "assertion",
    "client_assertion",
    "subject_token",
)
_BUSY: Final = (429, 502, 503, 504)
_MOVED: Final = (301, 302, 303, 307, 308)

MAX_BYTES: Final = 256 * 1024
SECONDS: Final = 20.0
REDIRECTS: Final = 3


class RefusedError(Exception):
    """An authorization server said no; `error` is its word for it."""

    def __init__(self, url: str, status: int, error: str, description: str, nonce: str = "") -> None:
        self.url = url
        self.host = urlsplit(url).netloc
        self.status = status
        self.error = error
        self.description = description
        self.nonce = nonce  # which the next proof has to repeat
        self.reason = description or error or f"HTTP {status}"
        super().__init__(f"{self.host} refuses: {self.reason}")

    def without(self, secrets: Iterable[str]) -> RefusedError:
        """The same, should the server have repeated what it was told in confidence."""
        error, description = self.error, self.description
        for secret in filter(None, secrets):
            for text in (secret, quote_plus(secret)):  # as a form has it
                error, description = error.replace(text, "…"), description.replace(text, "…")
        return RefusedError(self.url, self.status, error, description, self.nonce)


class Wire:
    """One conversation with authorization servers, for the length of one login."""

    def __init__(self, client: Any, reach: Reach) -> None:
        self._client = client
        self._reach = reach

    async def find(self, url: str, type: type[T]) -> T | None:
        """The document at an address; None where there is none of its kind."""
        self._reach.check(url, "its metadata")
        for _ in range(REDIRECTS + 1):
            status, headers, body = await self._exchange("GET", url, {"accept": "application/json"}, None)
            moved = _moved(url, headers) if status in _MOVED else None
            if moved is None:
                return _decoded(body, type) if status == 200 else None
            url = moved
        return None

    async def post_json(self, url: str, document: Mapping[str, Any], type: type[T]) -> T:
        headers = {"content-type": "application/json", "accept": "application/json"}
        return await self._post(url, headers, msgspec.json.encode(document), type)

    async def post_form(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str], type: type[T], secret: str = ""
    ) -> T:
        """The answer to a form; RefusedError where the server says no, without our secrets in its words."""
        sent = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json", **headers}
        try:
            return await self._post(url, sent, urlencode(form).encode(), type)
        except RefusedError as refused:
            credentials = headers.get("authorization", "").partition(" ")[2]
            raise refused.without([secret, credentials, *(form.get(name, "") for name in _SECRETS)]) from None

    async def _post(self, url: str, headers: Mapping[str, str], content: bytes, type: type[T]) -> T:
        status, answered, body = await self._exchange("POST", url, headers, content)
        refusal = _decoded(body, _Refusal) or _Refusal()
        if status not in (200, 201) or refusal.error:
            nonce = answered.get("dpop-nonce", "")
            raise RefusedError(url, status, refusal.error, refusal.error_description, nonce)
        answer = _decoded(body, type)
        if answer is None:
            raise RefusedError(url, status, "", "its answer is not what OAuth describes")
        return answer

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            async with asyncio.timeout(SECONDS):
                request = self._client.build_request(method, url, headers=dict(headers), content=content)
                response = await self._client.send(request, stream=True, follow_redirects=False)
                try:
                    if response.status_code in _BUSY:
                        raise _unreachable(url, f"HTTP {response.status_code}")
                    return response.status_code, response.headers, await _bounded(response, url)
                finally:
                    await response.aclose()
        except CallError:
            raise
        except Exception as error:  # noqa: BLE001  # a client has many words for an address that does not answer
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise _unreachable(url, reason) from None


@asynccontextmanager
async def open_wire(reach: Reach) -> AsyncIterator[Wire]:
    """A client of our own: what a user's client sends along is for the MCP server alone."""
    import httpx2

    async with httpx2.AsyncClient(timeout=SECONDS, headers={"user-agent": "enfold"}) as client:
        yield Wire(client, reach)


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""
    error_description: str = ""


def _unreachable(url: str, reason: str) -> CallError:
    return CallError("UNAVAILABLE", f"{urlsplit(url).netloc} cannot be reached for the login: {reason}")


async def _bounded(response: Any, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_BYTES:
            raise CallError("PAYLOAD_TOO_LARGE", f"{urlsplit(url).netloc} answers with more than {MAX_BYTES} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _moved(url: str, headers: Mapping[str, str]) -> str | None:
    """Where a redirect leads, if it stays on its server."""
    try:
        moved = urljoin(url, headers.get("location", ""))
        return moved if origin(moved) == origin(url) else None
    except ValueError:  # to what is no address
        return None


def _decoded(body: bytes, type: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
