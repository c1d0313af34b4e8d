"""Targets of commands: a program, a configuration, a document, a server, peers, or the registry of a user's script."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias

import msgspec

from enfold.errors import CallError, code_row, install_command, printable
from enfold.runtime.registry import OperationRegistry, Registry

if TYPE_CHECKING:
    from enfold.app.file import Config, Logins
    from enfold.app.reconciler import Reconciler
    from enfold.app.reload import ActiveConfig
    from enfold.sources.openapi.source import ImportedOperations


TOKEN: Final = "ENFOLD_TOKEN"  # noqa: S105  # the variable that holds what we show to hubs, brokers and MCP servers

Kind: TypeAlias = Literal["program", "configuration", "document", "server", "peers"]

_EXTRAS: Final = {"document": "openapi", "server": "mcp"}


class Target(msgspec.Struct, frozen=True, dict=True):
    """What a command runs on, in the user's words; `command` starts an MCP server, `registry` is that of a user's script."""

    kind: Kind
    text: str
    command: tuple[str, ...] = ()
    registry: Any = None

    @cached_property
    def config(self) -> Config | None:
        """What the file says, where the target is a configuration: read once, so that all of a command goes by the same."""
        if self.kind != "configuration":
            return None
        from enfold.app.file import read_config  # programs need none

        return read_config(self.text, os.environ)


# --- what it is ---------------------------------------------------------------------------------------------------


def read_target(text: str) -> Target:
    """Parse a target; a file is opened only if its name does not say what it is."""
    if not text:
        raise CallError("VALIDATION_ERROR", "The target is empty: pass a Python file, such as app.py")
    if "://" in text:
        return Target(_kind_of_address(text), text)
    if text.endswith(".toml"):
        return Target("configuration", text)
    if text.endswith((".yaml", ".yml")):
        return Target("document", text)
    if text.endswith((".json", ".jsonc")):
        return Target("document" if _is_document(text) else "configuration", text)
    return Target("program", text)


def _kind_of_address(text: str) -> Kind:
    if not text.lower().startswith(("http://", "https://")):
        return "peers"
    from urllib.parse import urlsplit  # slow to import, and only needed here

    last = urlsplit(text).path.rpartition("/")[2].lower()
    words = ("openapi", "swagger", "api-docs")
    return "document" if last.endswith((".json", ".yaml", ".yml")) or any(each in last for each in words) else "server"


class _DocumentHead(msgspec.Struct):
    """The top-level keys of a file, to distinguish an OpenAPI document from an editor's configuration."""

    openapi: Any = None
    swagger: Any = None


def _is_document(path: str) -> bool:
    from pathlib import Path  # 5 ms, here and below

    try:
        text = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
        head = msgspec.json.decode(text, type=_DocumentHead)
    except (OSError, msgspec.DecodeError, RecursionError):
        return False  # reading it as a configuration reports the mistake
    return head.openapi is not None or head.swagger is not None


def split_command(words: list[str]) -> tuple[list[str], Target | None]:
    """Split the words at `--`: those before it, and the MCP server that the command after it starts."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    command = tuple(words[at + 1 :])
    if not command:
        raise CallError("VALIDATION_ERROR", "-- needs the command of an MCP server, as in: -- npx some-server")
    return words[:at], Target("server", " ".join(command), command)


def script_target(registry: Registry) -> Target:
    """Return the target for a user's script, which calls `ops.run()`."""
    return Target("program", os.path.basename(sys.argv[0]) or "program", registry=registry)  # noqa: PTH119  # `pathlib` takes its time to load


def config_of(target: Target | None) -> Config | None:
    """Return the configuration of a target, if it is one."""
    return None if target is None else target.config


# --- programs, which need no event loop ---------------------------------------------------------------------------


def first_target(words: list[str], registry: Registry | None, command: str, rest: str = "") -> tuple[Target, list[str]]:
    """Return the target, a script's registry or the first word, and the remaining words.

    `rest` is what else the command needs, for the message to a user who gives it nothing.
    """
    if registry is not None:
        return script_target(registry), words
    if not words or words[0].startswith("-"):
        from enfold.commands.shared.advice import ANY, PROGRAM, check_options, missing_target  # for a mistake alone

        check_options(command, words[:2])
        raise missing_target(command, PROGRAM if command == "cgi" else ANY, rest=rest)
    return read_target(words[0]), words[1:]


def load_program(target: Target) -> Registry:
    """Return the registry of a user's script, or load that of a program; any error is reported as one sentence."""
    if isinstance(target.registry, Registry):
        return target.registry
    from enfold.sources.functions import TargetError, load_target

    try:
        with output_for_results():
            return load_target(target.text)
    except TargetError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None
    except SystemExit as error:
        raise CallError("EXECUTION_ERROR", f"{target.text} called exit ({error.code}) while it was imported") from None
    except Exception as error:
        raise CallError("EXECUTION_ERROR", f"Cannot import {target.text}: {_where(error)}") from error


def served_program(registry: Registry, name: str) -> Registry:
    """Return the registry of a program, which is listed among its own sources."""
    registry.services.sources.enter(name, "functions", "up", operations=len(registry))
    return registry


def _where(error: BaseException) -> str:
    """Describe an exception, with the last line of the user's code that it passed through."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    from pathlib import Path  # for a mistake alone, as is the next
    from traceback import walk_tb

    own = str(Path(__file__).parents[2])
    steps = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    places = [f" ({name}, line {line})" for name, line in steps if not name.startswith(("<", own))]
    return f"{type(error).__name__}: {error}{places[-1] if places else ''}"


@contextmanager
def output_for_results() -> Iterator[TextIO]:
    """Standard output for results alone: what targets print meanwhile, and what they start, goes to standard error."""
    try:
        standard, messages = sys.stdout.fileno(), sys.stderr.fileno()
    except (OSError, AttributeError):  # They are no files, but texts in memory, or closed.
        out = sys.stdout
        with redirect_stdout(sys.stderr):
            yield out
        return
    sys.stdout.flush()
    kept = os.dup(standard)
    os.dup2(messages, standard)
    try:
        with os.fdopen(os.dup(kept), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors) as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, standard)
        os.close(kept)


# --- everything, open for as long as a command runs ---------------------------------------------------------------


def on_target(target: Target, command: Callable[[Registry], int], operation: str | None = None) -> int:
    """Run a command on a target; with `operation`, only the sources that may have it are opened."""
    if target.kind == "program":
        return command(load_program(target))

    async def run(found: Registry) -> int:
        return command(found)

    return in_loop(target, run, operation)


def in_loop(
    target: Target, command: Callable[[Registry], Coroutine[Any, Any, int]], operation: str | None = None
) -> int:
    """Run a command in the loop that the sources of its target live in; where all are down, there is nothing to run."""
    from enfold.app.signals import run_in_loop

    async def run() -> int:
        async with AsyncExitStack() as stack:
            with _shown_opening(target):
                opening = opened(target, operation=operation, login_patience=LOGIN_PATIENCE)
                registry = await stack.enter_async_context(opening)
            if len(registry.services.sources) and all(source.state != "up" for source in registry.services.sources):
                raise CallError("UNAVAILABLE", f"Could not open any source of {target.text}")
            return await command(registry)

    code = run_in_loop(run())
    return code_row("ABORTED").exit_code if code is None else code


@contextmanager
def _shown_opening(target: Target) -> Iterator[None]:
    """Show at a terminal that sources are being opened; messages appear above that line."""
    if not sys.stderr.isatty():
        yield
        return
    from enfold.surfaces.command_line.terminal import ProgressLine

    with ProgressLine(sys.stderr).waiting(f"opening {target.text}"):
        yield


def opened(
    target: Target,
    *,
    operation: str | None = None,
    login_patience: float = 0.0,
    reloads: bool = False,
    active: ActiveConfig | None = None,
    waits_for_optional: bool = True,
) -> AbstractAsyncContextManager[Registry]:
    """Open the registry of a target with its sources; with `operation`, only those that may have it.

    With `reloads` a configuration is reloaded when it changes and at SIGHUP; `active` is shared by the processes of one
    server. Without `waits_for_optional` the start does not wait for sources that are not required.
    """
    if target.kind == "program":
        return nullcontext(served_program(load_program(target), target.text))
    if target.config is None:
        return {"document": _document, "server": _server, "peers": _peers}[target.kind](target)
    from enfold.app.reconciler import open_reconciler

    config = target.config if active is None else active.load(target.config, os.environ)
    opening = open_reconciler(
        config, os.environ, logins=logins(login_patience), operation=operation, waits_for_optional=waits_for_optional
    )
    return _configuration(opening, active, reloads=reloads, is_first=waits_for_optional)


@asynccontextmanager
async def _configuration(
    opening: AbstractAsyncContextManager[Reconciler],
    active: ActiveConfig | None,
    *,
    reloads: bool,
    is_first: bool,
) -> AsyncIterator[Registry]:
    from enfold.app.reload import watch_config
    from enfold.app.signals import HANGUP, handling

    async with AsyncExitStack() as stack:
        with output_for_results():  # its programs may print while they are loaded
            reconciler = await stack.enter_async_context(opening)
        if is_first:  # a worker that restarts serves what it can
            reconciler.check_programs()
        if reloads:
            watcher = await stack.enter_async_context(watch_config(reconciler, os.environ, active))
            stack.enter_context(handling(dict.fromkeys(HANGUP, watcher.reload)))
        yield reconciler.registry


@asynccontextmanager
async def _document(target: Target) -> AsyncIterator[Registry]:
    import asyncio

    async with await asyncio.to_thread(imported, target) as operations:  # Reading it may mean fetching it.
        registry = OperationRegistry(title=operations.name, version=operations.version)
        registry.register_all(operations)
        yield registry


def imported(target: Target) -> ImportedOperations:
    """Import the operations of an OpenAPI document, with their report."""
    with _explained(target):
        from enfold.sources.openapi import from_openapi

        return from_openapi(target.text)


@asynccontextmanager
async def _server(target: Target) -> AsyncIterator[Registry]:
    async with AsyncExitStack() as stack:
        with _explained(target):
            operations = await stack.enter_async_context(_from_mcp(target))
            registry = OperationRegistry(title=operations.name)
            registry.register_all(operations)
        yield registry


def _from_mcp(target: Target) -> AbstractAsyncContextManager[Any]:
    from enfold.app.sources import auth_of
    from enfold.sources.mcp import from_mcp

    if target.command:
        return from_mcp(target.command)
    token = os.environ.get(TOKEN)
    if token:
        return from_mcp(target.text, auth=token)
    return from_mcp(target.text, auth=auth_of({}, logins(), os.getcwd()))  # noqa: PTH109  # `pathlib` takes its time to load


def _peers(target: Target) -> AbstractAsyncContextManager[Registry]:
    return with_peers(registry_of_peers(), target.text)


def registry_of_peers() -> OperationRegistry:
    """Return an empty registry for the operations of running peers, without an application name."""
    registry = OperationRegistry()
    registry.module = {}
    return registry


@asynccontextmanager
async def with_peers(
    registry: OperationRegistry, address: str, *, insecure: bool = False, required: bool = False, durable: bool = True
) -> AsyncIterator[OperationRegistry]:
    """Add the operations of running peers to a registry; if `required`, it is not ready without them.

    `durable` says whether they may be ordered as tasks here.
    """
    from enfold.calls.protocol.connection import address_name
    from enfold.calls.transports.addresses import reached
    from enfold.sources.calls import from_calls

    name = address_name(address)
    if required:
        registry.services.sources.enter(name, "calls", required=True)
    async with (
        reached(address, token=os.environ.get(TOKEN), insecure=insecure) as transport,
        from_calls(transport, name=name, durable=durable) as found,
    ):
        found.keep(registry)
        yield registry


@contextmanager
def _explained(target: Target) -> Iterator[None]:
    """Turn any error of opening a target into one sentence."""
    try:
        yield
    except CallError as error:
        raise _with_advice(error, target) from None
    except ModuleNotFoundError as error:
        extra = _EXTRAS[target.kind]
        raise CallError("UNAVAILABLE", f"{target.text} needs {error.name}: {install_command(extra)}") from None
    except (OSError, ValueError, LookupError) as error:  # a broken reference is a LookupError
        sentence = str(error) if target.text in str(error) else f"{target.text} cannot be read: {error}"
        raise CallError("UNAVAILABLE" if "://" in target.text else "VALIDATION_ERROR", sentence) from None


def _with_advice(error: CallError, target: Target) -> CallError:
    """Add advice for the caller to the rejection of a server."""
    if target.kind == "server" and error.details.get("status") == 404:
        place = f"{target.text.rstrip('/')}/mcp"
        return CallError(error.code, f"{target.text} is not an MCP server (HTTP 404): try {place}", error.details)
    if error.code != "ACCESS_DENIED":
        return error
    if os.environ.get(TOKEN):
        return CallError(error.code, f"{target.text} does not accept the token in {TOKEN}", error.details)
    return CallError(error.code, f"{error.message}. Set {TOKEN} to a token that is accepted there", error.details)


# --- logging in ----------------------------------------------------------------------------------------------------

LOGIN_PATIENCE: Final = 330.0  # seconds that a command waits for a user who has to log in


def logins(patience: float = 0.0) -> Logins:
    """Return logins that open the browser and keep their tokens below the user's home."""
    from enfold.app.file import Logins

    home = os.environ.get("HOME") or os.environ.get("USERPROFILE")
    state = os.environ.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    return Logins(_open_browser, f"{state}/enfold/logins" if state else None, patience)


async def _open_browser(url: str) -> None:
    from asyncio import to_thread
    from webbrowser import open_new_tab

    print(
        f"An MCP server asks you to log in. If no browser opens, visit:\n  {printable(url)}",
        file=sys.stderr,
        flush=True,
    )
    # Where there is no screen, a browser in the terminal would take it over.
    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        await to_thread(open_new_tab, url)
