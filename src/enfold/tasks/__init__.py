"""Durable calls: a handle at once, and work that survives the death of caller, edge and worker.

Stores are imported by name (`enfold.tasks.sqlite`, `enfold.tasks.nats`, `enfold.tasks.memory`): none is loaded here.
"""

from enfold.tasks.runner import Runner
from enfold.tasks.service import TaskHandle, Tasks
from enfold.tasks.store import TaskStore
from enfold.tasks.task import Status, Task, owner_of

__all__ = ["Runner", "Status", "Task", "TaskHandle", "TaskStore", "Tasks", "owner_of"]
