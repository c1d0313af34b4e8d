"""MCP over HTTP: streamable HTTP, the older transport with a separate event stream, and the requests both send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.errors import CallError
from enfold.http_client import Request, Response, WebError, open_client
from enfold.http_client.client import follow
from enfold.http_client.errors import status_error
from enfold.http_client.urls import joined, same_place, split_url
from enfold.mcp.headers import NAMED_BY, write_value
from enfold.mcp.json_rpc import OutgoingMessage, ProtocolError, RPCRequest, encode
from enfold.mcp.messages import read_error
from enfold.sources.decoders import EventDecoder, EventTooLargeError, ServerSentEvent
from enfold.sources.mcp.callers import OutgoingCall
from enfold.sources.mcp.failures import LostError, closed_connection, message_too_large
from enfold.sources.mcp.session import Session
from enfold.sources.mcp.settings import Address, ServerSettings
from enfold.sources.secrets import current

if TYPE_CHECKING:
    from enfold.http_client import AnyClient

MAX_ERROR_BODY: Final = 2000
REDIRECTS: Final = 3
MAX_LOGINS: Final = 3  # for one request
DRAIN_SECONDS: Final = 1.0  # for the end of a stream to come, so that its connection can be used again
_FOLLOWED: Final = (307, 308)
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
STREAM_SECONDS: Final = 0.5  # that a session waits for its own stream
RECONNECT_SECONDS: Final = 1.0  # before a broken stream is resumed, where the server does not say


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


class Web:
    """The client for one address, and the user's own client where they gave one."""

    def __init__(self, address: Address, settings: ServerSettings) -> None:
        self.name = settings.name
        self.limits = settings.limits
        self.url = address.url
        self._fixed = address.headers
        self._given = settings.connection.headers
        self._login = settings.login
        # Headers that never change are put together once.
        self._static: dict[str, str] | None = None
        if self._login is None and isinstance(self._given, Mapping):
            self._static = _lower({**self._fixed, **self._given})
        self._secrets = settings.secrets
        self.redact = self._secrets.redact_bytes
        self._given_client = settings.connection.client
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
        """An open reply, whatever its status; the caller closes it. `waits` allows for as long as a login takes."""
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
            refused = "rejected the credentials" if refusal.sent else "requires a login (OAuth)"
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
            raise self.lost(error, is_silent=True) from error
        if not url and response.url != request.url:
            self.url = response.url
        return OpenResponse(self, response, sent)

    def _check_same_server(self, moved: str, status: int) -> bool:
        if not same_place(self.url, moved):
            details = {"reason": "redirect", "status": status}
            raise CallError(
                "EXECUTION_ERROR", f"{self.name} redirects to another server, which is not allowed", details
            )
        return True

    async def _own_headers(self, method: str, url: str) -> dict[str, str]:
        own = _lower({**self._fixed, **await current(self._given)})
        return own if self._login is None else {**own, **await self._login.headers(method, url)}

    def lost(self, error: WebError, *, is_silent: bool = False) -> Exception:
        """What a failure of the client means for the request it was to send."""
        if error.kind == "redirect":
            return CallError(
                "EXECUTION_ERROR", f"{self.name} redirects too many times: {error.sentence}", {"reason": "redirects"}
            )
        if error.kind == "unsendable":
            return CallError("VALIDATION_ERROR", f"The request to {self.name} cannot be sent: {error.sentence}")
        if error.kind == "too_large":
            return message_too_large(self.limits.message_bytes)
        fate = "closed the connection early" if error.was_sent else "cannot be reached"
        failure = CallError("UNAVAILABLE", f"{self.name} {fate}: {error.sentence}", {"reason": "connection"})
        return LostError(failure, may_have_run=error.was_sent, is_silent=is_silent)

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
        self.chunks = self._chunks()  # the body in chunks

    @property
    def content_type(self) -> str:
        return self._redacted(self.header("content-type") or "").partition(";")[0].strip().lower()

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes; a broken connection is a LostError."""
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

    async def failure(self) -> CallError:
        """The error that an error status means; closes the response."""
        try:
            body = self._web.redact(await self.body())
        finally:
            await self.close()
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
        await self.chunks.aclose()
        await self.response.close()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


# --- streamable HTTP ------------------------------------------------------------------------------------------------


class HTTPConnection:
    """The connection to one address."""

    has_call_streams = True

    def __init__(self, web: Web, session: Session) -> None:
        self._web = web
        self._session = session
        session.connection = self
        self._limits = web.limits
        self._session_id: str | None = None
        self.is_open = True

    async def send_call(self, call: OutgoingCall) -> None:
        """Post a request, and read the reply until the call has its answer."""
        message = encode(RPCRequest(call.id, call.method, call.params))
        reply = await self._open("POST", self._headers(call), message)
        if reply.content_type == EVENTS:
            await self._take_events(reply, call)
        else:
            await self._take_body(reply, call)

    async def send(self, message: OutgoingMessage) -> None:
        """Post a message that has no answer."""
        await (await self._open("POST", self._common(), encode(message))).drain()

    def cancel(self, message: OutgoingMessage) -> None:
        """Send that a caller has given up; in the newest revision the response tells it, which is closed."""
        if self.is_open and not self._session.is_stateless:
            self._session.spawn(self.send(message))

    async def listen(self) -> None:
        """Open the stream on which a server with sessions speaks unasked, and keep it open."""
        is_open = asyncio.Event()
        self._session.spawn(self._listen(is_open))
        with suppress(TimeoutError):  # a server may send nothing on it until there is an event
            async with asyncio.timeout(STREAM_SECONDS):
                await is_open.wait()

    async def close(self) -> None:
        self.is_open = False
        if self._session_id is not None:
            with suppress(Exception):  # a session that cannot be ended ends by itself
                async with asyncio.timeout(DRAIN_SECONDS):
                    await (await self._web.send("DELETE", self._common())).close()
        await self._web.close()

    # --- sending

    def _common(self) -> dict[str, str]:
        headers = {"content-type": JSON, "accept": f"{JSON}, {EVENTS}"}
        if self._session.revision is not None:
            headers["mcp-protocol-version"] = self._session.revision.name
        if self._session_id is not None:
            headers["mcp-session-id"] = self._session_id
        return headers

    def _headers(self, call: OutgoingCall) -> dict[str, str]:
        headers = self._common()
        if self._session.is_stateless:
            headers["mcp-method"] = call.method
            name = getattr(call.params, NAMED_BY.get(call.method, "").replace("taskId", "task_id"), None)
            if name is not None:
                headers["mcp-name"] = write_value(name)
        return {**headers, **call.headers}

    async def _open(
        self, method: str, headers: dict[str, str], body: bytes | None = None, *, waits: bool = False
    ) -> OpenResponse:
        """An open reply; what an error status means is raised."""
        try:
            reply = await self._web.send(method, headers, body, waits=waits)
        except LostError as lost:
            if not lost.may_have_run:  # nothing listens at the address
                self._lose(lost.error)
            raise
        self._session_id = reply.header("mcp-session-id") or self._session_id
        if reply.status >= 400:
            raise await self._refusal(reply)
        return reply

    async def _refusal(self, reply: OpenResponse) -> Exception:
        """What an error status means: a session that is over, an error of the protocol, or of HTTP."""
        failure = await reply.failure()
        body = str(failure.details.get("body", ""))
        is_session_over = reply.status == 404 or (reply.status == 400 and "session" in body.lower())
        if self._session_id is not None and is_session_over:
            self._session_id = None
            self._lose(failure)
            return LostError(failure, may_have_run=False)
        return _rpc_error(body) or failure

    def _lose(self, why: CallError) -> None:
        self.is_open = False
        self._session.on_loss(why.message)

    # --- receiving

    async def _take_body(self, reply: OpenResponse, call: OutgoingCall) -> None:
        """Read the one message of a reply, which is the answer of the call."""
        try:
            body = await reply.body()
        finally:
            await reply.close()
        self._session.take_text(body, call)
        if not call.answer.done() and not self.is_open:
            raise LostError(closed_connection(self._web.name), may_have_run=True)
        if not call.answer.done():
            details = {"status": reply.status, "content_type": reply.content_type}
            raise CallError("DATA_LOSS", f"{self._web.name} responded with something that is not a message", details)

    async def _take_events(self, reply: OpenResponse, call: OutgoingCall) -> None:
        """Read the events of a call; a stream that breaks off is resumed where its server allows that."""
        decoder = EventDecoder(max_event=self._limits.message_bytes)
        failures = 0
        while True:
            failures = 0 if await self._read_events(reply, decoder, call) else failures + 1
            if call.answer.done():
                return
            if not decoder.last_event_id or failures > self._limits.reconnects:
                broken = CallError(
                    "UNAVAILABLE",
                    f"{self._web.name} closed the connection before its response",
                    {"reason": "connection"},
                )
                raise LostError(broken, may_have_run=True)
            if call.caller is not None:
                call.caller.stream_closed()
            reply = await self._resume(decoder)

    async def _read_events(self, reply: OpenResponse, decoder: EventDecoder, call: OutgoingCall | None) -> bool:
        """Take in events until the call is answered or the stream ends; whether there were any."""
        has_any = False
        try:
            async for chunk in reply.chunks:
                for event in decoder.feed(chunk):
                    has_any = True
                    self._take_event(event, call)
                if call is not None and call.answer.done():
                    self._session.spawn(reply.drain())
                    return True
        except EventTooLargeError:
            await reply.close()
            raise message_too_large(self._limits.message_bytes) from None
        except LostError:
            pass  # broken off: the waiting call reports it
        except BaseException:
            await reply.close()
            raise
        await reply.close()
        return has_any

    def _take_event(self, event: ServerSentEvent, call: OutgoingCall | None) -> None:
        if event.event == "endpoint":  # the first of the oldest transport, where others refuse a post by their status
            details = {"status": 405, "reason": "transport"}
            raise CallError("EXECUTION_ERROR", f"{self._web.name} uses the HTTP+SSE transport", details)
        self._session.take_text(event.data.encode("utf-8", "surrogatepass"), call)

    async def _resume(self, decoder: EventDecoder) -> OpenResponse:
        await asyncio.sleep(RECONNECT_SECONDS if decoder.retry is None else decoder.retry / 1000)
        headers = {**self._common(), "accept": EVENTS}
        if decoder.last_event_id:
            headers["last-event-id"] = decoder.last_event_id
        return await self._open("GET", headers, waits=True)

    async def _listen(self, is_open: asyncio.Event) -> None:
        decoder = EventDecoder(max_event=self._limits.message_bytes)
        decoder.retry = 0
        try:
            # A server without this stream answers with an error status: give up.
            while self.is_open and (reply := await self._resume(decoder)).content_type == EVENTS:
                is_open.set()
                decoder.retry = decoder.retry or None
                await self._read_events(reply, decoder, None)
        finally:
            is_open.set()


def _rpc_error(body: str) -> ProtocolError | None:
    """The error of the protocol that a body holds; its id may be null, where it answers no request in particular."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) and "jsonrpc" in found else None
    return read_error(error) if isinstance(error, dict) else None


# --- the older transport: HTTP with SSE -----------------------------------------------------------------------------


async def open_event_stream(web: Web, session: Session) -> None:
    """Connect the session to the stream, whose first event names the address for requests; an address without one is not such a server."""
    try:
        await SSEConnection(web, session).open()
    except BaseException:
        await session.close()
        raise


class SSEConnection:
    """The connection over one event stream."""

    has_call_streams = False

    def __init__(self, web: Web, session: Session) -> None:
        self._web = web
        self._session = session
        session.connection = self
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_open = True

    async def open(self) -> None:
        """Open the stream, and wait for its first event."""
        reply = await self._web.send("GET", {"accept": EVENTS})
        if reply.status >= 400 or reply.content_type != EVENTS:
            raise await reply.failure()
        self._session.spawn(self._read(reply))
        await asyncio.shield(self._endpoint)

    async def send_call(self, call: OutgoingCall) -> None:
        """Post a request, whose answer comes on the stream."""
        await self.send(RPCRequest(call.id, call.method, call.params))

    def cancel(self, message: OutgoingMessage) -> None:
        if self.is_open:
            self._session.spawn(self.send(message))

    async def close(self) -> None:
        self.is_open = False
        await self._web.close()

    async def _read(self, reply: OpenResponse) -> None:
        """Handle the events of the stream until it ends; then all waiting calls fail."""
        decoder = EventDecoder(max_event=self._web.limits.message_bytes)
        try:
            async for chunk in reply.chunks:
                for event in decoder.feed(chunk):
                    self._take(event.event, event.data)
        except (LostError, EventTooLargeError):
            pass  # reported below
        finally:
            self.is_open = False
            await reply.close()
            self._end(self._closed())

    def _take(self, kind: str, data: str) -> None:
        if kind != "endpoint":
            self._session.take_text(data.encode("utf-8", "surrogatepass"))
        elif not self._endpoint.done():
            self._set_endpoint(joined(self._web.url, data))

    def _set_endpoint(self, url: str) -> None:
        if same_place(url, self._web.url):
            self._endpoint.set_result(url)
        else:
            self._end(
                CallError(
                    "EXECUTION_ERROR", f"{self._web.name} sends its messages to another server, which is not allowed"
                )
            )

    def _closed(self) -> CallError:
        return CallError("UNAVAILABLE", f"{self._web.name} has closed its stream", {"reason": "connection"})

    def _end(self, error: CallError) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(LostError(error, may_have_run=False))
            self._endpoint.exception()
        self._session.fail_all(error)

    async def send(self, message: OutgoingMessage) -> None:
        if not self.is_open:
            raise LostError(self._closed(), may_have_run=False)
        url = await asyncio.shield(self._endpoint)
        reply = await self._web.send("POST", {"content-type": "application/json"}, encode(message), url)
        if reply.status >= 400:
            raise await self._refusal(reply)
        await reply.drain()

    async def _refusal(self, reply: OpenResponse) -> Exception:
        failure = await reply.failure()
        if reply.status in (400, 404):  # the session that this stream stands for is not known any more
            self.is_open = False
            return LostError(failure, may_have_run=False)
        return failure
