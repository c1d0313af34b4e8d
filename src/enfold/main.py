"""The `enfold` command. The one place that reads the environment and puts sources and surfaces together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from enfold.errors import CallError, code_row
from enfold.log import silence
from enfold.operation import Context, Policy
from enfold.registry import OperationRegistry, Registry, View

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from asyncio import AbstractEventLoop
    from socket import socket

    from enfold.envelope import ResponseEnvelope
    from enfold.provenance import Recorder
    from enfold.surfaces.http import HTTPApp
    from enfold.tokens import Tokens

__all__ = ["main", "run"]

TOKEN: Final = "ENFOLD_TOKEN"  # noqa: S105  # the variable that holds our own token at a hub or a broker

USAGE: Final = """\
usage: enfold COMMAND TARGET [options]

  serve     serve the operations over HTTP, and as an MCP server at /mcp
  mcp       serve the operations as an MCP server on the standard streams
  cgi       answer one request as a CGI program
  call      run one operation from the shell
  list      list the operations
  openapi   print the OpenAPI document
  inspect   show one operation, or all, in full
  work      serve the operations to peers, over NATS or a hub
  peers     list who serves what, with counts and latencies
  nats      make the permissions of a NATS server
  convert   convert a result from one format to another
  prov      show, verify and draw records of provenance
  doctor    say what is installed and what is missing

A target is app.py, app.py:ops, package.module, package.module:ops, or a configuration: enfold.toml, or the mcpServers
JSON of an editor. `enfold COMMAND --help` says more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _guarded(lambda: _dispatch(words, None))


def run(registry: Registry, arguments: Sequence[str] | None = None) -> NoReturn:
    """The same commands for a user's own script, whose registry is the target: `ops.run()`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_guarded(lambda: _dispatch(words, registry)))


def _dispatch(words: list[str], registry: Registry | None) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if words else code_row("VALIDATION_ERROR").exit_code
    if words[0] in ("-V", "--version"):
        print(_version())
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        raise CallError("VALIDATION_ERROR", f"There is no command {words[0]!r}: use {', '.join(COMMANDS)}")
    return command(words[1:], registry)


def _guarded(command: Callable[[], int]) -> int:
    """Say what went wrong in one sentence, with the exit code of the table, and never with a traceback."""
    try:
        return command()
    except _SaidError as ended:
        return ended.exit_code
    except CallError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return code_row(error.code).exit_code
    except KeyboardInterrupt:
        return code_row("ABORTED").exit_code
    except BrokenPipeError:
        # Whoever read our output has had enough; Python must not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# --- targets ------------------------------------------------------------------------------------------------------


def _load(target: str) -> Registry:
    """The registry a target names; whatever is wrong with it becomes one sentence."""
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
    own = str(Path(__file__).parent)
    text = f"{type(error).__name__}: {error}"
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(("<", own)):
            place = f" ({name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return text + place


def _first_is_target(words: list[str], registry: Registry | None, command: str) -> tuple[Registry, list[str]]:
    if registry is not None:
        return registry, words
    if not words or words[0].startswith("-"):
        raise CallError("VALIDATION_ERROR", f"{command} needs a target, as in: enfold {command} app.py")
    return _load(words[0]), words[1:]


def _is_config(target: str) -> bool:
    if not target.endswith((".json", ".toml")):
        return False
    from enfold.config import is_config

    return is_config(target)


def _on_target(options: Namespace, registry: Registry | None, command: Callable[[Registry], int]) -> int:
    if registry is None and _is_config(options.target):
        return _with_config(options.target, command)
    return command(registry or _load(options.target))


def _with_config(path: str, command: Callable[[Registry], int]) -> int:
    """Run a command on the sources of a configuration: they live in a loop, the command beside it in a thread."""
    import asyncio

    from enfold.config import open_config

    async def run() -> int:
        async with open_config(path, os.environ) as registry:
            return await asyncio.to_thread(command, _FromThread(registry, asyncio.get_running_loop()))

    return asyncio.run(run())


class _FromThread(View):
    """A registry whose sources live in a loop of another thread."""

    def __init__(self, registry: Registry, loop: AbstractEventLoop) -> None:
        super().__init__(registry, lambda spec: spec)
        self._loop = loop

    def call_now(self, operation_id: str, input: Mapping[str, Any], context: Context) -> ResponseEnvelope[Any]:
        from asyncio import run_coroutine_threadsafe

        context.inline = False
        return run_coroutine_threadsafe(self.call(operation_id, input, context), self._loop).result()


# --- commands without argparse, which start fast ------------------------------------------------------------------


def _call(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.command_line import USAGE as CALL_USAGE
    from enfold.surfaces.command_line import to_command_line

    if registry is None and (not words or words[0] in ("-h", "--help")):
        print(CALL_USAGE.replace("usage: call ", "usage: enfold call TARGET "))
        return 0 if words else code_row("VALIDATION_ERROR").exit_code
    silence()
    if registry is None and _is_config(words[0]):
        return _with_config(words[0], lambda found: to_command_line(found, words[1:], recorder=_recorder))
    found, rest = _first_is_target(words, registry, "call")
    return to_command_line(found, rest, recorder=_recorder)


def _recorder(options: Mapping[str, str]) -> Recorder:
    """What records provenance: a store and a key where the options name them."""
    from enfold.provenance import Recorder, RecordStore, load_key

    try:
        store = RecordStore(Path(options["--store"])) if "--store" in options else None
        key = load_key(Path(options["--key"])) if "--key" in options else None
    except (OSError, ValueError) as error:
        raise CallError("VALIDATION_ERROR", f"Provenance cannot be recorded: {error}") from None
    return Recorder(store=store, key=key)


def _convert(words: list[str], registry: Registry | None) -> int:
    from enfold.formats.command import run_convert

    del registry
    return _said(lambda: run_convert(words))


def _prov(words: list[str], registry: Registry | None) -> int:
    from enfold.provenance.command import run_prov

    del registry
    return _said(lambda: run_prov(words))


def _work(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.calls import run_work

    found, rest = _first_is_target(words, registry, "work")
    return _said(lambda: run_work(found, rest, token=os.environ.get(TOKEN)))


def _peers(words: list[str], registry: Registry | None) -> int:
    from enfold.calls.command import run_peers

    del registry
    return _said(lambda: run_peers(words, token=os.environ.get(TOKEN)))


def _nats(words: list[str], registry: Registry | None) -> int:
    from enfold.calls.command import run_nats

    found, rest = _first_is_target(words, registry, "nats")
    return _said(lambda: run_nats(found, rest))


def _said(command: Callable[[], int]) -> int:
    """A command that reads its own options: argparse has said what is wrong with them."""
    try:
        return command()
    except SystemExit as error:
        raise _SaidError(error.code) from None


def _mcp(words: list[str], registry: Registry | None) -> int:
    if registry is None and words and words[-1] == "--install-json":
        _print_json(_editor_entry(words[0]))
        return 0
    if registry is None and words and _is_config(words[0]):
        return _mcp_of_config(words[0])
    found, rest = _first_is_target(words, registry, "mcp")
    if rest:
        raise CallError("VALIDATION_ERROR", f"mcp does not know {rest[0]!r}: it takes a target and --install-json")
    from enfold.surfaces.mcp import serve_stdio

    serve_stdio(found)
    return 0


def _mcp_of_config(path: str) -> int:
    import asyncio

    from enfold.config import open_config
    from enfold.surfaces.mcp import run_stdio

    async def run() -> None:
        async with open_config(path, os.environ) as registry:
            await run_stdio(registry)

    asyncio.run(run())
    return 0


def _editor_entry(target: str) -> dict[str, Any]:
    """What an editor's configuration needs to start this server."""
    place, colon, name = target.partition(":")
    path = Path(place)
    where = f"{path.resolve()}{colon}{name}" if path.exists() else target
    return {"mcpServers": {path.stem: {"command": sys.executable, "args": ["-m", "enfold", "mcp", where]}}}


def _cgi(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.cgi import to_cgi

    found, rest = _first_is_target(words, registry, "cgi")
    options = {
        "--identity-variable": "REMOTE_USER",
        "--format": "result",
        "--provenance": "",
        "--store": "",
        "--key": "",
    }
    for word in rest:
        name, _, value = word.partition("=")
        if name not in options:
            raise CallError("VALIDATION_ERROR", f"cgi does not know {name!r}: it takes {'=, '.join(options)}=")
        options[name] = value or "yes"
    given = {name: value for name, value in options.items() if value}
    recorder = _recorder(given) if "--provenance" in given else None
    return to_cgi(
        found, format=options["--format"], identity_variable=options["--identity-variable"], recorder=recorder
    )


# --- commands with argparse ---------------------------------------------------------------------------------------


def _parse(
    command: str,
    words: list[str],
    registry: Registry | None,
    description: str,
    add: Callable[[ArgumentParser], None],
) -> Namespace:
    from argparse import ArgumentParser

    parser = ArgumentParser(prog=f"enfold {command}", description=description, allow_abbrev=False)
    if registry is None:
        # An edge serves what its peers have, and needs no target of its own.
        count = "?" if command == "serve" else None
        parser.add_argument("target", nargs=count, help="app.py, app.py:ops, package.module or package.module:ops")
    add(parser)
    try:
        return parser.parse_args(words)
    except SystemExit as error:
        raise _SaidError(error.code) from None  # argparse has printed the help, or what is wrong


class _SaidError(Exception):
    """The command ends here, and everything has been said."""

    def __init__(self, code: object) -> None:
        super().__init__()
        self.exit_code = code if isinstance(code, int) else 0


def _list(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="the specs in full, as JSON")

    options = _parse("list", words, registry, "List the operations.", add)
    return _on_target(options, registry, lambda found: _print_list(found, options))


def _print_list(registry: Registry, options: Namespace) -> int:
    specs = registry.list()
    if options.json:
        _print_json([spec.to_dict() for spec in specs])
        return 0
    rows = [(spec.id, spec.type.value, spec.description.partition("\n")[0]) for spec in specs]
    print(_table(rows) if sys.stdout.isatty() else "\n".join("\t".join(row) for row in rows))
    return 0


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {text}".rstrip() for name, kind, text in rows)


def _inspect(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("operation", nargs="?", help="an id, or a name that only one operation has")
        parser.add_argument("--json", action="store_true", help="the report of an OpenAPI document as JSON")

    options = _parse("inspect", words, registry, "Show operations, or the import of an OpenAPI document.", add)
    is_document = registry is None and options.target.endswith((".json", ".yaml", ".yml"))
    if is_document and not _is_config(options.target):
        return _inspect_document(options)
    return _on_target(options, registry, lambda found: _print_specs(found, options))


def _print_specs(found: Registry, options: Namespace) -> int:
    specs = found.list() if options.operation is None else [found.find(options.operation)]
    _print_json([spec.to_dict() for spec in specs] if options.operation is None else specs[0].to_dict())
    return 0


def _inspect_document(options: Namespace) -> int:
    """What an OpenAPI document gives: the operations, what was left out and why."""
    try:
        from enfold.sources.openapi import from_openapi
    except ImportError as error:
        raise CallError("UNAVAILABLE", f"This needs {error.name}: pip install 'enfold[openapi]'") from None
    try:
        imported = from_openapi(options.target)
    except (OSError, ValueError) as error:
        raise CallError("VALIDATION_ERROR", f"{options.target} cannot be read: {error}") from None
    if options.operation is not None:
        chosen = OperationRegistry()
        chosen.register_all(imported)
        _print_json(chosen.find(options.operation).to_dict())
    elif options.json:
        _print_json(imported.report.to_dict())
    else:
        print(imported.report)
    return 0


def _openapi(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.openapi import to_openapi

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--format", default="result", help="the format whose answers are described")
        parser.add_argument("--title", default="Enfold")

    options = _parse("openapi", words, registry, "Print the OpenAPI document of the HTTP surface.", add)

    def show(found: Registry) -> int:
        _print_json(to_openapi(found, format=options.format, title=options.title, everything=True))
        return 0

    return _on_target(options, registry, show)


def _print_json(value: Any) -> None:
    import msgspec

    text = msgspec.json.encode(value)
    print((msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text).decode())


EXTRAS: Final = {
    "http": "uvicorn",
    "mcp": "httpx2",
    "openapi": "httpx2",
    "nats": "nats",
    "websocket": "websockets",
    "auth": "cryptography",
    "otel": "opentelemetry",
    "(models)": "pydantic",
}


def _doctor(words: list[str], registry: Registry | None) -> int:
    from importlib.util import find_spec
    from platform import python_version

    del words, registry
    print(f"{_version()}, Python {python_version()}")
    for extra, package in EXTRAS.items():
        print(f"  {extra:<10} {package:<14} {'there' if find_spec(package) else 'missing'}")
    return 0


def _version() -> str:
    from importlib.metadata import version

    return f"enfold {version('enfold')}"


# --- serve --------------------------------------------------------------------------------------------------------


def _serve(words: list[str], registry: Registry | None) -> int:
    options = _parse("serve", words, registry, "Serve the operations over HTTP.", _add_serve_options)
    if options.reload:
        from enfold.reload import run_reloading

        return run_reloading(_own_command(registry), [word for word in words if word != "--reload"])
    tokens = _tokens(options.tokens)
    is_local = _is_loopback(options.host)
    if not is_local and tokens is None and not options.insecure:
        raise CallError(
            "VALIDATION_ERROR",
            f"Serving on {options.host} without tokens would let everybody in: give --tokens FILE, or say --insecure",
        )
    if registry is None and options.target is not None and _is_config(options.target):
        return _serve_config(options, tokens, is_local=is_local)
    if options.nats is not None or options.hub is not None:
        own = registry if registry is not None or options.target is None else _load(options.target)
        return _serve_edge(own, options, tokens, is_local=is_local)
    if registry is None and options.target is None:
        raise CallError(
            "VALIDATION_ERROR", "serve needs a target, as in: enfold serve app.py; or --nats URL, or --hub URL"
        )
    found = registry or _load(options.target)
    serving = _Serving(found, options, tokens, is_local=is_local)
    return serving.run(serving.serve())


def _add_serve_options(parser: ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="the port; 0 takes a free one (default 8000)")
    parser.add_argument("--format", default="result", help="the format of answers unless a request chooses another")
    parser.add_argument("--tokens", metavar="FILE", help="bearer tokens and identities; else ENFOLD_TOKENS, if set")
    parser.add_argument("--insecure", action="store_true", help="serve beyond this machine without tokens")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a name this server goes by")
    parser.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help="pages that may call it")
    parser.add_argument("--max-body", type=int, default=8 * 1024 * 1024, metavar="BYTES", help="the largest request")
    parser.add_argument("--provenance", action="store_true", help="record runs for callers who ask for it")
    parser.add_argument("--store", metavar="FILE", help="keep the records of provenance in this SQLite file")
    parser.add_argument("--key", metavar="FILE", help="sign the records with this private key (PEM)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--nats", metavar="URL", help="serve what peers on these NATS servers serve")
    place.add_argument("--hub", metavar="URL", help="serve what the peers of this hub serve")
    parser.add_argument("--reload", action="store_true", help="start again when a file of the target's folder changes")


def _own_command(registry: Registry | None) -> list[str]:
    return [sys.executable, "-m", "enfold", "serve"] if registry is None else [sys.executable, sys.argv[0], "serve"]


def _tokens(path: str | None) -> Tokens | None:
    from enfold.tokens import tokens_from_environment, tokens_from_file

    try:
        return tokens_from_environment(os.environ) if path is None else tokens_from_file(path)
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"The tokens cannot be read from {path}: {error.strerror}") from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _serve_config(options: Namespace, tokens: Tokens | None, *, is_local: bool) -> int:
    from enfold.config import open_config

    async def serve() -> None:
        async with open_config(options.target, os.environ) as registry:
            for state in registry.states:
                print(f"{state.name}: {state.state}, {state.operations} operations", file=sys.stderr)
            await _Serving(registry, options, tokens, is_local=is_local).serve()

    return _Serving(OperationRegistry(), options, tokens, is_local=is_local).run(serve())


def _serve_edge(own: Registry | None, options: Namespace, tokens: Tokens | None, *, is_local: bool) -> int:
    """Serve what running peers serve, beside what we have ourselves; the edge itself keeps nothing."""
    from enfold.calls.address import open_transport
    from enfold.sources.calls import from_calls

    registry = OperationRegistry()
    if own is not None:
        registry.register_all(own)

    async def serve() -> None:
        token = os.environ.get(TOKEN)
        transport = open_transport(options.nats or options.hub, token=token, insecure=options.insecure)
        try:
            async with from_calls(transport) as operations:
                operations.keep(registry)
                await _Serving(registry, options, tokens, is_local=is_local).serve()
        finally:
            await transport.close()

    return _Serving(registry, options, tokens, is_local=is_local).run(serve())


class _Serving:
    """One registry being served: the apps put together, and the server that runs them."""

    def __init__(self, registry: Registry, options: Namespace, tokens: Tokens | None, *, is_local: bool) -> None:
        # Beyond this machine the words of an unexpected exception are for our log alone.
        self._registry = registry if is_local else registry.with_policy(Policy(expose_errors=False))
        self._options = options
        self._tokens = tokens
        try:
            import uvicorn
        except ImportError:
            raise CallError("UNAVAILABLE", "serve needs uvicorn: pip install 'enfold[http]'") from None
        self._config = uvicorn.Config(
            self._app(), log_level="warning", timeout_graceful_shutdown=30, server_header=False
        )

    def _app(self) -> HTTPApp:
        from enfold.surfaces.http import to_http
        from enfold.surfaces.mcp import to_mcp

        shared: dict[str, Any] = {
            "tokens": self._tokens,
            "allowed_hosts": self._options.allow_host,
            "allowed_origins": self._options.allow_origin,
            "max_body": self._options.max_body,
        }
        recorder = _recorder(_given(self._options)) if self._options.provenance else None
        self._mcp = to_mcp(self._registry, format=self._options.format, recorder=recorder, **shared)
        mounts = {"/mcp": self._mcp}
        if self._tokens is not None:  # where an MCP client asks who gives the tokens
            mounts["/.well-known/oauth-protected-resource"] = self._mcp
        self._http = to_http(self._registry, format=self._options.format, mounts=mounts, recorder=recorder, **shared)
        return self._http

    def run(self, serving: Coroutine[Any, Any, None]) -> int:
        import asyncio

        runner = asyncio.Runner(loop_factory=self._config.get_loop_factory())
        with suppress(KeyboardInterrupt), runner:  # It is how one ends a server, which has shut down by now.
            runner.run(serving)
        return 0

    async def serve(self) -> None:
        import uvicorn

        serving = self

        class Server(uvicorn.Server):
            async def shutdown(self, sockets: list[Any] | None = None) -> None:
                # Streams have no end of their own: without this the server would wait for them.
                serving._mcp.stop()
                serving._http.stop()
                await super().shutdown(sockets)

        listening = _bind(self._options.host, self._options.port)
        _say_where(self._registry, self._options, self._tokens, listening.getsockname()[1])
        await Server(self._config).serve(sockets=[listening])


def _given(options: Namespace) -> dict[str, str]:
    named = {"--store": options.store, "--key": options.key}
    return {name: value for name, value in named.items() if value is not None}


def _bind(host: str, port: int) -> socket:
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)  # Before we say where we are: whoever reads that may come at once.
    except (OSError, OverflowError) as error:
        listening.close()
        reason = "is in use" if getattr(error, "errno", None) == EADDRINUSE else f"cannot be used: {error}"
        raise CallError("UNAVAILABLE", f"Port {port} on {host} {reason}") from None
    return listening


def _say_where(registry: Registry, options: Namespace, tokens: Tokens | None, port: int) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    base = f"http://{host}:{port}"
    lines = [
        f"Enfold serves {len(registry)} operations",
        f"  calls     {base}/functions/{{id}}",
        f"  document  {base}/openapi.json",
        f"  MCP       {base}/mcp",
        f"  health    {base}/healthz",
        f"  tokens    {f'{len(tokens)} identities' if tokens else 'none: whoever reaches this address may call'}",
        "Press Ctrl-C to stop.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


COMMANDS: Final[dict[str, Callable[[list[str], Registry | None], int]]] = {
    "serve": _serve,
    "mcp": _mcp,
    "cgi": _cgi,
    "call": _call,
    "list": _list,
    "openapi": _openapi,
    "inspect": _inspect,
    "work": _work,
    "peers": _peers,
    "nats": _nats,
    "convert": _convert,
    "prov": _prov,
    "doctor": _doctor,
}
