"""What other rooms plug into a call: the recording of a run, the task that runs, the log of payloads. Protocols, for types alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.errors import CallError
    from enfold.operation.context import Context
    from enfold.operation.spec import OperationSpec


class RecordedRun(Protocol):
    """One run that is being recorded: calls made inside it name it as their parent, and its outcome is told to it."""

    def nested(self) -> RecordedRun: ...

    @property
    def run_id(self) -> str: ...

    @property
    def is_kept(self) -> bool: ...

    async def keep_success(
        self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any], *, inline: bool = False
    ) -> ResponseEnvelope[Any]: ...

    async def keep_failure(
        self, spec: OperationSpec, input: Any, error: CallError, *, inline: bool = False
    ) -> dict[str, Any] | None: ...

    def request(self) -> dict[str, Any]: ...

    def wishes(self) -> dict[str, Any] | None: ...

    def recorded_elsewhere(self, wire: dict[str, Any] | None) -> None: ...

    def adopt(self, wire: Any) -> None: ...


class RunningTask(Protocol):
    """The task that a handler runs for, as the handler sees it."""

    @property
    def id(self) -> str:
        """The same in every attempt: who hands it to another system as its key has the effect there once."""

    @property
    def attempt(self) -> int:
        """How often the handler has been started for this task, this time included."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """What earlier attempts have noted."""

    @property
    def is_left(self) -> bool:
        """Whether the task goes on without this attempt: its worker stops, it is another's, or it waits for an answer."""

    async def note(self, key: str, value: Any) -> None:
        """Keep a JSON value for later attempts; it is stored when this returns."""


class CallPayload(Protocol):
    """What one call gives, told to a `PayloadLog` step by step; no method of it raises."""

    def take(self, envelope: ResponseEnvelope[Any]) -> None:
        """Its result, or the next item of a stream."""

    def fail(self, error: CallError) -> None:
        """How it failed."""

    def end(self) -> None:
        """It is over; whoever tells of the call comes after this."""


class PayloadLog(Protocol):
    """Keeps what calls are given and give, for their operator."""

    def begin(self, spec: OperationSpec, input: Any, context: Context) -> CallPayload:
        """A call with this input begins."""
