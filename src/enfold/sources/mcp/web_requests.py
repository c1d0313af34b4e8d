"""Requests to one address: one pooled client, headers that go nowhere else, bounded bodies, and failures as ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.errors import CallError
from enfold.sources.mcp.mcp_settings import Address, ServerSettings
from enfold.sources.mcp.upstream_failures import LostError, message_too_large
from enfold.sources.web import Request, Response, WebError, open_client
from enfold.sources.web.redirects import follow
from enfold.sources.web.status_errors import status_error
from enfold.sources.web.supplied import current
from enfold.sources.web.urls import same_place, split_url

if TYPE_CHECKING:
    from enfold.sources.web import AnyClient


class Refusal(msgspec.Struct, frozen=True):
    """A request that was refused with 401 or 403: what the server asks for, and the `Authorization` sent, now and the time before."""

    status: int
    challenges: tuple[str, ...]
    sent: str
    before: str | None = None
    nonce: str = ""  # that a proof of possession has to repeat
    peer: str = ""  # the IP address that it came from, where it is known

    def __repr__(self) -> str:
        return f"Refusal({self.status})"


MAX_ERROR_BODY: Final = 2000
REDIRECTS: Final = 3
MAX_LOGINS: Final = 3  # for one request
DRAIN_SECONDS: Final = 1.0  # for the end of a stream to come, so that its connection can be used again
_FOLLOWED: Final = (307, 308)


class Web:
    """The client for one address, and the user's own client where they gave one."""

    def __init__(self, address: Address, settings: ServerSettings) -> None:
        self.name = settings.name
        self.limits = settings.limits
        self.url = address.url
        self._fixed = address.headers
        self._given = settings.headers
        self._login = settings.login
        # Headers that never change are put together once.
        self._static: dict[str, str] | None = None
        if self._login is None and isinstance(self._given, Mapping):
            self._static = _lower({**self._fixed, **self._given})
        self._secrets = settings.secrets
        self.redact = self._secrets.redact_bytes
        self._given_client = settings.client
        self._client: AnyClient | None = None

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        url: str = "",
        *,
        waits: bool = False,
    ) -> OpenResponse:
        """An open reply, whatever its status; who gets it closes it. `waits` says that it may take as long as a login."""
        before: str | None = None
        for _ in range(MAX_LOGINS):
            reply = await self._follow(method, headers, content, url)
            # The end of a session is not worth a login.
            if reply.status not in (401, 403) or method == "DELETE":
                return reply
            refusal = reply.refusal(before)
            if not await self._may_retry(reply, refusal, waits=waits):
                return reply
            before = refusal.sent
        return await self._follow(method, headers, content, url)

    async def _may_retry(self, reply: OpenResponse, refusal: Refusal, *, waits: bool) -> bool:
        """Whether a refused request may be sent again; then its reply is closed."""
        try:
            if self._login is None:
                self._ask_for_login(refusal)
                return False
            may_retry = await self._login.answer(refusal, waits=waits)
        except BaseException:
            await reply.close()
            raise
        if may_retry:
            await reply.close()
        return may_retry

    def _ask_for_login(self, refusal: Refusal) -> None:
        """Raise what to do where a server wants a login, and the user configured none."""
        offers_login = any(scheme in each.lower() for each in refusal.challenges for scheme in ("bearer", "dpop"))
        if refusal.status == 401 and offers_login:
            refused = "does not accept the credentials it was given" if refusal.sent else "asks for a login (OAuth)"
            advice = (
                "set auth (auth = {} in a configuration; auth=UserLogin(…) in a program), or credentials to a token"
            )
            raise CallError("ACCESS_DENIED", f"{self.name} {refused}: {advice}", {"status": 401, "reason": "login"})

    async def _follow(self, method: str, headers: Mapping[str, str], content: bytes | None, url: str) -> OpenResponse:
        """Send, and follow redirects that stay on the server: our headers are for no other."""
        sent = ""

        async def send(request: Request) -> Response:
            nonlocal sent
            own = self._static if self._static is not None else await self._own_headers(method, request.url)
            sent = own.get("authorization", "")
            if self._static is None:
                self._secrets.remember_named(own, "headers", lasts=False)
            if self._client is None:
                self._client = open_client(self._given_client)
            # Headers of the protocol come before what a user gave under the same name.
            return await self._client.send(msgspec.structs.replace(request, headers=list({**own, **headers}.items())))

        try:
            request = Request(method, *split_url(url or self.url), [], content)
            response = await follow(send, request, self._check_same_server, REDIRECTS, _FOLLOWED)
        except WebError as error:
            raise self.lost(error) from error
        if not url and response.url != request.url:
            self.url = response.url
        return OpenResponse(self, response, sent)

    def _check_same_server(self, moved: str, status: int) -> bool:
        if not same_place(self.url, moved):
            details = {"reason": "redirect", "status": status}
            raise CallError("EXECUTION_ERROR", f"{self.name} redirects to another server, which is refused", details)
        return True

    async def _own_headers(self, method: str, url: str) -> dict[str, str]:
        own = _lower({**self._fixed, **await current(self._given)})
        return own if self._login is None else {**own, **await self._login.headers(method, url)}

    def lost(self, error: WebError) -> Exception:
        """What a failure of the client means for the request it was to send."""
        if error.kind == "redirect":
            return CallError(
                "EXECUTION_ERROR", f"{self.name} redirects again and again: {error.sentence}", {"reason": "redirects"}
            )
        if error.kind == "unsendable":
            return CallError("VALIDATION_ERROR", f"The request to {self.name} cannot be sent: {error.sentence}")
        if error.kind == "too_large":
            return message_too_large(self.limits.message_bytes)
        fate = "broke off" if error.was_sent else "cannot be reached"
        failure = CallError("UNAVAILABLE", f"{self.name} {fate}: {error.sentence}", {"reason": "connection"})
        return LostError(failure, may_have_run=error.was_sent)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class OpenResponse:
    """An open response: its head, and its body as it comes."""

    def __init__(self, web: Web, response: Response, sent: str = "") -> None:
        self._web = web
        self.response = response
        self._sent = sent  # the `Authorization` of its request
        self.status = response.status
        self.header = response.header

    @property
    def content_type(self) -> str:
        return self._redacted(self.header("content-type") or "").partition(";")[0].strip().lower()

    @cached_property
    def chunks(self) -> AsyncGenerator[bytes]:
        """The body in pieces, for whoever reads on."""
        return self._chunks()

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """What `chunks` gives; a broken connection is a LostError."""
        try:
            async for chunk in self.response.chunks():
                yield chunk
        except WebError as error:
            raise self._web.lost(error) from error

    async def body(self) -> bytes:
        """The whole body, if it is within the limit."""
        try:
            return await self.response.body(self._web.limits.message_bytes)
        except WebError as error:
            raise self._web.lost(error) from error

    def refusal(self, before: str | None) -> Refusal:
        """What a status of 401 or 403 asks for."""
        challenges = tuple(self.response.all("www-authenticate"))
        nonce = self.header("dpop-nonce") or ""
        return Refusal(self.status, challenges, self._sent, before, nonce, self.response.peer)

    async def accepted(self, refusal: Callable[[OpenResponse], Awaitable[Exception]]) -> OpenResponse:
        """The response itself; for an error status, what `refusal` makes of it is raised, and the response closed."""
        if self.status < 400:
            return self
        try:
            raise await refusal(self)
        finally:
            await self.close()

    async def failure(self) -> CallError:
        """The error that an error status means."""
        body = self._web.redact(await self.body())
        reason = self._redacted(self.response.reason or "error")
        return status_error(
            self.status,
            reason,
            reason=reason,
            content_type=self.content_type,
            body=body[:MAX_ERROR_BODY].decode("utf-8", "replace") or None,
            retry_after=self.header("retry-after"),
        )

    def _redacted(self, text: str) -> str:
        return self._web.redact(text.encode()).decode()

    async def drain(self) -> None:
        """Read what is left, which is nothing or little, and close."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                async for _ in self.chunks:
                    pass
        finally:
            await self.close()

    async def close(self) -> None:
        if "chunks" in self.__dict__:
            await self.chunks.aclose()
        await self.response.close()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
