"""What a command is run on: a program, a configuration, a document, a server, peers; or the registry of a user's script."""

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
    redirect_stderr,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from enfold.errors import CallError, code_row
from enfold.registry import OperationRegistry, Registry

if TYPE_CHECKING:
    from enfold.config import ConfiguredRegistry
    from enfold.sources.openapi.source import ImportedOperations

__all__ = [
    "TOKEN",
    "Target",
    "first_target",
    "imported",
    "in_loop",
    "on_target",
    "opened",
    "program",
    "read_target",
    "served_program",
    "split_command",
    "with_peers",
]

TOKEN: Final = "ENFOLD_TOKEN"  # noqa: S105  # the variable that holds what we show to hubs, brokers and MCP servers

Kind: TypeAlias = Literal["program", "configuration", "document", "server", "peers"]

_EXTRAS: Final = {"document": "openapi", "server": "mcp"}


class Target(msgspec.Struct, frozen=True):
    """A target in the user's words, and what it is; `command` starts an MCP server."""

    kind: Kind
    text: str
    command: tuple[str, ...] = ()


# --- what it is ---------------------------------------------------------------------------------------------------


def read_target(text: str) -> Target:
    """What a word on the command line names; a file is opened only where its name does not say it."""
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


class _Head(msgspec.Struct):
    """The keys that tell an OpenAPI document from an editor's configuration; the rest of the file is not read."""

    openapi: Any = None
    swagger: Any = None


def _is_document(path: str) -> bool:
    try:
        text = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
        head = msgspec.json.decode(text, type=_Head)
    except (OSError, msgspec.DecodeError, RecursionError):
        return False  # Whoever reads it as a configuration says what is wrong with it.
    return head.openapi is not None or head.swagger is not None


def split_command(words: list[str]) -> tuple[list[str], Target | None]:
    """The words before `--`, and the MCP server that the command after it starts."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    command = tuple(words[at + 1 :])
    if not command:
        raise CallError("VALIDATION_ERROR", "After -- comes the command of an MCP server, as in: -- npx some-server")
    return words[:at], Target("server", " ".join(command), command)


# --- programs, which need no event loop ---------------------------------------------------------------------------


def first_target(words: list[str], registry: Registry | None, command: str) -> tuple[Target | None, list[str]]:
    """The target that stands first, and the words after it; none where a script's registry is the target."""
    if registry is not None:
        return None, words
    if not words or words[0].startswith("-"):
        raise CallError("VALIDATION_ERROR", f"{command} needs a target, as in: enfold {command} app.py")
    return read_target(words[0]), words[1:]


def program(target: Target | None, registry: Registry | None) -> Registry:
    """The registry of a user's script, or that of the program a target names."""
    return load(target.text) if target is not None else registry or OperationRegistry()


def served_program(registry: Registry, name: str) -> Registry:
    """The registry of a program, which is shown among its own sources."""
    registry.sources.enter(name, "functions", "up", operations=len(registry))
    return registry


def load(target: str) -> Registry:
    """The registry of a program; whatever is wrong with it becomes one sentence."""
    from enfold.sources.functions import TargetError, load_target

    try:
        return load_target(target)
    except TargetError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None
    except SystemExit as error:
        raise CallError("EXECUTION_ERROR", f"{target} ended the program itself ({error.code})") from None
    except Exception as error:
        raise CallError("EXECUTION_ERROR", f"{target} cannot be imported: {_where(error)}") from error


def _where(error: BaseException) -> str:
    """What an exception says, and the last line of the user's code it came through."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    own = str(Path(__file__).parent.parent)
    text = f"{type(error).__name__}: {error}"
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(("<", own)):
            place = f" ({name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return text + place


# --- everything, open for as long as a command runs ---------------------------------------------------------------


def on_target(
    target: Target | None,
    registry: Registry | None,
    command: Callable[[Registry], int],
    operation: str | None = None,
) -> int:
    """Run a command on a target; with `operation`, only the sources that may have it are opened."""
    if target is None or target.kind == "program":
        return command(program(target, registry))

    async def run(found: Registry) -> int:
        return command(found)

    return in_loop(target, run, operation)


def in_loop(
    target: Target, command: Callable[[Registry], Coroutine[Any, Any, int]], operation: str | None = None
) -> int:
    """Run a command in the loop that the sources of its target live in; where all are down, there is nothing to run."""
    from enfold.commands.browser_login import LOGIN_PATIENCE
    from enfold.commands.endings import run_in_loop

    async def run() -> int:
        async with AsyncExitStack() as stack:
            with _shown_opening(target):
                way_in = opened(target, operation=operation, login_patience=LOGIN_PATIENCE)
                registry = await stack.enter_async_context(way_in)
            if len(registry.sources) and all(source.state != "up" for source in registry.sources):
                raise CallError("UNAVAILABLE", f"No source of {target.text} could be opened")
            return await command(registry)

    code = run_in_loop(run())
    return code_row("ABORTED").exit_code if code is None else code


@contextmanager
def _shown_opening(target: Target) -> Iterator[None]:
    """Show a person at a terminal that sources are being opened; what is said meanwhile stands above that line."""
    if not sys.stderr.isatty():
        yield
        return
    from enfold.surfaces.command_line.terminal import ProgressLine

    line = ProgressLine(sys.stderr)
    with redirect_stderr(line.above()), line.waiting(f"opening {target.text}"):
        yield


def opened(
    target: Target, *, operation: str | None = None, login_patience: float = 0.0, rereads: bool = False
) -> AbstractAsyncContextManager[Registry]:
    """The registry of a target, with its sources open; with `operation`, those that may have it.

    `rereads` says that a configuration is followed: it is read again when it changes, and at SIGHUP.
    """
    if target.kind == "program":
        return nullcontext(served_program(load(target.text), target.text))
    if target.kind == "configuration":
        from enfold.commands.browser_login import logins
        from enfold.config import open_config

        found = open_config(target.text, os.environ, logins=logins(login_patience), operation=operation)
        return _reread(found) if rereads else found
    return {"document": _document, "server": _server, "peers": _peers}[target.kind](target)


@asynccontextmanager
async def _reread(opening: AbstractAsyncContextManager[ConfiguredRegistry]) -> AsyncIterator[Registry]:
    from enfold.commands.endings import HANGUP, handling
    from enfold.config import reread

    async with opening as registry, reread(registry, os.environ) as rereading:
        with handling(dict.fromkeys(HANGUP, rereading.now)):
            yield registry


@asynccontextmanager
async def _document(target: Target) -> AsyncIterator[Registry]:
    import asyncio

    registry = OperationRegistry()
    async with await asyncio.to_thread(imported, target) as operations:  # Reading it may mean fetching it.
        registry.register_all(operations)
        yield registry


def imported(target: Target) -> ImportedOperations:
    """The operations of an OpenAPI document, with their report."""
    with _explained(target):
        from enfold.sources.openapi import from_openapi

        return from_openapi(target.text)


@asynccontextmanager
async def _server(target: Target) -> AsyncIterator[Registry]:
    registry = OperationRegistry()
    async with AsyncExitStack() as stack:
        with _explained(target):
            registry.register_all(await stack.enter_async_context(_from_mcp(target)))
        yield registry


def _from_mcp(target: Target) -> AbstractAsyncContextManager[Any]:
    from enfold.commands.browser_login import logins
    from enfold.config.logins import auth_of
    from enfold.sources.mcp import from_mcp

    if target.command:
        return from_mcp(target.command)
    token = os.environ.get(TOKEN)
    if token:
        return from_mcp(target.text, credentials=token)
    return from_mcp(target.text, auth=auth_of({}, logins(), str(Path.cwd())))


def _peers(target: Target) -> AbstractAsyncContextManager[Registry]:
    return with_peers(OperationRegistry(), target.text)


@asynccontextmanager
async def with_peers(
    registry: OperationRegistry, address: str, *, insecure: bool = False, required: bool = False
) -> AsyncIterator[OperationRegistry]:
    """A registry with the operations of running peers in it; where they are `required`, it is not ready without them."""
    from enfold.calls.transports.addresses import address_name, reached
    from enfold.sources.calls import from_calls

    name = address_name(address)
    if required:
        registry.sources.enter(name, "calls", required=True)
    async with (
        reached(address, token=os.environ.get(TOKEN), insecure=insecure) as transport,
        from_calls(transport, name=name) as found,
    ):
        found.keep(registry)
        yield registry


@contextmanager
def _explained(target: Target) -> Iterator[None]:
    """Whatever keeps a target from being opened, as one sentence."""
    try:
        yield
    except CallError as error:
        if error.code != "ACCESS_DENIED" or os.environ.get(TOKEN):
            raise
        raise CallError(error.code, f"{error.message}. Set {TOKEN} to a token that is accepted there") from None
    except ModuleNotFoundError as error:
        extra = _EXTRAS[target.kind]
        raise CallError("UNAVAILABLE", f"{target.text} needs {error.name}: pip install 'enfold[{extra}]'") from None
    except (OSError, ValueError, LookupError) as error:  # a broken reference is a LookupError
        sentence = str(error) if target.text in str(error) else f"{target.text} cannot be read: {error}"
        raise CallError("UNAVAILABLE" if "://" in target.text else "VALIDATION_ERROR", sentence) from None
