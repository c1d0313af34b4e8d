"""Streams of JetStream that several processes share: who creates them, and what every process checks before it uses one.

The creator of a stream decides where its messages go. On a server with authentication that is the operator
(`enfold nats init`); on one without, the first process that needs the stream creates it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from enfold.calls.transports.nats_peer import asks_for_credentials
from enfold.errors import CallError

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


async def ensure_stream(client: Client, context: JetStreamContext, wanted: StreamConfig) -> None:
    """Check a stream, and create it on a server without authentication; UNAVAILABLE says what is missing or wrong.

    `client` is the connected client of nats-py that `context` belongs to.
    """
    from nats.js.errors import NotFoundError

    try:
        found = (await context.stream_info(str(wanted.name))).config
    except NotFoundError:
        if asks_for_credentials(client):
            message = f"The stream {wanted.name} does not exist on the NATS server: create it with `enfold nats init`"
            raise CallError("UNAVAILABLE", message, {"reason": MISSING}) from None
        await _create(client, context, wanted)
        return
    check_stream(found, wanted)


@asynccontextmanager
async def reachable() -> AsyncIterator[None]:
    """UNAVAILABLE, in a sentence, for whatever JetStream answers at the start of a process."""
    from nats.errors import Error, NoRespondersError

    try:
        yield
    except NoRespondersError:
        raise CallError("UNAVAILABLE", "The NATS server has no JetStream: turn it on there") from None
    except (Error, OSError, TimeoutError) as error:
        raise CallError("UNAVAILABLE", f"JetStream cannot be used: {str(error) or 'it does not answer'}") from error


async def make_stream(client: Client, context: JetStreamContext, wanted: StreamConfig) -> None:
    """Create a stream, or give an existing one its configuration; for operators."""
    from nats.js.errors import NotFoundError

    try:
        found = (await context.stream_info(str(wanted.name))).config
    except NotFoundError:
        await _create(client, context, wanted)
    else:
        update = wanted.evolve(num_replicas=wanted.num_replicas or found.num_replicas)
        check_stream((await context.update_stream(update)).config, wanted)


async def _create(client: Client, context: JetStreamContext, wanted: StreamConfig) -> None:
    """Create a stream; unless it says by how many nodes it is kept, by three of a cluster of three or more, else by one."""
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
        await context.add_stream(wanted)  # one server that has several addresses


def check_stream(found: StreamConfig, wanted: StreamConfig) -> None:
    """UNAVAILABLE for a stream that would pass messages on, take foreign ones, or lose what it should keep."""
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
