"""Requests to one address: one pooled client, headers that go nowhere else, bounded bodies, and failures as ours."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import urljoin, urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.mcp.failures import LostError, http_failure
from enfold.sources.mcp.limits import Limits
from enfold.sources.mcp.targets import Address

__all__ = ["GivenHeaders", "Headers", "Refusal", "Reply", "Web", "given_headers", "too_large"]

# Fixed ones, or a function that gives them for each request, such as with a token that is renewed.
GivenHeaders: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]


class Refusal(msgspec.Struct, frozen=True):
    """A request that was not let in: what the server asks for, and the `Authorization` it had, now and the time before."""

    status: int
    challenges: tuple[str, ...]
    sent: str
    before: str | None = None
    nonce: str = ""  # that a proof of possession has to repeat

    def __repr__(self) -> str:
        return f"Refusal({self.status})"


class Login(Protocol):
    """Who knows how to be let in."""

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """The headers of a request."""

    async def answer(self, refusal: Refusal, *, waits: bool) -> bool:
        """Whether the request is worth sending again, with new headers."""

    def censored(self, text: bytes) -> bytes:
        """What the server says without what is secret."""


Headers: TypeAlias = GivenHeaders | Login

CONNECT_TIMEOUT: Final = 10.0
REDIRECTS: Final = 3
LOGINS: Final = 3  # for one request
DRAIN: Final = 1.0  # seconds for the end of a stream to come, so that its connection can be used again


class Web:
    """The client for one address, and the user's own client where he gave one."""

    def __init__(self, address: Address, name: str, limits: Limits, headers: Headers, client: Any = None) -> None:
        self.name = name
        self.limits = limits
        self.url = address.url
        self._fixed = address.headers
        is_given = isinstance(headers, Mapping) or callable(headers)
        self._login = None if is_given else cast("Login", headers)
        self._headers = cast("GivenHeaders", headers) if is_given else {}
        self._client = client
        self._is_ours = client is None

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        url: str = "",
        *,
        waits: bool = False,
    ) -> Reply:
        """An open reply, whatever its status; who gets it closes it. `waits` says that it may take as long as a login."""
        before: str | None = None
        for _ in range(LOGINS):
            reply = await self._follow(method, headers, content, url)
            # The end of a session is not worth a login.
            if reply.status not in (401, 403) or method == "DELETE":
                return reply
            refusal = reply.refusal(before)
            if not await self._is_let_in(reply, refusal, waits=waits):
                return reply
            before = refusal.sent
        return await self._follow(method, headers, content, url)

    async def _is_let_in(self, reply: Reply, refusal: Refusal, *, waits: bool) -> bool:
        """Whether a refused request may be sent again; its reply is of use to nobody then."""
        try:
            if self._login is None:
                self._check_login(refusal)
                return False
            is_let_in = await self._login.answer(refusal, waits=waits)
        except BaseException:
            await reply.close()
            raise
        if is_let_in:
            await reply.close()
        return is_let_in

    def _check_login(self, refusal: Refusal) -> None:
        """Say what to do where a server wants a login, and nothing was said about one."""
        offers_login = any(scheme in each.lower() for each in refusal.challenges for scheme in ("bearer", "dpop"))
        if refusal.status == 401 and offers_login:
            refused = "does not accept the credentials it was given" if refusal.sent else "asks for a login (OAuth)"
            advice = (
                "set auth (auth = {} in a configuration; auth=UserLogin(…) in a program), or credentials to a token"
            )
            raise CallError("ACCESS_DENIED", f"{self.name} {refused}: {advice}", {"status": 401, "reason": "login"})

    async def _follow(self, method: str, headers: Mapping[str, str], content: bytes | None, url: str) -> Reply:
        target = url or self.url
        for _ in range(REDIRECTS + 1):
            response = await self._send(method, target, headers, content)
            if response.status_code not in (307, 308):
                return Reply(self, response)
            await response.aclose()
            target = self._moved(target, response)
            self.url = self.url if url else target
        raise CallError("EXECUTION_ERROR", f"{self.name} redirects again and again", {"reason": "redirects"})

    async def _send(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> Any:
        client = self._current()
        own = await self._own_headers(method, url)
        try:
            request = client.build_request(method, url, headers={**own, **headers}, content=content)
            return await client.send(request, stream=True, follow_redirects=False)
        except Exception as error:
            raise self.lost(error) from error

    async def _own_headers(self, method: str, url: str) -> dict[str, str]:
        own = given_headers(self._headers) if self._login is None else self._login.headers(method, url)
        return {**self._fixed, **await own}

    def censored(self, text: bytes) -> bytes:
        """What the server says, without the token of the login: the callers of its operations are not to have it."""
        return text if self._login is None else self._login.censored(text)

    def _moved(self, url: str, response: Any) -> str:
        """The new address, if it is on the same server: our headers are for no other."""
        moved = _joined(url, str(response.headers.get("location", "")))
        if moved is None:
            details = {"reason": "redirect", "status": response.status_code}
            raise CallError("EXECUTION_ERROR", f"{self.name} redirects to another server, which is refused", details)
        return moved

    def _current(self) -> Any:
        if self._client is None:
            try:
                import httpx2
            except ImportError:
                raise CallError(
                    "UNAVAILABLE", "An MCP server at a URL needs httpx2: pip install 'enfold[mcp]'"
                ) from None
            timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT)  # the call has its own deadline
            pool = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
            self._client = httpx2.AsyncClient(timeout=timeout, limits=pool, headers={"user-agent": "enfold"})
        return self._client

    def lost(self, error: Exception) -> Exception:
        """What a failure of the client means for the request it was to send."""
        library = _library(self._client)
        if isinstance(error, library.ConnectError | library.ConnectTimeout):
            return LostError(self._unavailable("cannot be reached", error), may_have_run=False)
        if isinstance(error, library.LocalProtocolError | library.UnsupportedProtocol | library.InvalidURL):
            return CallError("VALIDATION_ERROR", f"The request to {self.name} cannot be sent: {error}")
        if isinstance(error, library.TransportError | library.StreamError):
            return LostError(self._unavailable("broke off", error), may_have_run=True)
        return error

    def _unavailable(self, fate: str, error: Exception) -> CallError:
        return CallError(
            "UNAVAILABLE", f"{self.name} {fate}: {str(error) or type(error).__name__}", {"reason": "connection"}
        )

    async def close(self) -> None:
        client, self._client = self._client, None
        if self._is_ours and client is not None:
            await client.aclose()


class Reply:
    """An open response: its head, and its body as it comes."""

    def __init__(self, web: Web, response: Any) -> None:
        self._web = web
        self._response = response
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.chunks: AsyncGenerator[bytes] = self._chunks()

    @property
    def content_type(self) -> str:
        return self._told(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """The body in pieces, with a broken connection told as such."""
        try:
            async for chunk in self._response.aiter_bytes():
                yield chunk
        except Exception as error:
            raise self._web.lost(error) from error

    async def body(self) -> bytes:
        """The whole body, if it is within the limit."""
        limit = self._web.limits.message_bytes
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks:
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def refusal(self, before: str | None) -> Refusal:
        """What a status of 401 or 403 asks for."""
        challenges = self._response.headers.get_list("www-authenticate")
        sent = self._response.request.headers.get("authorization", "")
        return Refusal(self.status, tuple(challenges), sent, before, self.headers.get("dpop-nonce", ""))

    async def failure(self) -> CallError:
        """The error that an error status means."""
        body = self._web.censored(await self.body())
        reason = self._told(self._response.reason_phrase or "error")
        return http_failure(self.status, reason, self.content_type, body, self.headers.get("retry-after"))

    def _told(self, text: str) -> str:
        return self._web.censored(text.encode()).decode()

    async def drain(self) -> None:
        """Read what is left, which is nothing or little, and close."""
        try:
            async with asyncio.timeout(DRAIN):
                async for _ in self.chunks:
                    pass
        finally:
            await self.close()

    async def close(self) -> None:
        await self.chunks.aclose()
        await self._response.aclose()


async def given_headers(headers: GivenHeaders) -> Mapping[str, str]:
    """What a user gave, or what his function gives now."""
    given = headers() if callable(headers) else headers
    return given if isinstance(given, Mapping) else await given


def _joined(url: str, location: str) -> str | None:
    """Where a redirect leads, if it stays on its server."""
    try:
        moved = urljoin(url, location)
        return moved if urlsplit(moved)[:2] == urlsplit(url)[:2] else None
    except ValueError:  # to what is no address
        return None


def too_large(limit: int) -> CallError:
    return CallError("PAYLOAD_TOO_LARGE", f"The answer is over the limit of {limit} bytes", {"limit": limit})


def _library(client: Any) -> Any:
    """The module a client belongs to: httpx and httpx2 have the same names in it."""
    name = type(client).__module__.partition(".")[0]
    return sys.modules[name if name in ("httpx", "httpx2") else "httpx2"]
