"""What `enfold serve` does around its server: the banner, peers that join late, `--reload`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enfold.app.signals import HANGUP
from enfold.calls.protocol.connection import address_name
from enfold.commands.shared.log import announce
from enfold.commands.shared.targets import with_peers
from enfold.errors import CallError
from enfold.log import Log, counted
from enfold.operations import OperationSpec
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.storage import FileVersion, file_version

if TYPE_CHECKING:
    from enfold.auth.tokens import AnyOf
    from enfold.commands.serve import Terms


MAX_NAMES: Final = 8  # operations that the start names


def announce_server(registry: Registry, terms: Terms, port: int) -> None:
    """Tell the address on stderr; by then clients can connect."""
    host = f"[{terms.options.host}]" if ":" in terms.options.host else terms.options.host
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


def _title(registry: Registry, terms: Terms) -> str:
    title, version = terms.options.title or registry.title, terms.options.app_version or registry.app_version
    return f"{title or 'Enfold'} {version}".strip()


def _access_lines(specs: list[OperationSpec], terms: Terms) -> Iterator[tuple[str, str]]:
    """Who may call, what is public, and what cannot be called."""
    tokens = terms.tokens
    if tokens is None:
        yield "tokens", "none: everyone who can reach this address may call"
    else:
        yield "tokens", counted(len(tokens), "identity", "identities") + _from_issuers(tokens)
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


def _from_issuers(tokens: AnyOf) -> str:
    return f", and tokens of {_first_names([each.issuer for each in tokens.issuers])}" if tokens.issuers else ""


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


JOIN_TIMEOUT: Final = 0.5  # seconds that serving waits for peers which are there
RETRY_INTERVAL: Final = 0.5  # seconds

_log: Final = Log("enfold.calls")


@asynccontextmanager
async def joining_peers(
    registry: OperationRegistry, address: str, *, insecure: bool = False, durable: bool = True
) -> AsyncIterator[OperationRegistry]:
    """A registry that has the operations of running peers as soon as their server can be reached; until then it is not ready."""
    registry.sources.enter(address_name(address), "calls", required=True)
    joining = _Joining(registry, address, insecure=insecure, durable=durable)
    task = asyncio.get_running_loop().create_task(joining.run())
    try:
        await joining.wait()
        yield registry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Joining:
    """Retries until the peers are there; a connection that is lost later is made again by its transport."""

    def __init__(self, registry: OperationRegistry, address: str, *, insecure: bool, durable: bool) -> None:
        self._registry = registry
        self._address = address
        self._how = {"insecure": insecure, "durable": durable}
        self._name = address_name(address)
        self._joined = asyncio.Event()
        self._logged = ""

    async def wait(self) -> None:
        """Wait a moment for the peers; then log that they are away."""
        try:
            await asyncio.wait_for(self._joined.wait(), JOIN_TIMEOUT)
        except TimeoutError:
            self._log_loss(f"{self._name} is unavailable; retrying", "not answered yet")

    async def run(self) -> None:
        while True:
            try:
                async with with_peers(self._registry, self._address, **self._how):
                    self._joined.set()
                    if self._logged:
                        _log.warning("%s is back", self._name)
                    await asyncio.get_running_loop().create_future()  # until we are cancelled
            except CallError as error:
                if error.code == "ACCESS_DENIED":  # it is there, and something else is wrong
                    self._log_loss(error.message, error.message)
            await asyncio.sleep(RETRY_INTERVAL)

    def _log_loss(self, line: str, why: str) -> None:
        if line != self._logged and not self._joined.is_set():
            self._logged = line
            _log.warning("%s", line)
            self._registry.sources.enter(self._name, "calls", "down", why=why)


RELOAD_INTERVAL: Final = 0.5
DRAIN_TIMEOUT: Final = (
    10.0  # seconds that calls have to finish before a start anew; at the end they have their own time
)


def run_reloading(command: list[str]) -> int:
    """Keep the command running until a signal ends it; one that fails waits for the next change."""
    return _Supervisor(command).run()


class _Supervisor:
    """Starts the command again, and passes signals on to it."""

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
    """The version of each file; hidden folders and environments are left out."""
    return {
        str(path): file_version(path)
        for path in Path().rglob("*.py")
        if not any(part.startswith((".", "__")) or part == "node_modules" for part in path.parts)
    }
