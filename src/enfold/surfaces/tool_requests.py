"""Handles an `mcp.request.v0.1`: its operation and arguments, and the response in the caller's preferences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.formats.mcp_envelope_v0_1 import ToolRequest, read_request, write_answer
from enfold.mcp.offers import find_by_tool_name
from enfold.operations import Context, Identity, OperationSpec
from enfold.operations.access import may_list
from enfold.operations.context import Invocation
from enfold.provenance.records import Artifact, ArtifactRef
from enfold.runtime.registry import Registry

if TYPE_CHECKING:
    from enfold.provenance import Recorder

OpenArtifacts = Callable[[Iterable[ArtifactRef]], Iterable[ArtifactRef | Artifact]]


class RequestCall:
    """One request, read: a surface runs `spec.id` with `input` under `context`, and sends what `write` gives."""

    def __init__(
        self,
        registry: Registry,
        wire: Any,
        *,
        adapter: str,
        identity: Identity | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        inline: bool = False,
        recorder: Recorder | None = None,
        open_artifacts: OpenArtifacts = iter,
    ) -> None:
        """`open_artifacts` turns references into artifacts for callers on this machine."""
        self._started = time.monotonic()
        self._took: int | None = None
        self._adapter = adapter
        self._request: ToolRequest = read_request(wire)
        self.spec: OperationSpec = find_by_tool_name(registry, self._request.tool, identity)
        if may_list(self.spec.access_control, identity):  # Who may not see it does not learn its version either.
            _check_version(self._request, self.spec)
        self.input = self._request.input
        self.context = Context(
            request_id=request_id,
            identity=identity,
            timeout=timeout,
            inline=inline,
            invocation=Invocation(preferences=self._request.preferences, artifacts=self._request.artifacts),
        )
        if recorder is not None:
            self.context.recording = recorder.begin(
                self._request.capture,
                operation=self.spec,
                adapter=adapter,
                identity=identity.id if identity else "",
                writer=self,
                artifacts=open_artifacts(self._request.artifacts),
                deterministic=self._request.preferences.deterministic,
            )

    # The two verbs of a format, because a recording writes the answer first, to report it as it leaves.

    def write(self, envelope: ResponseEnvelope[Any], _: OperationSpec | None = None, /) -> dict[str, Any]:
        """Write the response as the caller prefers; an envelope that the tool returned is passed through."""
        return self._write(envelope)

    def write_error(self, error: CallError, _: str = "", /) -> dict[str, Any]:
        """Write a failure like `write`."""
        return self._write(error)

    def _write(self, outcome: ResponseEnvelope[Any] | CallError) -> dict[str, Any]:
        if self._took is None:  # Measured once: an answer that is written again must be as long as the first.
            self._took = int((time.monotonic() - self._started) * 1000)
        facts = {"adapter": self._adapter, "request_id": self.context.request_id, "duration_ms": self._took}
        return write_answer(outcome, self._request, self.spec, **facts)


def _check_version(request: ToolRequest, spec: OperationSpec) -> None:
    if request.version is None or request.version == spec.version:
        return
    told = f"{spec.id} is of version {spec.version}, not {request.version}: omit tool.version, or pass this one"
    raise invalid_argument("tool.version", "constraint", spec.version, told)
