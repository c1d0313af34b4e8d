"""Durable calls: they return a handle immediately and survive a crash of the caller, the edge and the worker.

Stores have their own modules (`enfold.tasks.sqlite`, `enfold.tasks.nats`, `enfold.tasks.memory`); none is imported here.
"""

# Imports inside functions: nats-py is an extra, which tasks in a file or in memory do without; a command that only
# reads a configuration runs no tasks.

from typing import TYPE_CHECKING, Any, Final

from enfold.tasks.model import Status, Task, owner_of
from enfold.tasks.store import TaskLimits, TaskStore

if TYPE_CHECKING:
    from enfold.tasks.runner import Runner
    from enfold.tasks.tasks import TaskHandle, Tasks

__all__ = ["Runner", "Status", "Task", "TaskHandle", "TaskLimits", "TaskStore", "Tasks", "owner_of"]

_MODULES: Final = {"Runner": "runner", "TaskHandle": "tasks", "Tasks": "tasks"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"enfold.tasks.{_MODULES[name]}"), name)
