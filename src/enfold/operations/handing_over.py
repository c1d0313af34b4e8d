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
    from enfold.operations.operation import RunningTask

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


def hand_over(context: Context, task: Mapping[str, Any]) -> None:
    """Hand a task over by raising it, where the caller of this very call takes one; what a handler calls is waited for."""
    take = task_taker(context)
    taken = None if take is None else take(task)
    if taken is not None:
        raise HandedOver(taken)


def run_for(context: Context) -> RunningTask | None:
    """The task here whose work this very call does; what a handler calls is called again when it is run again."""
    return None if context.is_nested else context.task


def noted_task(context: Context) -> str | None:
    """The id of the server's task that an earlier attempt has begun: it is waited for, and nothing is called again."""
    task = run_for(context)
    return None if task is None else task.notes.get(SERVER_TASK)


async def note_task(context: Context, task_id: str) -> bool:
    """Note which task of a server does the work, for later attempts; False while that cannot be stored."""
    task = run_for(context)
    if task is not None and task.notes.get(SERVER_TASK) != task_id:
        try:
            await task.note(SERVER_TASK, task_id)
        except CallError:
            return False
    return True


def is_left(context: Context) -> bool:
    """Whether a server's task is to go on although nobody waits for it now: a later attempt of the task here will."""
    task = run_for(context)
    return task is not None and task.is_left and SERVER_TASK in task.notes


def task_question(context: Context) -> TaskQuestion | None:
    """What is asked about a task that was handed over; None in an ordinary call."""
    return None if context.meta is None else context.meta.get(TASK_QUESTION)
