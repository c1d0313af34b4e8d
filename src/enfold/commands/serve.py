"""The command `enfold serve`: HTTP and MCP on one port, for a target, a configuration, or running peers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from enfold.app.app import App, HTTPSettings, MCPSettings, ServerSettings, loop_factory
from enfold.app.siblings import Siblings, session_prefix
from enfold.app.signals import HANGUP, Grace, ignore_hangups, ignore_signals_at_exit, run_server
from enfold.app.sockets import Certificate, bind, check_certificate
from enfold.app.worker_processes import Worker, run_workers
from enfold.auth.tokens import is_loopback
from enfold.calls.protocol.connection import address_name
from enfold.commands.main import exit_code_of
from enfold.commands.nats import users_in
from enfold.commands.shared.advice import missing_target
from enfold.commands.shared.callers import add_caller_options, current_rights, token_verifier
from enfold.commands.shared.log import add_log_options, announce, set_up_log, write_calls
from enfold.commands.shared.options import (
    add_agent_options,
    add_list,
    add_number,
    agent_settings,
    limits_of,
    number_reader,
    parse_command,
)
from enfold.commands.shared.stores import (
    OrderKeys,
    TaskSettings,
    add_order_options,
    add_recording_options,
    idempotency_store,
    opened_tasks,
    recorder_of,
    task_settings,
)
from enfold.commands.shared.targets import opened, registry_of_peers, with_peers
from enfold.errors import CallError, counted
from enfold.formats import DEFAULT_FORMAT
from enfold.observability.log import Log
from enfold.operations import OperationSpec, Policy
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.storage import FileVersion, file_version
from enfold.surfaces.limits import Limits, check_divisible, divided

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from socket import socket

    from enfold.runtime.source_states import SourceState
    from enfold.tasks import Tasks


GRACE: Final = 25.0  # seconds that calls may take to finish at the end; what starts us often kills us after 30


class Terms(msgspec.Struct, frozen=True):
    """How a registry is served: the options, who may come in, what is recorded, and within which limits."""

    options: Any  # an argparse.Namespace
    tokens: Any  # what knows the callers, or None where everybody may come in
    is_local: bool  # whether only this machine can reach the server
    limits: Limits
    certificate: Certificate | None = None
    recorder: Any = None  # of the process that serves, or None
    worker: Worker | None = None  # where this is one of several processes
    secret: bytes | None = None  # that they share

    @property
    def is_primary(self) -> bool:
        """Whether this process prints where it serves; of several, one does."""
        return self.worker is None or self.worker.is_primary


def run(words: list[str], registry: Registry | None) -> int:
    """Serve until the process is signalled to stop."""
    ignore_hangups()
    options = parse_command("serve", words, registry, "Serve operations over HTTP and MCP.", _add_serve_options)
    _fill_in_address(options)
    if options.reload:
        program = ["-m", "enfold"] if registry is None else [sys.argv[0]]
        command = [sys.executable, *program, "serve", *(word for word in words if word != "--reload")]
        return _Supervisor(command).run()
    set_up_log(options.log_level, options.log_format)
    terms = _terms(options)
    with bind(options.host, options.port) as listening:  # report a port in use before anything is opened
        if options.workers == 1:
            return _run(terms, listening)
        check_divisible(terms.limits, options.workers)
        ignore_signals_at_exit()
        shared = msgspec.structs.replace(terms, secret=os.urandom(32))
        return run_workers(options.workers, lambda worker: _run_worker(shared, worker, listening))


def _fill_in_address(options: Namespace) -> None:
    """Take the address from the environment, as platforms that run containers set it, where no option says it."""
    if options.host is None:
        options.host = os.environ.get("ENFOLD_HOST") or "127.0.0.1"
    if options.port is None:
        options.port = number_reader("PORT", 0, 65_535)(os.environ.get("PORT") or "8000")


def _run(terms: Terms, listening: socket) -> int:
    factory = loop_factory()
    # Each process opens the store of records for itself: a connection to a database does not survive a fork.
    own = msgspec.structs.replace(terms, recorder=recorder_of(terms.options))
    run_server(_serve(own, _opened(own), listening), factory)
    return 0


def _run_worker(shared: Terms, worker: Worker, listening: socket) -> int:
    limits = divided(shared.limits, worker.count, worker.number)
    terms = msgspec.structs.replace(shared, worker=worker, limits=limits)
    return exit_code_of(lambda: _run(terms, listening))


def _opened(terms: Terms) -> AbstractAsyncContextManager[Registry]:
    """Open the operations of the target; none if only those of peers are served."""
    target, worker = terms.options.target, terms.worker
    if target is None:
        return nullcontext(registry_of_peers())
    active = None
    if worker is not None and target.config is not None:
        from enfold.app.reload import ActiveConfig  # programs need none

        active = ActiveConfig(Path(worker.folder, "configuration"))
    return opened(target, reloads=True, active=active, waits_for_optional=terms.is_primary)


def _terms(options: Namespace) -> Terms:
    if options.target is None and not (options.nats or options.hub):
        raise missing_target("serve", besides="; to serve only peers, use --nats URL or --hub URL")
    tokens = token_verifier(options)
    is_local = is_loopback(options.host)
    if not is_local and not tokens and not options.insecure:  # not even a list of none
        raise CallError(
            "VALIDATION_ERROR",
            f"Serving on {options.host} without tokens gives everyone access: pass --tokens FILE, or --insecure to allow it",
        )
    return Terms(options, tokens, is_local, limits_of(options.target, options.limit), _certificate(options))


def _certificate(options: Namespace) -> Certificate | None:
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise CallError("VALIDATION_ERROR", "--tls-key needs --tls-cert, the certificate of the key")
        return None
    files = Certificate(options.tls_cert, options.tls_key)
    check_certificate(files)
    return files


def _add_serve_options(parser: ArgumentParser) -> None:
    parser.add_argument("--host", help="the address to listen on (default ENFOLD_HOST, else 127.0.0.1)")
    add_number(parser, "--port", 0, 65_535, help="the port; 0 chooses a free one (default PORT, else 8000)")
    parser.add_argument("--format", default=DEFAULT_FORMAT, help="default format of responses")
    add_caller_options(parser)
    parser.add_argument("--token", help="a shared token for the identity `owner`; prefer ENFOLD_SERVE_TOKEN")
    parser.add_argument(
        "--allow-anonymous", action="store_true", help="allow calls without a token to operations without access rules"
    )
    parser.add_argument("--insecure", action="store_true", help="allow serving other machines without tokens")
    add_list(parser, "--allow-host", "NAME", "accept requests for this host name")
    add_list(parser, "--allow-origin", "ORIGIN", "accept requests from pages of this origin")
    parser.add_argument(
        "--forwarded-allow-ips",
        type=_proxies,
        default=[],
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted: addresses or networks, separated by commas",
    )
    body = "maximum size of a request body"
    add_number(parser, "--max-body", default=8 * 1024 * 1024, metavar="BYTES", help=body)
    add_list(parser, "--limit", "NAME=NUMBER", "override a limit (docs/limits.md)")
    parser.add_argument("--no-console", action="store_true", help="do not serve the console at /")
    parser.add_argument(
        "--keep-payloads",
        action="store_true",
        help="keep arguments and results of the last 200 calls for callers who may see calls (docs/console.md)",
    )
    add_agent_options(parser)
    add_recording_options(parser)
    add_log_options(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--nats", metavar="URL", help="serve the operations of peers on these NATS servers")
    place.add_argument("--hub", metavar="URL", help="serve the operations of the peers on this hub")
    parser.add_argument(
        "--tasks",
        metavar="STORE",
        help="store tasks in this file, or at nats://… (default .enfold/tasks.db, or the server of --nats)",
    )
    add_order_options(parser)
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain")
    parser.add_argument("--tls-key", metavar="FILE", help="the private key, unless it is in the same file")
    parser.add_argument(
        "--root-path", default="", type=_root_path, help="path prefix that a proxy removes, such as /shop"
    )
    parser.add_argument("--title", help="application name, in the OpenAPI document and for MCP clients")
    parser.add_argument("--app-version", metavar="TEXT", help="application version")
    add_number(parser, "--workers", 1, 256, default=1, metavar="N", help="number of worker processes")
    grace = "seconds for running calls to finish at shutdown"
    add_number(parser, "--grace", 0, 86_400, kind=float, default=GRACE, help=grace)
    parser.add_argument("--reload", action="store_true", help="restart when a Python file below this folder changes")


def _proxies(text: str) -> list[str]:
    """Parse the addresses of proxies as uvicorn does."""
    proxies = [address.strip() for address in text.split(",")]
    try:
        for address in proxies:
            ip_network(address)
    except ValueError:
        advice = "addresses or networks of proxies, such as 127.0.0.1,10.0.0.0/8"
        raise CallError("VALIDATION_ERROR", f"--forwarded-allow-ips must be {advice}; not {text[:50]}") from None
    return proxies


def _root_path(text: str) -> str:
    path = quote(text.strip("/"), safe="/%:@!$&'()*+,;=")  # as clients send it
    return f"/{path}" if path else ""


async def _serve(terms: Terms, opening: AbstractAsyncContextManager[Registry], listening: socket) -> None:
    async with opening as own:
        target = terms.options.target
        if terms.is_primary and target is not None and target.kind == "configuration":
            announce(map(_state_line, own.services.sources))
        write_calls(own, terms.options)
        settings, grace = _task_settings(terms.options), Grace(terms.options.grace)
        how = {"recorder": terms.recorder, "current": current_rights(terms.tokens), **_division(settings, own)}
        async with (
            _with_peers(own, terms, settings) as registry,
            opened_tasks(_hiding_errors(registry, terms), settings, grace, **how) as tasks,
        ):
            shared = None if terms.worker is None else terms.worker.folder
            registry.services.new_idempotency_store = partial(idempotency_store, settings, shared=shared)
            app, options = _app(registry, terms, tasks), terms.options
            http = HTTPSettings(
                format=options.format,
                title=options.title,
                version=options.app_version,
                console=not options.no_console,
                max_body=options.max_body,
            )
            server = ServerSettings(
                certificate=terms.certificate,
                proxies=options.forwarded_allow_ips,
                root_path=options.root_path,
                grace=options.grace,
            )
            ready = partial(_announce, registry, terms, listening)
            await app.serve(app.http(http), listening, server, grace, worker=terms.worker, ready=ready)


def _task_settings(options: Namespace) -> TaskSettings:
    settings = task_settings(options.target, options.tasks, options.nats)
    users = () if options.users is None else tuple(users_in(options.users))
    keys = OrderKeys(options.order_key, users)
    return msgspec.structs.replace(settings, insecure=options.insecure, orders=keys)


def _division(settings: TaskSettings, own: Registry) -> dict[str, Any]:
    """Decide who runs what in the peers' store: peers their operations, this process its own, if any."""
    if not settings.of_peers:
        return {}
    has_own = settings.may_be_durable or any(spec.durable != "never" for spec in own.list())
    return {"elsewhere": address_name(settings.store or ""), **({} if has_own else {"at_once": 0})}


def _hiding_errors(registry: Registry, terms: Terms) -> Registry:
    """Return the registry; beyond this machine, the text of unexpected exceptions is hidden."""
    return registry if terms.is_local else registry.with_policy(Policy(expose_errors=False))


def _state_line(source: SourceState) -> str:
    more = {
        "up": counted(source.operations, "operation"),
        "down": "retrying",
        "starting": "available when ready",
    }
    return f"{source.name}: {source.state}, {more[source.state]}"


@asynccontextmanager
async def _with_peers(own: Registry, terms: Terms, settings: TaskSettings) -> AsyncIterator[Registry]:
    """Return the operations of the target and those of running peers, as tasks only where they look for tasks."""
    options = terms.options
    address = options.nats or options.hub
    if not address:
        yield own
        return
    registry = own
    if not isinstance(registry, OperationRegistry):  # a view, in which others cannot be registered
        application = own.application()
        registry = OperationRegistry(title=application.name, version=application.version)
        registry.services.sources, registry.services.observers = own.services.sources, own.services.observers
        registry.register_all(own)
    how = {"insecure": options.insecure, "durable": settings.of_peers or options.nats is None}
    if terms.is_primary:  # only the first start reports problems; a restarted worker continues without
        peers = with_peers(registry, address, required=True, **how)
    else:
        peers = _joining_peers(registry, address, **how)
    async with peers:
        yield registry


def _app(registry: Registry, terms: Terms, tasks: Tasks | None) -> App:
    options, worker = terms.options, terms.worker
    app = App(
        _hiding_errors(registry, terms),
        tokens=terms.tokens,
        allow_anonymous=options.allow_anonymous,
        allowed_hosts=options.allow_host,
        allowed_origins=options.allow_origin,
        tasks=tasks,
        recorder=terms.recorder,
        limits=terms.limits,
        mcp=MCPSettings(
            name=options.title,
            version=options.app_version,
            format=options.format,
            secret=terms.secret,
            session_prefix="" if worker is None else session_prefix(worker),
            **agent_settings(options, options.target),
        ),
    )
    if options.keep_payloads:
        from enfold.surfaces.introspection.calls import Payloads  # which a server without it can do without

        app.payloads = Payloads()
    if worker is not None:
        registry.services.siblings = Siblings(worker)
    return app


# --- the start: what is served, peers that join late, and `--reload` ------------------------------------------------

MAX_NAMES: Final = 8  # operations that the start names


def _announce(registry: Registry, terms: Terms, listening: socket) -> None:
    """Print the address, and report to the parent; of several processes, only the primary does."""
    if not terms.is_primary:
        return
    host, port = terms.options.host, listening.getsockname()[1]
    host = f"[{host}]" if ":" in host else host
    scheme = "http" if terms.certificate is None else "https"
    base = f"{scheme}://{host}:{port}"
    lines = [
        f"{_title(registry, terms)} serves {counted(len(registry), 'operation')}",
        f"  calls     {base}/functions/{{id}}",
        *(() if terms.options.no_console else (f"  console   {base}/",)),
        f"  document  {base}/openapi.json",
        f"  MCP       {base}/mcp",
        f"  health    {base}/healthz and {base}/readyz",
        *((f"  metrics   {base}/metrics",) if find_spec("prometheus_client") else ()),
        *([] if terms.worker is None else [f"  workers   {terms.worker.count} processes"]),
        *(f"  {name:<9} {sentence}" for name, sentence in _access_lines(registry.list(), terms)),
        "Press Ctrl-C to stop.",
    ]
    announce(lines)
    if terms.worker is not None:
        terms.worker.notify_ready()


def _title(registry: Registry, terms: Terms) -> str:
    title, version = terms.options.title or registry.title, terms.options.app_version or registry.app_version
    return f"{title or 'Enfold'} {version}".strip()


def _access_lines(specs: list[OperationSpec], terms: Terms) -> Iterator[tuple[str, str]]:
    """Describe who may call, what is public, and what cannot be called."""
    tokens = terms.tokens
    if tokens is None:
        yield "tokens", "none: everyone who can reach this address may call"
    else:
        issuers = f", and tokens of {_first_names([each.issuer for each in tokens.issuers])}" if tokens.issuers else ""
        yield "tokens", counted(len(tokens), "identity", "identities") + issuers
    is_closed = tokens is not None and not terms.options.allow_anonymous
    free = [spec.id for spec in specs if spec.access_control.public or (not is_closed and spec.access_control.is_open)]
    yield "open", _first_names(free) if free else "nothing without a token" if is_closed else "nothing"
    if terms.options.keep_payloads:
        yield "payloads", "arguments and results of the last 200 calls are kept for callers who may see calls"
    guarded = [] if tokens is not None else [spec.id for spec in specs if not spec.access_control.is_open]
    if guarded:
        yield (
            "blocked",
            f"{_first_names(guarded)}: access rules apply, but callers have no identity. Pass --tokens FILE",
        )


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


JOIN_TIMEOUT: Final = 0.5  # seconds that serving waits for peers which are there
RETRY_INTERVAL: Final = 0.5  # seconds

_log: Final = Log("enfold.calls")


@asynccontextmanager
async def _joining_peers(
    registry: OperationRegistry, address: str, *, insecure: bool = False, durable: bool = True
) -> AsyncIterator[OperationRegistry]:
    """Add the operations of running peers as soon as their server is reachable; until then it is not ready."""
    name, joined, logged = address_name(address), asyncio.Event(), ""

    async def join() -> None:
        """Retry until the peers are there; a connection that is lost later is made again by its transport."""
        while True:
            try:
                async with with_peers(registry, address, insecure=insecure, durable=durable):
                    joined.set()
                    if logged:
                        _log.warning("%s is back", name)
                    await asyncio.get_running_loop().create_future()  # until we are cancelled
            except CallError as error:
                if error.code == "ACCESS_DENIED":  # it is there, and something else is wrong
                    log_loss(error.message, error.message)
            await asyncio.sleep(RETRY_INTERVAL)

    def log_loss(line: str, why: str) -> None:
        nonlocal logged
        if line != logged and not joined.is_set():
            logged = line
            _log.warning("%s", line)
            registry.services.sources.enter(name, "calls", "down", why=why)

    registry.services.sources.enter(name, "calls", required=True)
    task = asyncio.get_running_loop().create_task(join())
    try:
        try:
            await asyncio.wait_for(joined.wait(), JOIN_TIMEOUT)
        except TimeoutError:
            log_loss(f"{name} is unavailable; retrying", "not answered yet")
        yield registry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


RELOAD_INTERVAL: Final = 0.5
DRAIN_TIMEOUT: Final = 10.0  # seconds that calls have to finish before a restart


class _Supervisor:
    """Keeps a command running until a signal ends it; one that fails waits for the next change. Signals are passed on."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._is_ending = False
        self._is_told = False  # whether the child knows of the end
        self._child: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def run(self) -> int:
        seen = _versions()
        self._start()
        while not self._is_ending:
            time.sleep(RELOAD_INTERVAL)
            now = _versions()
            if now != seen:
                seen = now
                self._start_again()
        if self._child is not None:
            if not self._is_told:
                self._child.terminate()
            self._child.wait()
        return 0

    def _start_again(self) -> None:
        if self._child is not None:
            _stop(self._child)
        if not self._is_ending:
            print("Files changed: restarting.", file=sys.stderr)
            self._start()

    def _start(self) -> None:
        for number in HANGUP:  # ignored until the child can handle it
            signal.signal(number, signal.SIG_IGN)
        # In a group of its own: a Ctrl-C is for us, who pass it on once.
        self._child = subprocess.Popen(self._command, process_group=0)  # noqa: S603  # our own command line
        self._is_told = False
        for number in HANGUP:
            signal.signal(number, self._pass_on)

    def _end(self, *_: object) -> None:
        self._is_ending = self._is_told = True
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int, *_: object) -> None:
        if self._child is not None:
            self._child.send_signal(number)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a child: by SIGTERM, by a second one, which does not wait for calls, and then by SIGKILL."""
    for end in (child.terminate, child.terminate, child.kill):
        end()
        try:
            child.wait(DRAIN_TIMEOUT)
        except subprocess.TimeoutExpired:
            continue
        return


def _versions() -> dict[str, FileVersion]:
    """Return the version of each file; hidden folders and environments are left out."""
    return {
        str(path): file_version(path)
        for path in Path().rglob("*.py")
        if not any(part.startswith((".", "__")) or part == "node_modules" for part in path.parts)
    }
