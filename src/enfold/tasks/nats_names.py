"""Names of tasks on NATS: streams, subjects and keys, and the permissions that users need for them. Pure.

Every subject and every key names the operation in a place of its own, so that the server can bind a worker to the
operations that it serves. Keys hold digests: who may list them learns no id of a task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from enfold.calls.protocol.subjects import peer_name
from enfold.calls.transports.nats_permissions import JETSTREAM, NATSUser, Rights, accepts_for_all, creation_subjects
from enfold.operation import OperationSpec
from enfold.tasks.task import Order

DEFAULT_NAME: Final = "enfold_tasks"


class Names(msgspec.Struct, frozen=True):
    """The names of one store: several may be on one server."""

    name: str = DEFAULT_NAME

    @property
    def queue(self) -> str:
        """The stream of what is to be run."""
        return f"{self.name}_queue"

    @property
    def bucket(self) -> str:
        """The stream of what is known."""
        return f"KV_{self.name}"

    @property
    def changed(self) -> str:
        """The subject below which it is told what the bucket has stored."""
        return f"{self.name}.changed"

    def key(self, key: str) -> str:
        """The subject of a key of the bucket."""
        return f"$KV.{self.name}.{key}"

    def queued(self, owner: str, operation: str) -> str:
        """The subject of the tasks of one owner and one operation."""
        return f"{self.name}.run.{owner}.{operation}"

    def rights(self, user: NATSUser, served: Sequence[OperationSpec], specs: Sequence[OperationSpec]) -> Rights:
        """What an operator, an edge or a worker of durable operations needs of the server; callers need nothing."""
        runs = [spec.id for spec in served if spec.durable != "never"]
        accepts = [spec.id for spec in specs if spec.durable != "never"] if accepts_for_all(user) else runs
        creates = [each for stream in (self.queue, self.bucket) for each in creation_subjects(stream)]
        publish = [
            *(creates if user.is_operator else []),
            *(self._accepting(accepts) if accepts else []),
            *(self._running(user, runs) if runs else []),
        ]
        return Rights(publish, [f"{self.changed}.task.{operation_token(each)}.>" for each in accepts])

    def _accepting(self, operations: Sequence[str]) -> list[str]:
        """Queue tasks of these operations, and write and read their states; read how much everybody has."""
        reads = f"{JETSTREAM}.DIRECT.GET.{self.bucket}"
        return [
            *(f"{JETSTREAM}.STREAM.INFO.{each}" for each in (self.queue, self.bucket)),
            *(f"{reads}.{self.key(kind)}.>" for kind in ("open", "bytes", "worker")),
            *(
                subject
                for operation in operations
                for keys in [self.key(f"*.{operation_token(operation)}.>")]
                for subject in (self.queued("*", operation), keys, f"{reads}.{keys}")
            ),
        ]

    def _running(self, user: NATSUser, operations: Sequence[str]) -> list[str]:
        """Take tasks of these operations from the queue, and show life under one's own name."""
        consumers = [
            subject
            for operation in operations
            for name in [operation_token(operation)]
            for subject in (
                # With the filter: a consumer under our name could else read another operation's orders.
                f"{JETSTREAM}.CONSUMER.CREATE.{self.queue}.{name}.{self.queued('*', operation)}",
                f"{JETSTREAM}.CONSUMER.INFO.{self.queue}.{name}",
                f"{JETSTREAM}.CONSUMER.MSG.NEXT.{self.queue}.{name}",
                f"$JS.ACK.{self.queue}.{name}.>",
            )
        ]
        return [*consumers, self.key(f"worker.{peer_name(user.identity.id)}.*")]


def _token(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def owner_token(owner: str) -> str:
    """The owner as one word of a subject."""
    return _token(owner)


def operation_token(operation: str) -> str:
    """The operation as one word of a subject; also the consumer through which all its workers share its tasks."""
    return f"op_{_token(operation)}"


def _place(order: Order) -> str:
    return f"{operation_token(order.operation)}.{owner_token(order.owner)}.{_token(order.id)}"


def task_key(order: Order, what: str = "state") -> str:
    return f"task.{_place(order)}.{what}"


def task_pattern(owner: str | None, task_id: str | None) -> str:
    """The keys of states, of whatever operation; None is everybody's, or every task."""
    return f"task.*.{'*' if owner is None else owner_token(owner)}.{'*' if task_id is None else _token(task_id)}.state"


def slot_key(order: Order) -> str:
    """The key that stands for an unfinished task."""
    return f"open.{_place(order)}"


def state_of_slot(key: str) -> str:
    """The key of the state of the task that a slot stands for."""
    return f"task.{key.removeprefix('open.')}.state"


def slot_pattern(owner: str) -> str:
    return f"open.*.{owner_token(owner)}.*"


def first_key(owner: str, operation: str, key: str) -> str:
    """Where the first task with an idempotency key is named."""
    return f"key.{operation_token(operation)}.{owner_token(owner)}.{_token(key)}"


def sum_key(order: Order, name: str, hour: int) -> str:
    """Where a process counts the bytes of an owner's finished tasks of an operation."""
    return f"bytes.{operation_token(order.operation)}.{owner_token(order.owner)}.{name}.{hour}"


def sum_pattern(owner: str) -> str:
    return f"bytes.*.{owner_token(owner)}.*.*"


def dead_key(operation: str, sequence: str) -> str:
    """Where a message is kept that is no task."""
    return f"dead.{operation_token(operation)}.{sequence}"
