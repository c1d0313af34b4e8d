"""The `enfold` command. The one place that reads the environment and puts sources and surfaces together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from enfold.errors import CallError, code_row
from enfold.log import silence
from enfold.operation import Policy
from enfold.registry import OperationRegistry, Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from socket import socket

    from enfold.provenance import Recorder
    from enfold.tokens import Tokens

__all__ = ["main", "run"]

USAGE: Final = """\
usage: enfold COMMAND TARGET [options]

  serve     serve the operations over HTTP
  cgi       answer one request as a CGI program
  call      run one operation from the shell
  list      list the operations
  openapi   print the OpenAPI document
  inspect   show one operation, or all, in full
  convert   convert a result from one format to another
  prov      show, verify and draw records of provenance
  doctor    say what is installed and what is missing

A target is app.py, app.py:ops, package.module or package.module:ops. `enfold COMMAND --help` says more."""


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


# --- commands without argparse, which start fast ------------------------------------------------------------------


def _call(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.command_line import USAGE as CALL_USAGE
    from enfold.surfaces.command_line import to_command_line

    if registry is None and (not words or words[0] in ("-h", "--help")):
        print(CALL_USAGE.replace("usage: call ", "usage: enfold call TARGET "))
        return 0 if words else code_row("VALIDATION_ERROR").exit_code
    silence()
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


def _said(command: Callable[[], int]) -> int:
    """A command that reads its own options: argparse has said what is wrong with them."""
    try:
        return command()
    except SystemExit as error:
        raise _SaidError(error.code) from None


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
        parser.add_argument("target", help="app.py, app.py:ops, package.module or package.module:ops")
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
    specs = (registry or _load(options.target)).list()
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
    if registry is None and options.target.endswith((".json", ".yaml", ".yml")):
        return _inspect_document(options)
    found = registry or _load(options.target)
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
    found = registry or _load(options.target)
    _print_json(to_openapi(found, format=options.format, title=options.title, everything=True))
    return 0


def _print_json(value: Any) -> None:
    import msgspec

    text = msgspec.json.encode(value)
    print((msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text).decode())


EXTRAS: Final = {
    "http": "uvicorn",
    "mcp": "mcp",
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
    found = registry or _load(options.target)
    return _serve_registry(found, options, tokens, is_local=is_local)


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


def _serve_registry(registry: Registry, options: Namespace, tokens: Tokens | None, *, is_local: bool) -> int:
    try:
        import uvicorn
    except ImportError:
        raise CallError("UNAVAILABLE", "serve needs uvicorn: pip install 'enfold[http]'") from None
    from enfold.surfaces.http import to_http

    app = to_http(
        # Beyond this machine the words of an unexpected exception are for our log alone.
        registry if is_local else registry.with_policy(Policy(expose_errors=False)),
        format=options.format,
        tokens=tokens,
        allowed_hosts=options.allow_host,
        allowed_origins=options.allow_origin,
        max_body=options.max_body,
        recorder=_recorder(_given(options)) if options.provenance else None,
    )

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[Any] | None = None) -> None:
            app.stop()  # Streams have no end of their own: without this the server would wait for them.
            await super().shutdown(sockets)

    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=30, server_header=False)
    listening = _bind(options.host, options.port)
    _say_where(registry, options, tokens, listening.getsockname()[1])
    server = Server(config)
    with suppress(KeyboardInterrupt):  # uvicorn passes it on after it has shut down; it is how one ends a server.
        server.run(sockets=[listening])
    return 0 if server.started else code_row("UNAVAILABLE").exit_code


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
        f"  health    {base}/healthz",
        f"  tokens    {f'{len(tokens)} identities' if tokens else 'none: whoever reaches this address may call'}",
        "Press Ctrl-C to stop.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


COMMANDS: Final[dict[str, Callable[[list[str], Registry | None], int]]] = {
    "serve": _serve,
    "cgi": _cgi,
    "call": _call,
    "list": _list,
    "openapi": _openapi,
    "inspect": _inspect,
    "convert": _convert,
    "prov": _prov,
    "doctor": _doctor,
}
