"""`/metrics` as an ASGI app: the counts of calls in the format of Prometheus. Mount it in `to_http`; it checks the caller's scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from enfold.auth.challenges import no_identity
from enfold.errors import CallError, missing_package
from enfold.observability.metrics import CallCounts, CountsSnapshot, combined
from enfold.operations import Identity
from enfold.operations.access import may_list
from enfold.runtime.application import Lifetime
from enfold.runtime.reserved import READERS
from enfold.surfaces.asgi import (
    IDENTITY,
    JSON,
    ASGIApp,
    Header,
    Receive,
    Scope,
    Send,
    answer_other,
    header_table,
    respond,
)
from enfold.surfaces.responses import encode_failure, error_headers, not_allowed, status_of

Others: TypeAlias = Callable[[], Awaitable[Iterable[CountsSnapshot]]]

_METHODS = ("GET", "HEAD")


def to_metrics(counts: CallCounts, *, has_identities: bool, others: Others | None = None) -> ASGIApp:
    """Serve counts; with `has_identities` the scope `enfold:read` is needed. `others` gives the counts of other processes."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await answer_other(scope, receive, send, Lifetime())  # there is nothing to open
            return
        try:
            _check(scope, has_identities=has_identities)
            given = [counts.snapshot(), *(await others() if others is not None else ())]
            text, kind = _text(combined(given), header_table(scope).get(b"accept", b"").decode("latin-1"))
        except CallError as error:
            await _refuse(scope, send, error)
            return
        headers: list[Header] = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        await respond(send, 200, text, headers, is_head=scope["method"] == "HEAD")

    return app


def _check(scope: Scope, *, has_identities: bool) -> None:
    if scope["method"] not in _METHODS:
        raise not_allowed(scope["method"], _METHODS)
    identity: Identity | None = scope.get(IDENTITY)
    if has_identities and identity is None:
        raise no_identity()
    if identity is not None and not may_list(READERS, identity):
        raise CallError("ACCESS_DENIED", "/metrics needs the scope enfold:read")


def _text(counts: CountsSnapshot, accept: str) -> tuple[bytes, str]:
    try:
        from enfold.observability.prometheus import written  # which needs prometheus-client
    except ModuleNotFoundError:
        raise missing_package("/metrics needs prometheus-client", "metrics") from None
    return written(counts, accept)


async def _refuse(scope: Scope, send: Send, error: CallError) -> None:
    status = status_of(error, None, has_identity=scope.get(IDENTITY) is not None)
    body = encode_failure({"error": error.message})
    await respond(send, status, body, [JSON, *error_headers(error, status)], is_head=scope["method"] == "HEAD")
