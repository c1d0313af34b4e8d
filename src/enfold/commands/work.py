"""The command `enfold work`: serve a registry to the peers of a NATS server or a hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from enfold.app.signals import Grace, ended_by_signals, ignore_hangups, run_server
from enfold.auth.tokens import AnyOf
from enfold.calls.protocol.settings import WorkerLimits
from enfold.calls.protocol.transport import Transport, keeps_state, peer_name
from enfold.calls.transports.addresses import reached
from enfold.calls.worker.nats_idempotency_store import NO_JETSTREAM
from enfold.commands.nats import users_in
from enfold.commands.peers import add_address_options
from enfold.commands.shared.callers import current_rights, token_file
from enfold.commands.shared.log import add_log_options, announce, set_up_log, write_calls
from enfold.commands.shared.options import add_number, parse_command
from enfold.commands.shared.stores import (
    OrderKeys,
    TaskSettings,
    add_order_options,
    add_recording_options,
    idempotency_store,
    opened_tasks,
    recorder_of,
    shared_results,
    task_settings,
    tasks_on_servers,
)
from enfold.commands.shared.targets import TOKEN, opened
from enfold.errors import counted
from enfold.operations.access import may_list
from enfold.operations.idempotency import IdempotencyStore
from enfold.runtime.registry import Registry
from enfold.surfaces.calls import Serving, serve_calls
from enfold.surfaces.introspection import introduce
from enfold.tasks import Tasks

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.provenance import Recorder

GRACE = 10.0  # seconds that running tasks have to end, before they are given up


def run(words: list[str], registry: Registry | None) -> int:
    """Serve until SIGTERM or Ctrl-C, then let running calls come to their end."""
    ignore_hangups()
    options = parse_command("work", words, registry, "Run operations for other processes.", _add_options)
    set_up_log(options.log_level, options.log_format)
    run_server(_work(options))
    return 0


def _add_options(parser: ArgumentParser) -> None:
    place = add_address_options(parser)
    place.add_argument("--tasks", metavar="STORE", help="run tasks from this store: a file, or nats://…")
    told = "limit each task to the current scopes of its caller's tokens"
    parser.add_argument("--tokens", metavar="FILE", help=told)
    add_order_options(parser)
    limits = WorkerLimits()
    add_number(parser, "--running", default=limits.running, help="maximum number of running calls")
    add_number(parser, "--waiting", 0, default=limits.waiting, help="maximum number of waiting calls")
    per_peer = "maximum number of calls per identity, running or waiting"
    add_number(parser, "--per-peer", default=limits.per_peer, help=per_peer)
    parser.add_argument("--service", default="enfold", help="the name of the service")
    add_log_options(parser)
    add_recording_options(parser)


async def _work(options: Namespace) -> None:
    own = opened(options.target, reloads=True)
    users = [] if options.users is None else users_in(options.users)
    keys = OrderKeys(options.order_key, tuple(users))
    settings = msgspec.structs.replace(task_settings(options.target, options.tasks), orders=keys)
    if options.tasks is not None:
        tokens = None if options.tokens is None else AnyOf([token_file(options.tokens)])
        async with own as found:
            write_calls(found, options)
            await _run_tasks(found, settings, {"recorder": recorder_of(options), "current": current_rights(tokens)})
        return
    place, limits = options.nats or options.hub, WorkerLimits(options.running, options.waiting, options.per_peer)
    identities = None if options.users is None else {peer_name(user.identity.id): user.identity for user in users}
    known = {"name": options.name, "token": os.environ.get(TOKEN), "insecure": options.insecure}
    async with own as found, reached(place, identities=identities, **known) as transport:
        write_calls(found, options)
        await _serve(found, transport, options.service, limits, settings, recorder_of(options))


async def _run_tasks(registry: Registry, settings: TaskSettings, how: Mapping[str, Any]) -> None:
    """Run submitted tasks until a signal stops the process."""
    stopping, grace = asyncio.Event(), Grace(GRACE)
    with ended_by_signals(stopping.set):
        async with opened_tasks(registry, settings, grace, **how):
            durable = sum(spec.durable != "never" for spec in registry.list())
            announce([f"Enfold runs tasks of {counted(durable, 'operation')}. Press Ctrl-C to stop."])
            if not durable:
                announce(["  No operation is durable: declare one with durable=True or in the configuration"])
            await stopping.wait()


async def _serve(
    registry: Registry,
    transport: Transport,
    service: str,
    limits: WorkerLimits,
    settings: TaskSettings,
    recorder: Recorder | None,
) -> None:
    stopping, grace = asyncio.Event(), Grace(GRACE)
    store, why_alone = await _outcome_store(transport, settings)
    tasks = None if why_alone == NO_JETSTREAM else await _tasks_on(registry, transport, settings, recorder)
    registry.services.idempotency_store = registry.services.idempotency_store or store
    with ended_by_signals(stopping.set):
        async with serve_calls(registry, transport, service=service, limits=limits, recorder=recorder) as serving:
            announce(_report(serving, transport, why_alone))
            await stopping.wait()
            grace.begin()
        if tasks is not None:
            await tasks.close(grace.left)


async def _tasks_on(
    registry: Registry, transport: Transport, settings: TaskSettings, recorder: Recorder | None
) -> Tasks | None:
    """Open the tasks of the transport's servers, if an operation is durable; peers submit them through `enfold.tasks`."""
    if not keeps_state(transport) or all(spec.durable == "never" for spec in registry.list()):
        return None
    tasks = await tasks_on_servers(registry, transport, settings, recorder=recorder)
    introduce(registry, {}, tasks=tasks)
    tasks.begin()
    return tasks


async def _outcome_store(transport: Transport, settings: TaskSettings) -> tuple[IdempotencyStore | None, str | None]:
    """Return the idempotency store of all workers, or one in memory with the reason why it is not shared."""
    why = None
    if keeps_state(transport):
        store = shared_results(transport, settings)
        why = await store.unavailable_reason()
        if why is None:
            return store, None
    return idempotency_store(msgspec.structs.replace(settings, target="")), why


def _report(serving: Serving, transport: Transport, why_alone: str | None) -> Iterator[str]:
    count = len(serving.handler.offered)
    yield f"Enfold serves {counted(count, 'operation')} as {transport.name}. Press Ctrl-C to stop."
    for operation_id, reason in serving.refused.items():
        yield f"  Not served: {operation_id}: {reason}"
    guarded = [spec.id for spec in serving.handler.registry.list() if not may_list(spec.access_control, None)]
    if guarded and not transport.capabilities.peer_identity:
        yield f"  Cannot be called: {', '.join(guarded)}, because the server does not identify callers. See: enfold nats permissions"
    if why_alone is not None:
        yield f"  Idempotency keys are local to this worker: {why_alone}"
    if why_alone == NO_JETSTREAM and any(spec.durable != "never" for spec in serving.handler.registry.list()):
        yield "  For the same reason, durable operations only run as plain calls"
