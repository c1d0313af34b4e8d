"""The command `enfold work`: serve a registry to the peers of a NATS server or a hub until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from enfold.access import may_list
from enfold.calls.protocol.call_settings import WorkerLimits
from enfold.calls.protocol.subjects import peer_name
from enfold.calls.protocol.transport import Transport
from enfold.calls.transports.addresses import reached
from enfold.calls.transports.nats_peer import NATSTransport
from enfold.commands.command_options import parse
from enfold.commands.nats import users_in
from enfold.commands.observing_options import add_log_options, start_logging, write_calls
from enfold.commands.peers import add_address_options
from enfold.commands.targets import TOKEN, opened
from enfold.commands.task_store import TaskSettings, opened_tasks, task_settings, task_terms
from enfold.introspection import introduce
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.calls import Serving, serve_calls
from enfold.tasks import Tasks
from enfold.tasks.nats import NATSTasks

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["run"]

GRACE = 10.0  # seconds that running tasks have to end, before they are given up


def run(words: list[str], registry: Registry | None) -> int:
    """Serve until SIGTERM or Ctrl-C, then let running calls come to their end."""
    options = parse("work", words, registry, "Serve the operations to other processes.", _add_options)
    start_logging(options)
    asyncio.run(_work(options, registry))
    return 0


def _add_options(parser: ArgumentParser) -> None:
    place = add_address_options(parser)
    place.add_argument("--tasks", metavar="FILE", help="run the tasks that others have ordered in this file")
    parser.add_argument("--users", type=Path, help="NATS: what each user may do, as for `enfold nats permissions`")
    parser.add_argument("--running", type=int, default=WorkerLimits().running, help="calls that run at the same time")
    parser.add_argument(
        "--waiting", type=int, default=WorkerLimits().waiting, help="calls that may wait for their turn"
    )
    parser.add_argument(
        "--per-peer", type=int, default=WorkerLimits().per_peer, help="calls of one identity, running or waiting"
    )
    parser.add_argument("--service", default="enfold", help="the name of the service")
    add_log_options(parser)


async def _work(options: Namespace, registry: Registry | None) -> None:
    own = nullcontext(registry) if registry is not None else opened(options.target, rereads=True)
    settings = task_settings(options.target, options.tasks)
    if options.tasks is not None:
        async with own as found:
            await _run_tasks(found, settings)
        return
    place, limits = options.nats or options.hub, WorkerLimits(options.running, options.waiting, options.per_peer)
    identities = None if options.users is None else _identities(options.users)
    known = {"name": options.name, "token": os.environ.get(TOKEN), "insecure": options.insecure}
    async with own as found, reached(place, identities=identities, **known) as transport:
        write_calls(found, options)
        await _serve(found, transport, options.service, limits, settings)


def _identities(file: Path) -> dict[str, Identity]:
    return {peer_name(user.identity.id): user.identity for user in users_in(file)}


async def _run_tasks(registry: Registry, settings: TaskSettings) -> None:
    """Run what others have ordered until we are told to stop."""
    stopping = _stopping()
    async with opened_tasks(registry, settings, GRACE):
        durable = sum(spec.durable != "never" for spec in registry.list())
        print(f"Enfold runs tasks of {durable} operations. Press Ctrl-C to stop.", file=sys.stderr, flush=True)
        if not durable:
            print(
                "  None is durable: declare one with durable=True, or in the configuration", file=sys.stderr, flush=True
            )
        await stopping.wait()


async def _serve(
    registry: Registry, transport: Transport, service: str, limits: WorkerLimits, settings: TaskSettings
) -> None:
    stopping = _stopping()
    tasks = _tasks_on(registry, transport, settings)
    async with serve_calls(registry, transport, service=service, limits=limits) as serving:
        print("\n".join(_report(serving, transport)), file=sys.stderr, flush=True)
        await stopping.wait()
    if tasks is not None:
        await tasks.close(GRACE)


def _tasks_on(registry: Registry, transport: Transport, settings: TaskSettings) -> Tasks | None:
    """The tasks that are kept on NATS, where something is durable; peers order them by the verbs of `enfold.tasks`."""
    if not isinstance(transport, NATSTransport) or all(spec.durable == "never" for spec in registry.list()):
        return None
    tasks = Tasks(registry, NATSTasks(transport), **task_terms(settings))
    introduce(registry, {}, tasks=tasks)
    tasks.begin()
    return tasks


def _stopping() -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _report(serving: Serving, transport: Transport) -> Iterator[str]:
    count = len(serving.handler.offered)
    yield f"Enfold serves {count} operations as {transport.name}. Press Ctrl-C to stop."
    for operation_id, reason in serving.refused.items():
        yield f"  not {operation_id}: {reason}"
    guarded = [spec.id for spec in serving.handler.registry.list() if not may_list(spec.access_control, None)]
    if guarded and not transport.capabilities.peer_identity:
        yield f"  Nobody can call {', '.join(guarded)}: the server does not say who calls. See: enfold nats permissions"
