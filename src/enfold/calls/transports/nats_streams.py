"""JetStream streams that processes share, and the permissions of NATS users.

The creator of a stream controls where its messages go. On a server with authentication the operator creates it
(`enfold nats init`), otherwise the first process that needs it. Every process checks a stream before it uses it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.transport import (
    WORKERS,
    announcement_subject,
    discovery_subject,
    offer_subject,
    peer_name,
    request_subject,
)
from enfold.calls.transports.nats import server_has
from enfold.errors import CallError
from enfold.operations import RESERVED_IDS, Identity, OperationSpec
from enfold.operations.access import may_list
from enfold.runtime.reserved import TASK_VERBS

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig


CLUSTER: Final = 3
NO_CLUSTER: Final = 10074  # the server's code for replicas without a cluster
MISSING: Final = "missing"  # the reason where the operator has not created a stream
_REQUIRED: Final = ("allow_direct", "allow_msg_ttl")
_FORBIDDEN: Final = (
    "no_ack",
    "sealed",
    "allow_rollup_hdrs",  # one message with `Nats-Rollup: all` would purge the stream
    "allow_msg_counter",
    "allow_msg_schedules",  # the server would publish to keys that the sender may not write
)


async def ensure_stream(client: Client, context: JetStreamContext, wanted: StreamConfig) -> StreamConfig:
    """Return a stream that is as wanted, created on a server without authentication; UNAVAILABLE if it is missing or wrong."""
    from nats.js.errors import NotFoundError

    try:
        found = (await context.stream_info(str(wanted.name))).config
    except NotFoundError:
        if server_has(client, "auth_required"):
            message = f"The stream {wanted.name} does not exist on the NATS server: create it with `enfold nats init`"
            raise CallError("UNAVAILABLE", message, {"reason": MISSING}) from None
        await _create(client, context, wanted)
        return wanted
    check_stream(found, wanted)
    return found


@asynccontextmanager
async def reachable() -> AsyncIterator[None]:
    """Turn errors of JetStream into UNAVAILABLE with a readable message."""
    from nats.errors import Error, NoRespondersError

    try:
        yield
    except NoRespondersError:
        raise CallError("UNAVAILABLE", "The NATS server has no JetStream: enable it") from None
    except (Error, OSError, TimeoutError) as error:
        raise CallError("UNAVAILABLE", f"JetStream is unavailable: {str(error) or 'no response'}") from error


async def make_stream(client: Client, context: JetStreamContext, wanted: StreamConfig) -> None:
    """Create or update a stream; for operators."""
    from nats.js.errors import NotFoundError

    try:
        found = (await context.stream_info(str(wanted.name))).config
    except NotFoundError:
        await _create(client, context, wanted)
    else:
        update = wanted.evolve(num_replicas=wanted.num_replicas or found.num_replicas)
        check_stream((await context.update_stream(update)).config, wanted)


async def _create(client: Client, context: JetStreamContext, wanted: StreamConfig) -> None:
    """Create a stream, by default with three replicas in a cluster of three or more nodes, else with one."""
    from nats.js.errors import APIError

    is_cluster = len(client.servers) >= CLUSTER
    if wanted.num_replicas or not is_cluster:
        await context.add_stream(wanted)
        return
    try:
        await context.add_stream(wanted.evolve(num_replicas=CLUSTER))
    except APIError as error:
        if error.err_code != NO_CLUSTER:
            raise
        await context.add_stream(wanted)  # one server with several addresses


def check_stream(found: StreamConfig, wanted: StreamConfig) -> None:
    """Raise UNAVAILABLE for a stream that would forward messages, accept foreign ones, or lose stored ones."""
    faults = list(_faults(found, wanted))
    if faults:
        message = (
            f"The stream {wanted.name} on the NATS server is not used: {'; '.join(faults)}. "
            "Check who created it, then repair it with `enfold nats init`"
        )
        raise CallError("UNAVAILABLE", message)


def _faults(found: StreamConfig, wanted: StreamConfig) -> Iterator[str]:
    if sorted(found.subjects or ()) != sorted(wanted.subjects or ()):
        yield f"it stores the subjects {', '.join(found.subjects or ()) or 'of another stream'}"
    if found.republish != wanted.republish:
        yield "it republishes messages" + (f" to {found.republish.dest}" if found.republish else " no longer")
    yield from (f"it has {name}" for name in ("mirror", "sources", "subject_transform") if getattr(found, name))
    for name in ("retention", "discard", "max_msgs_per_subject"):
        has, needs = getattr(found, name), getattr(wanted, name)
        if needs is not None and has != needs:
            yield f"{name} is {_shown(has)} instead of {_shown(needs)}"
    if found.max_age and (not wanted.max_age or found.max_age < wanted.max_age):
        yield f"it keeps messages for {found.max_age:g} s" + (
            f", less than {wanted.max_age:g}" if wanted.max_age else ""
        )
    yield from (f"{name} is off" for name in _REQUIRED if getattr(wanted, name) and not getattr(found, name))
    yield from (f"{name} is on" for name in _FORBIDDEN if getattr(found, name))


def _shown(value: Any) -> str:
    return str(getattr(value, "value", value))


BUCKET: Final = "enfold_idempotency"  # outcomes by idempotency key
SHARDS: Final = "enfold.shards"  # in the metadata of that bucket: among how many buckets the keys are divided
JETSTREAM: Final = "$JS.API"


class NATSUser(msgspec.Struct, frozen=True):
    """A user of the NATS server; what it may call follows from its identity."""

    identity: Identity
    serves: tuple[str, ...] = ()  # ids or namespaces it offers; `*` for all
    is_operator: bool = False  # may query worker statistics and create the shared streams
    is_edge: bool = False  # accepts tasks on behalf of others
    password: str | None = None  # as in the server's configuration; by default a variable of its environment
    key: str | None = None  # a file with the public key (PEM) that verifies the tasks it accepts


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
    """Read users from JSON: `[{"id": "ann", "scopes": […], "resources": {…}, "serves": ["shop"], "operator": false}]`."""
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
    """Additional subjects of a user, for tasks."""

    publish: list[str] = []
    subscribe: list[str] = []


# The user, the operations it serves, and all operations.
More: TypeAlias = Callable[[NATSUser, Sequence[OperationSpec], Sequence[OperationSpec]], Rights]


def nats_permissions(
    specs: Iterable[OperationSpec],
    users: Iterable[NATSUser],
    *,
    more: More = lambda *_: Rights(),
    shards: int = 1,
) -> str:
    """Generate an `authorization` block for the server's configuration; `shards` is the number of buckets for keys."""
    known, users, buckets = list(specs), list(users), idempotency_buckets(shards)
    _check_passwords(users)
    blocks = [_user(user, known, buckets, more(user, _served_specs(user, known), known)) for user in users]
    return "authorization {\n  users = [\n" + "".join(blocks) + "  ]\n}\n"


def _check_passwords(users: Sequence[NATSUser]) -> None:
    """Refuse duplicate users, and users that would share a password variable."""
    taken: dict[str, str] = {}
    for user in users:
        name = peer_name(user.identity.id)
        for key in (name, *([_variable(name)] if user.password is None else [])):
            if key in taken:
                raise ValueError(f"The users {taken[key]!r} and {user.identity.id!r} would share {key}: rename one")
            taken[key] = user.identity.id


def idempotency_buckets(shards: int) -> list[str]:
    """Return the buckets among which idempotency keys are divided."""
    return [BUCKET, *(f"{BUCKET}_{number}" for number in range(1, shards))]


def _user(user: NATSUser, specs: Sequence[OperationSpec], buckets: Sequence[str], more: Rights) -> str:
    name = peer_name(user.identity.id)
    password = f"${_variable(name)}" if user.password is None else _quoted(user.password)
    publish = [*_publish_subjects(user, name, specs), *_store_subjects(user, specs, buckets), *more.publish]
    subscribe = [*_subscribe_subjects(user, name, specs), *more.subscribe]
    return (
        f"    {{ user: {_quoted(name)}, password: {password}, permissions: {{\n"
        f"        publish: {{ allow: [{_listed(publish)}] }}\n"
        f"        subscribe: {{ allow: [{_listed(subscribe)}] }}\n"
        "    } }\n"
    )


def _publish_subjects(user: NATSUser, name: str, specs: Sequence[OperationSpec]) -> list[str]:
    """Requests under its own name; for workers also inboxes, explicitly: `allow_responses` would permit any subject."""
    callable_ = [spec.id for spec in specs if may_list(spec.access_control, user.identity)]
    subjects = [request_subject(name, operation_id) for operation_id in callable_]
    subjects += [discovery_subject(name), discovery_subject(name, "*"), "ctl.>"]
    if user.serves:
        subjects += ["_INBOX.*.>", announcement_subject(name)]
    return [*subjects, "$SRV.>"] if user.is_operator else subjects


def creation_subjects(stream: str) -> list[str]:
    """Return the subjects that `enfold nats init` needs to create or repair a stream."""
    return [f"{JETSTREAM}.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE", "UPDATE")]


def _subscribe_subjects(user: NATSUser, name: str, specs: Sequence[OperationSpec]) -> list[str]:
    subjects = [f"_INBOX.{name}.>", announcement_subject("*")]
    if user.serves:
        subjects += [f"{offer_subject(operation_id)} {WORKERS}" for operation_id in _served(user, specs)]
        subjects += [discovery_subject("*"), discovery_subject("*", name), f"ctl.{name}.>", "$SRV.>"]
    return subjects


def _served(user: NATSUser, specs: Sequence[OperationSpec]) -> list[str]:
    return [spec.id for spec in _served_specs(user, specs)]


def _served_specs(user: NATSUser, specs: Sequence[OperationSpec]) -> list[OperationSpec]:
    return [spec for spec in specs if serves(user, spec.id)]


def serves(user: NATSUser, operation_id: str) -> bool:
    """Whether a user offers an operation."""
    return any(_lies_in(operation_id, place) for place in user.serves)


def accepts_for_all(user: NATSUser) -> bool:
    """Whether a user accepts tasks of all operations: an edge, or a peer that offers the task operations."""
    return user.is_edge or TASK_VERBS in user.serves


def _store_subjects(user: NATSUser, specs: Sequence[OperationSpec], buckets: Sequence[str]) -> list[str]:
    """Return the subjects of the idempotency store: of what a worker serves, of all operations for an edge."""
    operations = [spec.id for spec in specs] if user.is_edge else _served(user, specs)
    subjects: list[str] = []
    for bucket in buckets:
        stream = f"KV_{bucket}"
        if user.serves or user.is_edge:
            entries = [f"$KV.{bucket}.{operation_id}.*" for operation_id in operations]
            subjects += [*entries, *(f"{JETSTREAM}.DIRECT.GET.{stream}.{entry}" for entry in entries)]
            subjects.append(f"{JETSTREAM}.STREAM.INFO.{stream}")
        if user.is_operator:
            subjects += creation_subjects(stream)
    return subjects


def _lies_in(operation_id: str, place: str) -> bool:
    return place in ("*", operation_id) or operation_id.startswith(f"{place}.")


def _variable(name: str) -> str:
    return f"NATS_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"


def _listed(subjects: Sequence[str]) -> str:
    return ", ".join(_quoted(subject) for subject in subjects)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
