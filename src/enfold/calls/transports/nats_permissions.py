"""The server's permissions for NATS, made from what operations require. Pure: specs and users in, a file's text out.

The server's rule is coarse (who may send to which operation); the worker checks scopes and resources again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from enfold.access import may_list
from enfold.calls.protocol.subjects import (
    WORKERS,
    announcement_subject,
    ask_subject,
    offer_subject,
    peer_name,
    request_subject,
)
from enfold.operation import RESERVED_IDS, Identity, OperationSpec
from enfold.reserved import TASK_VERBS

BUCKET: Final = "enfold_idempotency"  # where workers keep first results
JETSTREAM: Final = "$JS.API"


class NATSUser(msgspec.Struct, frozen=True):
    """A user of the server: what it may call follows from its identity; the rest is said here."""

    identity: Identity
    serves: tuple[str, ...] = ()  # ids or namespaces it offers; `*` is everything
    is_operator: bool = False  # may ask every worker how it is, and create the shared streams
    is_edge: bool = False  # accepts tasks for others, and says whose they are
    password: str | None = None  # as the server should have it; else a variable of the server's environment
    key: str | None = None  # a file with the public key that verifies the orders of tasks it accepts (PEM)


class _UserEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a file of users."""

    id: str
    scopes: frozenset[str] = frozenset()
    resources: dict[str, list[str]] | None = None
    serves: tuple[str, ...] = ()
    operator: bool = False
    edge: bool = False
    password: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.id in RESERVED_IDS:
            raise ValueError(f"the id {self.id!r} is reserved: choose another")


def read_users(text: bytes) -> list[NATSUser]:
    """Users from JSON: `[{"id": "ann", "scopes": […], "resources": {…}, "serves": ["shop"], "operator": false}]`."""
    return [
        NATSUser(
            Identity(entry.id, entry.scopes, entry.resources),
            entry.serves,
            entry.operator,
            entry.edge,
            entry.password,
            entry.key,
        )
        for entry in msgspec.json.decode(text, type=list[_UserEntry])
    ]


class Rights(msgspec.Struct, frozen=True):
    """Additional subjects of a user, for what is built on calls, as tasks are."""

    publish: list[str] = []
    subscribe: list[str] = []


# Of a user, who serves some of all operations.
More: TypeAlias = Callable[[NATSUser, Sequence[OperationSpec], Sequence[OperationSpec]], Rights]


def nats_permissions(
    specs: Iterable[OperationSpec],
    users: Iterable[NATSUser],
    *,
    more: More = lambda *_: Rights(),
) -> str:
    """An `authorization` block for the server's configuration."""
    known, users = list(specs), list(users)
    _check_passwords(users)
    blocks = [_user(user, known, more(user, _served_specs(user, known), known)) for user in users]
    return "authorization {\n  users = [\n" + "".join(blocks) + "  ]\n}\n"


def _check_passwords(users: Sequence[NATSUser]) -> None:
    """Refuse users listed twice, and users who would share the variable of their password."""
    taken: dict[str, str] = {}
    for user in users:
        name = peer_name(user.identity.id)
        for key in (name, *([_variable(name)] if user.password is None else [])):
            if key in taken:
                raise ValueError(f"The users {taken[key]!r} and {user.identity.id!r} would share {key}: rename one")
            taken[key] = user.identity.id


def _user(user: NATSUser, specs: Sequence[OperationSpec], more: Rights) -> str:
    name = peer_name(user.identity.id)
    password = f"${_variable(name)}" if user.password is None else _quoted(user.password)
    publish = [*_may_publish(user, name, specs), *more.publish]
    subscribe = [*_may_subscribe(user, name, specs), *more.subscribe]
    return (
        f"    {{ user: {_quoted(name)}, password: {password}, permissions: {{\n"
        f"        publish: {{ allow: [{_listed(publish)}] }}\n"
        f"        subscribe: {{ allow: [{_listed(subscribe)}] }}\n"
        "    } }\n"
    )


def _may_publish(user: NATSUser, name: str, specs: Sequence[OperationSpec]) -> list[str]:
    """As itself to what it may call; a worker to inboxes, by name and not as a response, which would fit any subject."""
    callable_ = [spec.id for spec in specs if may_list(spec.access_control, user.identity)]
    subjects = [request_subject(name, operation_id) for operation_id in callable_]
    subjects += [ask_subject(name), "ctl.>"]
    if user.serves:
        subjects += ["_INBOX.*.>", announcement_subject(name)]
    if user.serves or user.is_edge:
        subjects += _store_subjects([spec.id for spec in specs] if user.is_edge else _served(user, specs))
    return [*subjects, "$SRV.>", *creation_subjects(f"KV_{BUCKET}")] if user.is_operator else subjects


def creation_subjects(stream: str) -> list[str]:
    """What an operator needs to create a stream or repair it: `enfold nats init`."""
    return [f"{JETSTREAM}.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE", "UPDATE")]


def _may_subscribe(user: NATSUser, name: str, specs: Sequence[OperationSpec]) -> list[str]:
    subjects = [f"_INBOX.{name}.>", announcement_subject("*")]
    if user.serves:
        subjects += [f"{offer_subject(operation_id)} {WORKERS}" for operation_id in _served(user, specs)]
        subjects += [ask_subject("*"), f"ctl.{name}.>", "$SRV.>"]
    return subjects


def _served(user: NATSUser, specs: Sequence[OperationSpec]) -> list[str]:
    return [spec.id for spec in _served_specs(user, specs)]


def _served_specs(user: NATSUser, specs: Sequence[OperationSpec]) -> list[OperationSpec]:
    return [spec for spec in specs if serves(user, spec.id)]


def serves(user: NATSUser, operation_id: str) -> bool:
    """Whether a user offers an operation."""
    return any(_lies_in(operation_id, place) for place in user.serves)


def accepts_for_all(user: NATSUser) -> bool:
    """Whether a user accepts tasks of every operation: an edge, or one that offers the task operations."""
    return user.is_edge or TASK_VERBS in user.serves


def _store_subjects(served: Sequence[str]) -> list[str]:
    """Where first results are kept: a worker's of what it serves and of nothing else, an edge's of all it passes on."""
    stream = f"KV_{BUCKET}"
    entries = [f"$KV.{BUCKET}.{operation_id}.*" for operation_id in served]
    reads = [f"{JETSTREAM}.DIRECT.GET.{stream}.{entry}" for entry in entries]
    return [*entries, *reads, f"{JETSTREAM}.STREAM.INFO.{stream}"]


def _lies_in(operation_id: str, place: str) -> bool:
    return place in ("*", operation_id) or operation_id.startswith(f"{place}.")


def _variable(name: str) -> str:
    return f"NATS_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"


def _listed(subjects: Sequence[str]) -> str:
    return ", ".join(_quoted(subject) for subject in subjects)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
