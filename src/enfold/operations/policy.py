"""Policies: limits per caller, and the treatment of results, arguments and errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from enfold.errors import CallError
from enfold.operations.access import Identity

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations.context import Context
    from enfold.operations.spec import OperationSpec


_MAX_CALLERS: Final = 1_000  # whose rate is remembered before those that may call again are forgotten


class CallLimits:
    """The calls of each identity; callers without one are counted together. What is None is without limit."""

    def __init__(self, *, at_once: int | None = None, per_second: float | None = None) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._running: dict[str, int] = {}
        # When the next call would be due if an identity's calls were evenly spread: a second's calls may come at once.
        self._due: dict[str, float] = {}

    def acquire(self, identity: Identity | None) -> str:
        """Count a call until `release`, which takes the answer; one too many is RESOURCE_EXHAUSTED, with the time to wait."""
        caller = "" if identity is None else identity.id
        if self._at_once is not None and self._running.get(caller, 0) >= self._at_once:
            raise _exhausted(f"{self._at_once} calls at once", "calls_at_once", 1.0)
        if self._per_second is not None:
            self._check_rate(caller, self._per_second)
        self._running[caller] = self._running.get(caller, 0) + 1
        return caller

    def release(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]

    def _check_rate(self, caller: str, per_second: float) -> None:
        now = time.monotonic()
        due, ahead = max(self._due.get(caller, now), now), max(1.0, 1.0 / per_second)
        wait = due + 1.0 / per_second - now - ahead
        if wait > 1e-9:
            raise _exhausted(f"{per_second:g} calls per second", "calls_per_second", wait)
        if len(self._due) >= _MAX_CALLERS:
            self._due = {name: each for name, each in self._due.items() if each > now}
        self._due[caller] = due + 1.0 / per_second


def _exhausted(most: str, reason: str, wait: float) -> CallError:
    details = {"reason": reason, "retry_after": int(wait) + 1}
    return CallError("RESOURCE_EXHAUSTED", f"The limit of {most} per caller is reached: retry later", details)


Normalize: TypeAlias = Literal["repair", "typebox", "off"]


class CallPayload(Protocol):
    """What one call gives, told to a `PayloadLog` step by step; no method of it raises."""

    def take(self, envelope: ResponseEnvelope[Any]) -> None:
        """Record the result, or the next item of a stream."""

    def fail(self, error: CallError) -> None:
        """Record the failure."""

    def end(self) -> None:
        """End the run; the call is reported afterwards."""


class PayloadLog(Protocol):
    """Keeps what calls are given and give, for their operator."""

    def begin(self, spec: OperationSpec, input: Any, context: Context) -> CallPayload:
        """Begin to record a call with this input."""


class Policy(msgspec.Struct, frozen=True):
    """How calls are treated. A field that is None is taken from the registry. Fields with a description are configuration keys."""

    normalize: Annotated[
        Normalize | None, Meta(description="what happens to results that do not match their schema")
    ] = None
    strict_output: Annotated[
        bool | None, Meta(description="a result that still does not match its schema is an error")
    ] = None
    coerce: Annotated[
        bool | None,
        Meta(description="convert text arguments to numbers and booleans where the schema asks for them"),
    ] = None
    extras: Annotated[
        Literal["strip", "keep"] | None,
        Meta(description="whether properties that a schema does not name are removed"),
    ] = None
    expose_errors: bool | None = None
    raise_on_error: bool | None = None  # whether nested calls raise where an MCP server's tool says that it failed
    detect: Annotated[
        Literal["all", "instances"] | None,
        Meta(description="whether a mapping that looks like an envelope is treated as one"),
    ] = None
    limits: CallLimits | None = None  # of what callers from outside may do
    payloads: PayloadLog | None = None  # keeps arguments and results of calls; None keeps nothing

    def __post_init__(self) -> None:
        if self.normalize not in (None, "repair", "typebox", "off"):
            raise ValueError(f"Unknown normalize policy {self.normalize!r}: use repair, typebox or off")
        if self.extras not in (None, "strip", "keep"):
            raise ValueError(f"Unknown extras policy {self.extras!r}: use strip or keep")
        if self.detect not in (None, "all", "instances"):
            raise ValueError(f"Unknown detect policy {self.detect!r}: use all or instances")

    def chosen(self) -> Policy:
        """Return what differs from the defaults, without the limits and the payload log of an application."""
        fields = (name for name in Policy.__struct_fields__ if name not in ("limits", "payloads"))
        given = ((name, getattr(self, name)) for name in fields)
        return Policy(**{name: value for name, value in given if value != getattr(DEFAULT_POLICY, name)})

    def over(self, base: Policy) -> Policy:
        """Return this policy, with unset fields taken from the base."""
        chosen = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        return msgspec.structs.replace(base, **chosen) if chosen else base


INHERIT: Final = Policy()
DEFAULT_POLICY: Final = Policy("repair", False, True, "strip", True, False, "all")
