"""The command `enfold serve`: HTTP and MCP put together on one port, for a target, a configuration, or running peers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from enfold.commands.agent_options import add_agent_options, agent_settings
from enfold.commands.bound_options import bounds_of
from enfold.commands.callers import add_caller_options, who_may_come_in
from enfold.commands.command_options import parse
from enfold.commands.endings import HANGUP, ended_by_signals, handling, run_in_loop
from enfold.commands.http_server import (
    GRACE,
    Certificate,
    HTTPServer,
    bind,
    check_certificate,
    loop_factory,
    start_listening,
)
from enfold.commands.observing_options import add_log_options, metrics_mount, start_logging, write_calls
from enfold.commands.recorder_options import add_recording_options, recorder_of
from enfold.commands.serve_banner import say_where
from enfold.commands.targets import opened, served_program, with_peers
from enfold.commands.task_store import first_results, opened_tasks, task_settings
from enfold.errors import CallError
from enfold.operation import Policy
from enfold.operation.limits import CallLimits
from enfold.registry import OperationRegistry, Registry
from enfold.surfaces.bounds import Bounds, divided
from enfold.workers import (
    Passing,
    Siblings,
    Told,
    Worker,
    listen_to_siblings,
    run_workers,
    session_prefix,
    without_parent,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from socket import socket

    from enfold.operation.repeats import OnceStore
    from enfold.source_states import SourceState
    from enfold.surfaces.http import HTTPApp
    from enfold.tasks import Tasks

__all__ = ["run"]


class Terms(msgspec.Struct, frozen=True):
    """How a registry is served: the options, who may come in, what is recorded, and within which bounds."""

    options: Any  # an argparse.Namespace
    tokens: Any  # a Tokens, or None
    recorder: Any  # a Recorder, or None
    is_local: bool
    bounds: Bounds
    certificate: Certificate | None = None
    worker: Worker | None = None  # one of several processes
    secret: bytes | None = None  # that they share

    @property
    def is_loud(self) -> bool:
        """Whether it says at its start what is there; of several processes one does."""
        return self.worker is None or self.worker.is_loud


def run(words: list[str], registry: Registry | None) -> int:
    """Serve until somebody ends it."""
    options = parse("serve", words, registry, "Serve the operations over HTTP.", _add_serve_options)
    if options.reload:
        from enfold.commands.reload import run_reloading

        return run_reloading(_own_command(registry), [word for word in words if word != "--reload"])
    start_logging(options)
    terms = _terms(options)
    with bind(options.host, options.port) as listening:  # a port that is taken is told before anything is opened
        if options.workers == 1:
            return _run(terms, registry, listening)
        shared = msgspec.structs.replace(terms, bounds=divided(terms.bounds, options.workers), secret=os.urandom(32))
        return run_workers(
            options.workers,
            lambda worker: _run_worker(msgspec.structs.replace(shared, worker=worker), registry, listening),
        )


def _run(terms: Terms, registry: Registry | None, listening: socket) -> int:
    factory = loop_factory()  # which says what is not installed, before anything is begun
    run_in_loop(_serve(_own(terms.options, registry), terms, listening), factory)
    return 0


def _run_worker(terms: Terms, registry: Registry | None, listening: socket) -> int:
    from enfold.commands.main import told

    def work() -> int:
        recorder = recorder_of(terms.options)
        return _run(msgspec.structs.replace(terms, recorder=recorder), registry, listening)

    return told(work)


def _own(options: Namespace, registry: Registry | None) -> AbstractAsyncContextManager[Registry]:
    """What is served besides the operations of peers."""
    if registry is None and options.target is not None:
        return opened(options.target, rereads=True)
    if registry is None and _peers(options) is None:
        raise CallError(
            "VALIDATION_ERROR", "serve needs a target, as in: enfold serve app.py; or --nats URL, or --hub URL"
        )
    if registry is None:
        return nullcontext(OperationRegistry())
    return nullcontext(served_program(registry, Path(sys.argv[0]).name or "program"))


def _peers(options: Namespace) -> str | None:
    """The address of the peers whose operations are served, if there is one."""
    place: str | None = options.nats or options.hub
    return place


def _terms(options: Namespace) -> Terms:
    tokens = who_may_come_in(options)
    is_local = _is_loopback(options.host)
    if not is_local and not tokens and not options.insecure:  # not even a list of none
        raise CallError(
            "VALIDATION_ERROR",
            f"Serving on {options.host} without tokens would let everybody in: give --tokens FILE, or say --insecure",
        )
    bounds = bounds_of(options.target, options.bound)
    # Each process opens the store of records for itself: a connection to a database does not survive a fork.
    recorder = recorder_of(options) if options.workers == 1 else None
    return Terms(options, tokens, recorder, is_local, bounds, _certificate(options))


def _certificate(options: Namespace) -> Certificate | None:
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise CallError("VALIDATION_ERROR", "--tls-key needs --tls-cert, the certificate that the key belongs to")
        return None
    files = Certificate(options.tls_cert, options.tls_key)
    check_certificate(files)
    return files


def _add_serve_options(parser: ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="the port; 0 takes a free one (default 8000)")
    parser.add_argument("--format", default="result", help="the format of answers unless a request chooses another")
    add_caller_options(parser)
    parser.add_argument("--token", help="one token for all, of the owner; better in ENFOLD_SERVE_TOKEN")
    parser.add_argument("--allow-anonymous", action="store_true", help="let strangers call what has no rules")
    parser.add_argument("--insecure", action="store_true", help="serve beyond this machine without tokens")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a name this server goes by")
    parser.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help="pages that may call it")
    parser.add_argument("--max-body", type=int, default=8 * 1024 * 1024, metavar="BYTES", help="the largest request")
    parser.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="another bound than the default: docs/bounds.md",
    )
    parser.add_argument("--no-console", action="store_true", help="leave out the page for people at /")
    add_agent_options(parser)
    add_recording_options(parser)
    add_log_options(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--nats", metavar="URL", help="serve what peers on these NATS servers serve")
    place.add_argument("--hub", metavar="URL", help="serve what the peers of this hub serve")
    parser.add_argument("--tasks", metavar="FILE", help="keep tasks in this SQLite file (default .enfold/tasks.db)")
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate, and those above it")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of the certificate, unless it is in the same file")
    parser.add_argument("--root-path", default="", type=_root_path, help="the path that a proxy takes away: /shop")
    parser.add_argument("--title", help="the name of the application, in the document and for MCP clients")
    parser.add_argument("--app-version", metavar="TEXT", help="the version of the application")
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="processes that serve side by side")
    parser.add_argument("--grace", type=float, default=GRACE, help="seconds for calls to finish at the end")
    parser.add_argument(
        "--reload", action="store_true", help="start again when a Python file below this folder changes"
    )


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 256:
        raise ValueError(text)
    return number


def _root_path(text: str) -> str:
    path = text.strip("/")
    return f"/{path}" if path else ""


def _own_command(registry: Registry | None) -> list[str]:
    return [sys.executable, "-m", "enfold", "serve"] if registry is None else [sys.executable, sys.argv[0], "serve"]


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(own: AbstractAsyncContextManager[Registry], terms: Terms, listening: socket) -> None:
    with handling(dict.fromkeys(HANGUP, _nothing_to_read)):
        await _serve_opened(own, terms, listening)


def _nothing_to_read() -> None:
    """A SIGHUP where there is no configuration, or before it is open: it must not end the server."""


async def _serve_opened(own: AbstractAsyncContextManager[Registry], terms: Terms, listening: socket) -> None:
    async with own as registry:
        target = terms.options.target
        if terms.is_loud and target is not None and target.kind == "configuration":
            print("\n".join(map(_how, registry.sources)), file=sys.stderr)
        write_calls(registry, terms.options)
        async with _with_peers(registry, terms.options) as everything:
            settings = task_settings(target, terms.options.tasks)
            async with opened_tasks(everything, settings, terms.options.grace) as tasks:
                once = first_results(settings, in_file=_is_file(tasks))
                await _Serving(everything, terms, tasks, once).serve(listening)


def _how(source: SourceState) -> str:
    more = {
        "up": f"{source.operations} operations",
        "down": "it is tried again",
        "starting": "it comes when it is ready",
    }
    return f"{source.name}: {source.state}, {more[source.state]}"


@asynccontextmanager
async def _with_peers(own: Registry, options: Namespace) -> AsyncIterator[Registry]:
    """Our own operations, and those of running peers beside them; the edge itself keeps nothing."""
    address = _peers(options)
    if address is None:
        yield own
        return
    registry = own if isinstance(own, OperationRegistry) else OperationRegistry()
    if registry is not own:
        registry.register_all(own)
        registry.sources, registry.observers = own.sources, own.observers
    # Without the peers there is nothing behind this server.
    async with with_peers(registry, address, insecure=options.insecure, required=True):
        yield registry


class _Serving:
    """One registry being served: the apps put together, and the server that runs them."""

    def __init__(self, registry: Registry, terms: Terms, tasks: Tasks | None, once: OnceStore) -> None:
        # Beyond this machine the words of an unexpected exception are for our log alone.
        policy = Policy(limits=_limits(terms.bounds), expose_errors=None if terms.is_local else False, once=once)
        self._registry = registry.with_policy(policy)
        self._terms = terms
        self._tasks = tasks
        options = terms.options
        self._server = HTTPServer(
            self._app() if terms.worker is None else Passing(self._app(), terms.worker),
            terms.bounds,
            self._stop,
            certificate=terms.certificate,
            root_path=options.root_path,
            grace=options.grace,
            worker=terms.worker,
        )

    def _app(self) -> HTTPApp:
        from enfold.introspection import keep_calls
        from enfold.introspection.sources import source_summaries
        from enfold.observing.counting import CallCounts
        from enfold.surfaces.http import to_http
        from enfold.surfaces.mcp import to_mcp

        options, tokens = self._terms.options, self._terms.tokens
        shared: dict[str, Any] = {
            "format": options.format,
            "tokens": tokens,
            "allow_anonymous": options.allow_anonymous,
            "allowed_hosts": options.allow_host,
            "allowed_origins": options.allow_origin,
            "max_body": options.max_body,
            "recorder": self._terms.recorder,
            "version": options.app_version,
            "tasks": self._tasks,
        }
        worker = self._terms.worker
        self._mcp = to_mcp(
            self._registry,
            bounds=self._terms.bounds,
            name=options.title,
            secret=self._terms.secret,
            session_prefix="" if worker is None else session_prefix(worker),
            **agent_settings(options, options.target),
            **shared,
        )
        mounts: dict[str, Any] = {"/mcp": self._mcp}
        if tokens is not None:  # where an MCP client asks who gives the tokens
            mounts["/.well-known/oauth-protected-resource"] = self._mcp
        self._registry.observers.gauges["sessions"] = lambda: {"mcp": self._mcp.sessions}
        if (tasks := self._tasks) is not None:
            self._registry.observers.gauges["tasks"] = lambda: {"working": tasks.runner.working}
        counts = CallCounts(self._registry.observers, self._registry.sources)
        if worker is not None:
            self._registry.reserved.elsewhere = Siblings(worker)
        mounts |= metrics_mount(self._registry, counts, has_identities=tokens is not None)
        log = keep_calls(self._registry)
        self._told = Told(
            {
                "counts": lambda: msgspec.to_builtins(counts.snapshot()),
                "sources": lambda: source_summaries(self._registry),
                "calls": log.kept,
            },
            {"calls": log.watch},
        )
        self._http = to_http(
            self._registry, mounts=mounts, console=not options.no_console, title=options.title, **shared
        )
        return self._http

    def _stop(self) -> None:
        """End the streams, for which the server would otherwise wait without end."""
        self._mcp.stop()
        self._http.stop()

    async def serve(self, listening: socket) -> None:
        """Serve until a signal ends it."""
        start_listening(listening)
        worker = self._terms.worker
        with ended_by_signals(self._server.end):
            if worker is None:
                say_where(self._registry, self._terms, listening.getsockname()[1])
                await self._server.serve([listening])
            else:
                await self._serve_as_worker(worker, listening)

    async def _serve_as_worker(self, worker: Worker, listening: socket) -> None:
        async with listen_to_siblings(worker, self._http, self._told), without_parent(worker, self._server.end):
            if worker.is_loud:
                say_where(self._registry, self._terms, listening.getsockname()[1])
                worker.say_ready()
            await self._server.serve([listening])


def _is_file(tasks: Tasks | None) -> bool:
    """Whether there is a folder that tasks are kept in."""
    return tasks is not None and hasattr(tasks.store, "path")


def _limits(bounds: Bounds) -> CallLimits | None:
    at_once, per_second = bounds.calls_at_once, bounds.calls_per_second
    return None if at_once is per_second is None else CallLimits(at_once=at_once, per_second=per_second)
