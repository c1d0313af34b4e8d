"""One request as HTTP and CGI both have it, the answer to it, and what is told of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from enfold.envelope import ResultWarning
from enfold.formats import Format
from enfold.observing.call_record import OK, ended_call
from enfold.operation import Identity, Operation, OperationSpec, new_request_id

if TYPE_CHECKING:
    from enfold.observing.call_record import Trace
    from enfold.observing.observers import Observers
    from enfold.operation import Context
    from enfold.operation.ports import RecordedRun


class RequestBody(Protocol):
    """Where the body of a request comes from."""

    async def body(self, limit: int) -> bytes | bytearray:
        """The whole body; PAYLOAD_TOO_LARGE where it is larger than the limit."""


class FunctionAnswer(msgspec.Struct, frozen=True):
    """What goes back: a body, which is JSON unless a header says otherwise, a status, and headers besides those of every answer."""

    body: bytes
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()


class FunctionRequest(msgspec.Struct, eq=False):
    """What is asked, by whom, and in which format the answer goes."""

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    source: RequestBody
    format: Format
    has_options: bool = True  # False where no header of it is one of `OPTION_HEADERS`
    identity: Identity | None = None
    operation: Operation | None = None
    recording: RecordedRun | None = None  # of this call, where it is recorded
    context: Context | None = None  # of this call, where it needs one
    # The caller's own id, or one of ours once somebody needs it; until then None.
    request_id: str | None = None
    # What observers are told of the call: the size of its body, how it ended.
    size: int | None = None
    sent: int | None = None  # of a stream: bytes, and items
    items: int | None = None
    code: str = OK
    warnings: Sequence[ResultWarning] = ()

    @property
    def spec(self) -> OperationSpec | None:
        return None if self.operation is None else self.operation.spec

    def run_header(self) -> list[tuple[bytes, bytes]]:
        """The header that tells the caller under which run id the call was recorded."""
        if self.recording is None or not self.recording.is_kept:
            return []
        return [(b"enfold-run-id", self.recording.run_id.encode())]

    def reply_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that the call adds to its answer: its run id, and what handler and middleware have set."""
        added = {} if self.context is None else self.context.reply_headers or {}
        return [*self.run_header(), *((name.encode(), value.encode()) for name, value in added.items())]

    def known_id(self) -> str:
        """The id of this request, for its context, its log and its answer."""
        if self.request_id is None:
            self.request_id = new_request_id()
        return self.request_id


def id_header(request: FunctionRequest) -> tuple[bytes, bytes]:
    return b"x-request-id", request.known_id().encode()


def tell_end(
    observers: Observers,
    request: FunctionRequest,
    surface: str,
    began: float,
    trace: Trace | None,
    answer: FunctionAnswer | None,
) -> None:
    """Tell the observers of a request that has ended, unless it got a page; `began` is of `time.perf_counter()`."""
    if (request.operation is None and request.code == OK) or request.method == "OPTIONS":
        return
    record = ended_call(
        surface,
        request.operation,
        request.code,
        began,
        request.request_id or request.known_id(),
        None,
        request.identity,
        request.warnings,
        request.size,
        request.sent if answer is None else len(answer.body),
        request.items,
    )
    outcome = None
    if trace is not None:
        from enfold.observing.conventions import http_outcome  # where somebody traces

        outcome = http_outcome(request.method, record, None if answer is None else answer.status)
    observers.tell(record, trace, outcome)
