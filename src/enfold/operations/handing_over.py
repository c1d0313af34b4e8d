"""How a call ends that goes on as a task of the server behind it."""

from __future__ import annotations

from typing import Any

from enfold.errors import CallError


class HandedOver(CallError):  # noqa: N818  # it is no error, it only travels like one
    """The call goes on at another server, and its caller follows it there; `task` is what they get."""

    is_final = False

    def __init__(self, task: Any = None) -> None:
        super().__init__("HANDED_OVER", "The call goes on as a task of another server")
        self.task = task
