"""The extension `io.modelcontextprotocol/tasks` as values: its name, its declaration, its polling interval. No I/O."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

from enfold.mcp.json_rpc import fields_of

TASKS: Final = "io.modelcontextprotocol/tasks"
TASK_METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")
MAX_TASK_ID: Final = 4_096  # characters of the id of another's task

SHORTEST_POLL: Final = 0.02  # seconds
MAX_POLL: Final = 60.0
DEFAULT_POLL: Final = 1.0


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client with these capabilities takes a task as the answer to a call."""
    return isinstance(fields_of(capabilities.get("extensions")).get(TASKS), Mapping)


def with_tasks(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Add the tasks extension to the capabilities."""
    return {**capabilities, "extensions": {**fields_of(capabilities.get("extensions")), TASKS: {}}}


def without_tasks(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the tasks extension from the capabilities."""
    if not declares_tasks(capabilities):
        return dict(capabilities)
    others = {name: value for name, value in capabilities["extensions"].items() if name != TASKS}
    return {**capabilities, "extensions": others}


def poll_seconds(interval: Any, before: float = DEFAULT_POLL) -> float:
    """Seconds until the next poll of a task: its `pollIntervalMs`, within limits, or else `before`."""
    if not isinstance(interval, int | float) or isinstance(interval, bool) or interval <= 0:
        return before
    return min(max(interval / 1000, SHORTEST_POLL), MAX_POLL)


class StateSigner:
    """Signs state that a client keeps for us; `purpose` separates the uses of one secret."""

    def __init__(self, secret: bytes, purpose: bytes = b"") -> None:
        self._secret = secret
        self._purpose = purpose

    def sign(self, content: bytes) -> str:
        """Sign content as text of `A-Za-z0-9_-` and one dot, which `content_of` reads."""
        text = urlsafe_b64encode(content).rstrip(b"=")
        return f"{text.decode()}.{self._signature(text)}"

    def content_of(self, signed: str) -> bytes | None:
        """Return what was signed; None if the text was changed or signed with another secret."""
        from hmac import compare_digest  # few clients keep something for us

        text, _, signature = signed.encode("utf-8", "replace").rpartition(b".")
        if not compare_digest(signature, self._signature(text).encode()):
            return None
        return urlsafe_b64decode(text + b"=" * (-len(text) % 4))

    def _signature(self, text: bytes) -> str:
        import hmac  # as above

        return hmac.digest(self._secret, self._purpose + text, "sha256").hex()
