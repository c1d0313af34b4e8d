"""Names of tasks on NATS: streams, subjects and keys, and the permissions that users need for them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from enfold.calls.transports.nats_permissions import JETSTREAM, NATSUser, Rights, creation_subjects
from enfold.operation import OperationSpec
from enfold.tasks.task import Task

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

    def rights(self, user: NATSUser, served: Sequence[OperationSpec]) -> Rights:
        """What an edge or a worker of durable operations needs of the server; callers need nothing."""
        durable = [spec.id for spec in served if spec.durable != "never"]
        if user.is_operator and not user.is_edge and not durable:
            return Rights([subject for stream in (self.queue, self.bucket) for subject in creation_subjects(stream)])
        if not user.is_edge and not durable:
            return Rights()
        api = JETSTREAM
        both = [
            self.queued("*", ">"),
            self.key(">"),
            f"{api}.DIRECT.GET.{self.bucket}.>",
            *(f"{api}.STREAM.INFO.{each}" for each in (self.queue, self.bucket)),
        ]
        consumers = [
            f"{api}.CONSUMER.{subject}"
            for name in map(consumer_name, durable)
            for subject in (
                f"CREATE.{self.queue}.{name}.>",
                f"DURABLE.CREATE.{self.queue}.{name}",
                f"INFO.{self.queue}.{name}",
                f"MSG.NEXT.{self.queue}.{name}",
            )
        ]
        return Rights([*both, *consumers, *([f"$JS.ACK.{self.queue}.>"] if durable else [])], [f"{self.changed}.>"])


def owner_token(owner: str) -> str:
    """The owner as one word of a subject."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def consumer_name(operation: str) -> str:
    """The name under which all workers share the tasks of one operation."""
    return f"op_{hashlib.sha256(operation.encode()).hexdigest()[:32]}"


def task_key(task: Task, what: str = "state") -> str:
    return f"{owner_token(task.owner)}.{task.id}.{what}"


def first_key(owner: str, operation: str, key: str) -> str:
    """Where the first task with an idempotency key is named."""
    digest = hashlib.sha256(f"{operation}\n{key}".encode()).hexdigest()[:32]
    return f"{owner_token(owner)}.key.{digest}"
