"""The settings of an MCP server as values: its command or address, limits, headers and a login.

Fields with a description are keys of a configuration.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from enfold.operations import Context
from enfold.sources.options import MCPLimits, TextTable
from enfold.sources.secrets import KnownSecrets, Supplied

if TYPE_CHECKING:
    from enfold.sources.mcp.oauth.login import OAuthLogin

# Fixed headers, or a function that returns them for each request, for example with a token that is renewed.
GivenHeaders: TypeAlias = Supplied[Mapping[str, str]]
Dialect: TypeAlias = str  # the name of a revision; or `auto`, which asks the server
Per: TypeAlias = Literal["source", "session"]  # one connection for all callers, or one for each session of a client
Transport: TypeAlias = Literal["auto", "http", "sse"]
Kind: TypeAlias = Literal["tool", "resource", "prompt"]
Reads: TypeAlias = Literal["result"] | None  # results are wrapped as {"result": …}

# A bearer token, a user and their password, or a function that returns the value of `Authorization`.
Credentials: TypeAlias = str | tuple[str, str] | Callable[[], str | Awaitable[str]]

# The source's own answers to requests of servers, by method: `async def answer(params, context) -> result`.
Answerers: TypeAlias = Mapping[str, Callable[[dict[str, Any], Context], Awaitable[dict[str, Any]]]]

KINDS: Final[tuple[Kind, ...]] = ("tool", "resource", "prompt")

_KINDS: Final[dict[str, Transport]] = {
    "auto": "auto",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}


class Command(msgspec.Struct, frozen=True):
    """A server that is started here, and spoken to over its standard input and output."""

    words: tuple[str, ...]
    env: Annotated[
        dict[str, str],
        Meta(description="environment variables in addition to `PATH`, `HOME` and the like", extra={"file": TextTable}),
    ] = {}
    cwd: Annotated[str | None, Meta(description="the working directory; by default the folder of the file")] = None
    inherit_env: Annotated[bool, Meta(description="pass on all environment variables except `ENFOLD_*`")] = False

    def __str__(self) -> str:
        return self.words[0].rpartition("/")[2]


class Address(msgspec.Struct, frozen=True):
    """A server that runs somewhere; `auto` finds out which of the two HTTP transports it speaks."""

    url: Annotated[str, Meta(description="the URL of a running server, instead of `command`")]
    headers: Annotated[dict[str, str], Meta(description="sent to this server only", extra={"file": TextTable})] = {}
    transport: Annotated[Transport, Meta(description="the transport of the server at `url`")] = "auto"

    def __str__(self) -> str:
        return self.url.partition("://")[2].partition("/")[0].rpartition("@")[2]


Server: TypeAlias = Command | Address
Target: TypeAlias = str | Sequence[str] | Mapping[str, Any] | Command | Address


class Connection(msgspec.Struct, frozen=True):
    """How a source connects to its servers.

    `headers` and `client` (your own httpx client) are for servers with a URL. `protocol` selects a revision.
    `per="session"` opens a connection, and starts a process, for each session of an MCP client. `answers` are the
    source's own answers to `elicitation/create`, `sampling/createMessage` and `roots/list`, for callers that cannot be
    asked. `log_level` is the level requested of servers for log messages.
    """

    headers: GivenHeaders = {}
    client: Any = None
    protocol: Annotated[Dialect, Meta(description="one revision, such as `2025-11-25`")] = "auto"
    per: Annotated[
        Per,
        Meta(
            description="one connection (and process) for all callers, or one for each session of an MCP client",
        ),
    ] = "source"
    answers: Answerers = {}
    log_level: Annotated[str, Meta(description="the log level requested of the server if a client sets none")] = "info"
    limits: Annotated[
        MCPLimits,
        Meta(
            description="limits on the resources that the server may use",
            extra={"expected": "a table of numbers, such as {list_items = 10000}: see the page on MCP servers"},
        ),
    ] = MCPLimits()


class Content(msgspec.Struct, frozen=True):
    """What is imported from servers, and how it is presented.

    `reads="result"`: results are wrapped as `{"result": …}`. `instructions` are passed on to MCP clients: the
    server's own, your own text, or none (False).
    """

    kinds: Annotated[
        tuple[Kind, ...], Meta(description="what is imported; all three by default", extra={"file": list[Kind]})
    ] = KINDS
    reads: Annotated[Reads, Meta(description='the server wraps results as `{"result": …}` without declaring it')] = None
    advertise_output: Annotated[bool, Meta(description="advertise the output schema to clients")] = True
    instructions: Annotated[
        str | bool,
        Meta(
            description="the instructions that MCP clients see: those of the server, none, or your own",
            extra={"expected": "true, false or a string"},
        ),
    ] = True


class ServerSettings(msgspec.Struct, frozen=True):
    """How one server is reached; a login is for servers at an address.

    With `handshake_first` a server of both eras is spoken to in the older one: what it asks there, every client can be
    asked, and many servers cannot ask in the newest.
    """

    server: Server
    name: str
    connection: Connection = Connection()
    login: OAuthLogin | None = None
    handshake_first: bool = False
    secrets: KnownSecrets = msgspec.field(default_factory=KnownSecrets)  # which nothing that it sends may repeat

    @property
    def limits(self) -> MCPLimits:
        return self.connection.limits


# --- targets, and servers in the files of editors ----------------------------------------------------------------------


def read_servers(target: Target) -> Server | dict[str, Server]:
    """The one server a target names, or the servers of a configuration by their names."""
    if isinstance(target, Command | Address):
        return target
    if isinstance(target, str):
        return _from_text(target)
    if isinstance(target, Mapping):
        return _from_mapping(target)
    return Command(tuple(str(word) for word in target)) if target else _refuse("The command of the server is empty")


# Every editor has its own word for the same table, and for the same key.
EDITORS_TABLES: Final = ("mcpServers", "servers", "context_servers", "mcp_servers")
URL_KEYS: Final = ("url", "serverUrl", "httpUrl")


def is_enabled(entry: Any) -> bool:
    """Whether a server is to be opened; an entry that is no table is for its reader to refuse."""
    return not isinstance(entry, Mapping) or (entry.get("disabled") is not True and entry.get("enabled") is not False)


def server_from_entry(entry: Any) -> Server:
    """The server one entry of a configuration describes, in the format of any editor."""
    if not isinstance(entry, Mapping):
        _refuse(f"The entry of a server must be an object, not {entry!r:.40}")
    url = next((entry[key] for key in URL_KEYS if isinstance(entry.get(key), str)), None)
    if url is not None:
        return Address(url, _texts(entry, "headers"), _transport(entry))
    command = entry.get("command")
    if isinstance(command, Mapping):  # an older form: {"path", "args", "env"}
        return server_from_entry({**command, "command": command.get("path")})
    if isinstance(command, str) and command:
        words = (*_command_words(command, entry), *_words(entry.get("args") or []))
    elif isinstance(command, list) and command:
        words = _words(command)
    else:
        _refuse('A server needs "command" or "url"')
    cwd = entry.get("cwd")
    inherits = entry.get("inherit_env") is True
    return Command(words, _texts(entry, "env"), None if cwd is None else str(cwd), inherits)


def _command_words(command: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """A command alone may be a whole line, as in a shell; one with arguments beside it is a program's name."""
    if "args" in entry or " " not in command:
        return (command,)
    from shutil import which  # which takes its time to load

    return (command,) if which(command) else tuple(shlex.split(command))


def _words(words: Any) -> tuple[str, ...]:
    return tuple(map(str, words)) if isinstance(words, list | tuple) else _refuse('"args" must be a list of strings')


def _from_text(text: str) -> Server:
    if text.startswith(("http://", "https://")):
        return Address(text)
    words = tuple(shlex.split(text))
    if not words:
        _refuse("The command of the server is empty")
    if len(words) == 1 and text.endswith(".json"):
        _refuse(f"{text} is a configuration: open it with enfold.app.reconciler.open_config")
    return Command((sys.executable, text) if len(words) == 1 and text.endswith(".py") else words)


def _from_mapping(target: Mapping[str, Any]) -> Server | dict[str, Server]:
    for table in EDITORS_TABLES:
        entries = target.get(table)
        if isinstance(entries, Mapping):
            return {name: server_from_entry(entry) for name, entry in entries.items() if is_enabled(entry)}
    return server_from_entry(target)


def _transport(entry: Mapping[str, Any]) -> Transport:
    named = entry.get("type", entry.get("transport"))
    if named is None:
        return "http" if "httpUrl" in entry else "auto"
    if named not in _KINDS:
        _refuse(f'"{named}" is not a transport for a URL: use http or sse')
    return _KINDS[named]


def _texts(entry: Mapping[str, Any], key: str) -> dict[str, str]:
    texts = entry.get(key) or {}
    if not isinstance(texts, Mapping):
        _refuse(f'"{key}" must be an object of strings')
    return {str(name): str(value) for name, value in texts.items() if value is not None}


def _refuse(sentence: str) -> Any:
    raise ValueError(sentence)
