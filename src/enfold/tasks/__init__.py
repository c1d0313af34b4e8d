"""Durable calls: they return a handle immediately and survive a crash of the caller, the edge and the worker.

Stores have their own modules (`enfold.tasks.sqlite`, `enfold.tasks.nats`, `enfold.tasks.memory`); none is imported here.
"""

# Imports inside functions: nats-py is an extra, which tasks in a file or in memory do without.

from enfold.tasks.model import Status, Task, owner_of
from enfold.tasks.runner import Runner
from enfold.tasks.store import TaskLimits, TaskStore
from enfold.tasks.tasks import TaskHandle, Tasks

__all__ = ["Runner", "Status", "Task", "TaskHandle", "TaskLimits", "TaskStore", "Tasks", "owner_of"]
