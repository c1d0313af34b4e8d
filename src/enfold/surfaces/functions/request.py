"""One request as HTTP and CGI both have it, and the answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from enfold.formats import Format
from enfold.operation import Identity, OperationSpec, RecordedRun, new_request_id

__all__ = ["FunctionAnswer", "FunctionRequest", "RequestBody", "id_header"]


class RequestBody(Protocol):
    """Where the body of a request comes from."""

    async def body(self, limit: int) -> bytes | bytearray:
        """The whole body; PAYLOAD_TOO_LARGE where it is larger than the limit."""


class FunctionAnswer(msgspec.Struct, frozen=True):
    """What goes back: JSON, a status, and headers besides those that every answer has."""

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
    identity: Identity | None = None
    operation: OperationSpec | None = None
    recording: RecordedRun | None = None  # of this call, where it is recorded
    # The caller's own id, or one of ours once somebody needs it; until then None.
    request_id: str | None = None

    def run_header(self) -> list[tuple[bytes, bytes]]:
        """The header that tells the caller under which run id the call was recorded."""
        kept = self.recording is not None and self.recording.is_kept
        return [(b"enfold-run-id", self.recording.run_id.encode())] if self.recording and kept else []

    def known_id(self) -> str:
        """The id of this request, for its context, its log and its answer."""
        if self.request_id is None:
            self.request_id = new_request_id()
        return self.request_id


def id_header(request: FunctionRequest) -> tuple[bytes, bytes]:
    return b"x-request-id", request.known_id().encode()
