"""`/metrics` as an ASGI app: the counts of calls, as Prometheus reads them. `to_http` mounts it; it checks who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from enfold.access import may_list
from enfold.errors import CallError
from enfold.identities.tokens import no_identity
from enfold.observing.counting import CallCounts, CountsSnapshot, combined
from enfold.operation import AccessControl, Identity
from enfold.surfaces.asgi.messages import IDENTITY, JSON, ASGIApp, Header, Receive, Scope, Send, header_table, respond
from enfold.surfaces.failures import error_headers, status_of
from enfold.surfaces.writing import encode_failure

__all__ = ["Others", "to_metrics"]

Others: TypeAlias = Callable[[], Awaitable[Iterable[CountsSnapshot]]]

_READERS = AccessControl(required_scopes=("enfold:read",))
_METHODS = ("GET", "HEAD")


def to_metrics(counts: CallCounts, *, has_identities: bool, others: Others | None = None) -> ASGIApp:
    """Serve counts; with `has_identities` the scope `enfold:read` is needed. `others` gives the counts of other processes."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _live(scope, receive, send)
            return
        try:
            _check(scope, has_identities=has_identities)
            given = [counts.snapshot(), *(await others() if others is not None else ())]
            text, kind = _text(combined(given), header_table(scope).get(b"accept", b"").decode("latin-1"))
        except CallError as error:
            await _refuse(scope, send, error)
            return
        headers: list[Header] = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        await respond(send, 200, b"" if scope["method"] == "HEAD" else text, headers)

    return app


def _check(scope: Scope, *, has_identities: bool) -> None:
    if scope["method"] not in _METHODS:
        raise CallError("VALIDATION_ERROR", f"The method is not allowed here: use {', '.join(_METHODS)}")
    identity: Identity | None = scope.get(IDENTITY)
    if has_identities and identity is None:
        raise no_identity()
    if identity is not None and not may_list(_READERS, identity):
        raise CallError("ACCESS_DENIED", "/metrics needs the scope enfold:read")


def _text(counts: CountsSnapshot, accept: str) -> tuple[bytes, str]:
    try:
        from enfold.observing.exposition import written  # which needs prometheus-client
    except ModuleNotFoundError:
        raise CallError(
            "UNAVAILABLE", "/metrics needs prometheus-client: pip install 'enfold[metrics]'", retryable=False
        ) from None
    return written(counts, accept)


async def _refuse(scope: Scope, send: Send, error: CallError) -> None:
    status = status_of(error, None, has_identity=scope.get(IDENTITY) is not None)
    status = 405 if error.code == "VALIDATION_ERROR" else status
    headers = [(name.encode(), value.encode()) for name, value in error_headers(error, status)]
    await respond(send, status, encode_failure({"error": error.message}), [JSON, *headers])


async def _live(scope: Scope, receive: Receive, send: Send) -> None:
    """There is nothing to open and nothing to close; a websocket is refused."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
    await receive()
    await send({"type": "websocket.close", "code": 1008})
