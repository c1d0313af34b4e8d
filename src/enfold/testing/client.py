"""The reply of every client, and its three methods. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack

import msgspec

from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import CallError
from enfold.formats import Format, find_format
from enfold.operations import Identity, OperationSpec

Input: TypeAlias = Mapping[str, Any]
Envelopes: TypeAlias = AsyncGenerator[ResponseEnvelope[Any]]


class Reply(msgspec.Struct, frozen=True):
    """The outcome of one call: an envelope or an error, and the surface's response."""

    envelope: ResponseEnvelope[Any] | None = None
    error: CallError | None = None
    status: int | None = None  # of HTTP, MCP and CGI; of the command line its exit code
    headers: Mapping[str, str] = {}  # with lower-case names
    wire: Any = None  # the JSON that the surface wrote

    @property
    def data(self) -> Any:
        """The data of a success; a failure is raised, so that a test cannot mistake it for None."""
        if self.error is not None:
            raise self.error
        return None if self.envelope is None else self.envelope.data

    @property
    def code(self) -> str | None:
        return None if self.error is None else self.error.code

    @property
    def message(self) -> str | None:
        return None if self.error is None else self.error.message

    @property
    def details(self) -> dict[str, Any]:
        """The details of a failure, if the surface and the format contain them."""
        return {} if self.error is None else self.error.details


class CallOptions(TypedDict, total=False):
    """The caller, None if anonymous, and the format of responses."""

    identity: Identity | None
    format: str | None


class CallRequest(msgspec.Struct, frozen=True):
    """One call as a test asks for it."""

    operation: str
    input: dict[str, Any]
    identity: Identity | None = None
    format: str | None = None

    @property
    def chosen_format(self) -> Format:
        """The format that the test names, else the one that says most."""
        return find_format(self.format or "envelope")


class Client(Protocol):
    """The methods of every client."""

    async def call(self, operation: str, input: Input | None = None, **asking: Unpack[CallOptions]) -> Reply:
        """Call a query or mutation; a failure is returned as a reply, too."""

    def subscribe(self, operation: str, input: Input | None = None, **asking: Unpack[CallOptions]) -> Envelopes:
        """Yield the items of a subscription; raise its failure. Surfaces without streams collect them first."""

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        """Return the ids of the operations that are visible to this caller."""


class SurfaceClient(ABC):
    """Methods shared by the clients; each implements one call, and streams if its surface has them."""

    async def call(self, operation: str, input: Input | None = None, **asking: Unpack[CallOptions]) -> Reply:
        return await self._call(CallRequest(operation, dict(input or {}), **asking))

    def subscribe(self, operation: str, input: Input | None = None, **asking: Unpack[CallOptions]) -> Envelopes:
        return self._subscribe(CallRequest(operation, dict(input or {}), **asking))

    @abstractmethod
    async def _call(self, request: CallRequest) -> Reply: ...

    async def _subscribe(self, request: CallRequest) -> Envelopes:
        for item in (await self._call(request)).data:
            yield local_envelope(item, request.operation)


def read_answer(status: int, headers: Mapping[str, str], wire: Any, format: Format) -> Reply:
    """Read the reply of an HTTP or CGI response; an error status with a success body fails the test."""
    try:
        envelope = read_wire(wire, format, headers.get("enfold-shape"))
    except CallError as error:
        code = headers.get("enfold-code", error.code)  # which not every format has a place for
        told = CallError(code, error.message, error.details, error.retryable)
        return Reply(None, told, status, headers, wire)
    if status >= 400:
        raise AssertionError(f"A response with status {status} reads as a success in format {format.name}: {wire}")
    return Reply(envelope, None, status, headers, wire)


def read_wire(wire: Any, format: Format, shape: str | None) -> ResponseEnvelope[Any]:
    """Read the envelope from what a surface wrote; `shape` is what it said about it."""
    return format.read(wire) if format.shape is None else format.read(wire, shape)


def round_trip(format: str | None) -> Callable[[ResponseEnvelope[Any], OperationSpec], ResponseEnvelope[Any]]:
    """Writes an envelope as JSON in a format and reads it again, for surfaces that hand envelopes over as they are."""
    if format is None:
        return lambda envelope, _: envelope
    found = find_format(format)

    def write_and_read(envelope: ResponseEnvelope[Any], spec: OperationSpec) -> ResponseEnvelope[Any]:
        shape = None if found.shape is None or envelope.is_error else found.shape(envelope, spec)
        return read_wire(msgspec.json.decode(msgspec.json.encode(found.write(envelope, spec))), found, shape)

    return write_and_read
