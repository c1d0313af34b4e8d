"""A task of another server that a caller takes over instead of a result: who takes one, and what is asked about it later.

Both travel in the meta of a context: a surface offers to take a task, a source hands one over. Where the call is run as a
task here, nobody takes the other over: the task here notes which one does its work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.operations.context import Context

# In the meta of a context: what makes a handle of another server's task, and the question about a task handed over.
TAKES_TASK: Final = "enfold/takes-task"
TASK_QUESTION: Final = "enfold/task-question"

# The note of a task here that names the task of the server that does its work.
SERVER_TASK: Final = "enfold/server-task"

# Makes what the caller gets of a task in MCP's words; None of one that no handle can be made of.
TakeTask: TypeAlias = Callable[[Mapping[str, Any]], Any]


class HandedOver(CallError):  # noqa: N818  # it is no error, it only travels like one
    """The call goes on at another server, and its caller follows it there; `task` is what they get."""

    is_final = False

    def __init__(self, task: Any = None) -> None:
        super().__init__("HANDED_OVER", "The call goes on as a task of another server")
        self.task = task


class TaskQuestion(msgspec.Struct):
    """What is asked about a task that was handed over, of the operation that it was begun with.

    Its result is that of the call once it is there; until then it is raised as `HandedOver`.
    """

    task_id: str  # as its server knows it
    answers: Mapping[str, Any] | None = None  # to give first
    cancels: bool = False  # whether to end it first
    told: Mapping[str, Any] | None = None  # what its server tells of it, once it has


def task_taker(context: Context) -> TakeTask | None:
    """What takes the task of a server for the caller of this very call; None where nobody does."""
    return None if context.meta is None or context.is_nested else context.meta.get(TAKES_TASK)


def task_question(context: Context) -> TaskQuestion | None:
    """What is asked about a task that was handed over; None in an ordinary call."""
    return None if context.meta is None else context.meta.get(TASK_QUESTION)
