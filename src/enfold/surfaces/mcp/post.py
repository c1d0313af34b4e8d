"""A POST of a client: its message is read, and answered by the rules of its revision."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Final

from enfold.auth.challenges import refused_token
from enfold.auth.tokens import address_of
from enfold.errors import CallError
from enfold.mcp.headers import check_headers
from enfold.mcp.json_rpc import (
    CAPABILITIES_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    AnyResponse,
    ProtocolError,
    RPCErrorResponse,
    RPCMessage,
    encode,
    error_response,
    parse,
    parse_batch,
)
from enfold.mcp.revisions import HANDSHAKE
from enfold.surfaces.asgi import JSON, late_body
from enfold.surfaces.limits import Limits
from enfold.surfaces.mcp.exchange import STATELESS_METHODS, Caller, ClientExchange, read_caller
from enfold.surfaces.mcp.request import EVENTS, MCPRequest
from enfold.surfaces.mcp.results import protocol_error
from enfold.surfaces.mcp.sessions import EventStream, HTTPSession
from enfold.surfaces.request import is_json
from enfold.surfaces.responses import check_length, not_acceptable, unsupported_body

_IN_SESSIONS: Final = frozenset(revision.name.encode() for revision in HANDSHAKE)

# The HTTP status of each error of the protocol.
STATUSES: Final = {
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}


async def answer_post(request: MCPRequest) -> None:
    """Read the message of a request, and answer it unless its client cancels it or disconnects."""
    headers, max_body = request.headers, request.endpoint.max_body
    _check_types(headers.get(b"content-type", b""), headers.get(b"accept", b"*/*"))
    check_length(headers, max_body)
    request.break_silence = request.begin_heartbeats
    request.begin()
    try:
        body = await request.body(max_body)
        request.size = len(body)
        if body.startswith(b"["):
            await _answer_batch(request, body)
            return
        message = parse(body)
        meta = message.meta
        if _is_stateless(request, message, meta):
            await _answer_stateless(request, message, meta)
        elif message.method == "initialize" and message.is_request:
            await _initialize(request, message, meta)
        else:
            await _answer_in_session(request, message, meta)
    except asyncio.CancelledError:
        await _end_unanswered(request)
    finally:
        request.end()


@lru_cache(maxsize=64)  # clients send the same few values with every request
def _check_types(content_type: bytes, accept: bytes) -> None:
    """Reject a body of another type, or a client that accepts none of our responses."""
    if not is_json(content_type):
        raise unsupported_body("The body must be application/json")
    if not any(part in accept for part in (b"application/json", EVENTS, b"*/*", b"application/*")):
        raise not_acceptable("application/json or text/event-stream")


def _is_stateless(request: MCPRequest, message: RPCMessage, meta: dict[str, Any]) -> bool:
    """Whether a message belongs to a revision without a handshake: by its `_meta`, its method or its header."""
    if VERSION_KEY in meta or message.method in STATELESS_METHODS:
        return True
    said = request.headers.get(b"mcp-protocol-version")
    return said is not None and message.method != "initialize" and said not in _IN_SESSIONS


def _exchange(request: MCPRequest, message: RPCMessage, meta: dict[str, Any], caller: Caller) -> ClientExchange:
    return ClientExchange(
        message.request_id,
        str(message.method),
        message.params,
        meta,
        caller,
        request.identity,
        request,
        request.endpoint.server.changes,
        request.headers,
        size=request.size,
    )


async def _end_unanswered(request: MCPRequest) -> None:
    """End a cancelled request without an answer; a cancellation that came from elsewhere is raised again."""
    ended = request.end()
    if ended is None:
        raise asyncio.CancelledError
    if ended == "late":
        raise late_body()
    if request.session is not None and request.session.is_over:
        message = "The session was closed before the response: initialize again"
        closed = protocol_error(CallError("ABORTED", message, {"reason": "session"}))
        await request.finish(error_response(request.message_id, closed))
    else:
        await request.abandon()


# --- without a handshake ------------------------------------------------------------------------------------------


async def _answer_stateless(request: MCPRequest, message: RPCMessage, meta: dict[str, Any]) -> None:
    """Answer a message that carries its client's version and capabilities."""
    if not message.is_request:
        # A client cancels by disconnecting: there is no notification we would act on, and no answer we wait for.
        await request.answer(202)
        return
    server = request.endpoint.server
    try:
        if VERSION_KEY in meta and CAPABILITIES_KEY in meta:
            check_headers(request.headers, message, meta[VERSION_KEY])
        exchange = _exchange(request, message, meta, read_caller(meta, server.text_clients))
        if message.method == "subscriptions/listen":
            await _listen(request, exchange)
            return
    except ProtocolError as error:
        error.request_id = message.request_id
        raise
    answer = await server.respond(exchange)
    status = STATUSES.get(answer.error.code, 200) if isinstance(answer, RPCErrorResponse) else 200
    await request.finish(answer, status)


async def _listen(request: MCPRequest, exchange: ClientExchange) -> None:
    """Send notifications of changes until the client disconnects, or the server stops."""
    stream, server, listening = EventStream(), request.endpoint.server, request.endpoint.listening
    server.changes.schedule = asyncio.get_running_loop().call_soon_threadsafe
    stop = await server.subscribe(exchange, stream.send)
    listening[stream] = server.subscription_end(exchange)
    try:
        refusal = error_response(exchange.id, protocol_error(refused_token()))
        with request.while_admitted(lambda: stream.send(refusal, is_last=True)):
            await request.carry(stream)
    finally:
        stop()
        del listening[stream]


# --- with a handshake ---------------------------------------------------------------------------------------------


async def _initialize(request: MCPRequest, message: RPCMessage, meta: dict[str, Any]) -> None:
    session = request.endpoint.sessions.open(request.identity, address_of(request.scope.get("client")))
    answer = await request.endpoint.server.respond(_exchange(request, message, meta, session))
    await request.answer(200, encode(answer), [JSON, (b"mcp-session-id", session.id.encode())])


async def _answer_in_session(request: MCPRequest, message: RPCMessage, meta: dict[str, Any]) -> None:
    caller = request.caller()
    session = caller if isinstance(caller, HTTPSession) else None
    if not message.is_request:
        if session is not None:
            session.receive(message)
        await request.answer(202)
        return
    exchange = _exchange(request, message, meta, caller)
    if session is not None:
        # The client may reconnect for its answer: to disconnect is not to cancel.
        request.outlives_client = True
        request.session, request.message_id = session, exchange.id
        session.running[exchange.id] = request.stop
    try:
        await request.finish(await request.endpoint.server.respond(exchange))
    finally:
        if session is not None:
            session.running.pop(exchange.id, None)


async def _answer_batch(request: MCPRequest, body: bytes | bytearray) -> None:
    """Answer a batch, which only the oldest revisions allow, with one array."""
    caller = request.caller()
    if not caller.revision.has_batches:
        raise ProtocolError(INVALID_REQUEST, "This revision does not support batches: send one message per request")
    server = request.endpoint.server
    answers: list[bytes] = []
    size, limits = 0, server.settings.limits
    for message in parse_batch(body, limits.batch_entries):
        if message.is_request:
            exchange = _exchange(request, message, message.meta, caller)
            answer = await server.respond(exchange) if size <= limits.batch_bytes else _not_run(exchange, limits)
            await asyncio.sleep(0)  # a long batch does not block others
            answers.append(encode(answer))
            size += len(answers[-1])
        elif isinstance(caller, HTTPSession):
            caller.receive(message)
    await (request.answer(200, b"[%b]" % b",".join(answers), [JSON]) if answers else request.answer(202))


def _not_run(exchange: ClientExchange, limits: Limits) -> AnyResponse:
    """Return the response for a request of a batch that was not run because earlier responses are too long."""
    message = f"The responses to a batch exceed {limits.batch_bytes} bytes: send this request separately"
    error = CallError("PAYLOAD_TOO_LARGE", message, {"reason": "batch_bytes"})
    return error_response(exchange.id, protocol_error(error))
