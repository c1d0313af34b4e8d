"""The `enfold` command. The one place that reads the environment and puts sources and surfaces together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from enfold.errors import CallError, code_row
from enfold.log import silence
from enfold.registry import OperationRegistry, Registry
from enfold.targets import TOKEN, SaidError, first_is_target, is_config, logins, on_target, opened, parse, with_config

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.provenance import Recorder

__all__ = ["main", "run"]

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
        return _with_all_written(command)
    except SaidError as ended:
        return ended.exit_code
    except CallError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return code_row(error.code).exit_code
    except KeyboardInterrupt:
        return code_row("ABORTED").exit_code
    except BrokenPipeError:
        _forget_output()  # Whoever read it has had enough.
        return 0
    except OSError as error:
        _forget_output()
        print(f"EXECUTION_ERROR: {error.strerror or error}", file=sys.stderr)
        return code_row("EXECUTION_ERROR").exit_code


def _with_all_written(command: Callable[[], int]) -> int:
    code = command()
    sys.stdout.flush()  # At the end of the program it would be too late to say what went wrong.
    return code


def _forget_output() -> None:
    """What has not been written never will be: Python must not try it again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- commands without argparse, which start fast ------------------------------------------------------------------


def _call(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.command_line import USAGE as CALL_USAGE
    from enfold.surfaces.command_line import to_command_line

    if registry is None and (not words or words[0] in ("-h", "--help")):
        print(CALL_USAGE.replace("usage: call ", "usage: enfold call TARGET "))
        return 0 if words else code_row("VALIDATION_ERROR").exit_code
    silence()
    if registry is None and is_config(words[0]):
        named = next((word for word in words[1:2] if not word.startswith("-")), None)
        return with_config(words[0], lambda found: to_command_line(found, words[1:], recorder=_recorder), named)
    found, rest = first_is_target(words, registry, "call")
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


def _peers(words: list[str], registry: Registry | None) -> int:
    from enfold.calls.command import run_peers

    del registry
    return _said(lambda: run_peers(words, token=os.environ.get(TOKEN)))


def _said(command: Callable[[], int]) -> int:
    """A command that reads its own options: argparse has said what is wrong with them."""
    try:
        return command()
    except SystemExit as error:
        raise SaidError(error.code) from None


def _serve(words: list[str], registry: Registry | None) -> int:
    from enfold.serving import run_serve

    return run_serve(words, registry, _recorder)


def _mcp(words: list[str], registry: Registry | None) -> int:
    # An editor gives a target alone, and waits for us: argparse would take its time.
    if any(word.startswith("-") for word in words):
        return _mcp_by_options(words, registry)
    if registry is None and words and is_config(words[0]):
        return _mcp_of_config(words[0])
    found, rest = first_is_target(words, registry, "mcp")
    if rest:
        raise CallError("VALIDATION_ERROR", f"mcp does not know {rest[0]!r}: it takes a target and --install-json")
    from enfold.surfaces.mcp import serve_stdio

    serve_stdio(found)
    return 0


def _mcp_by_options(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--install-json", action="store_true", help="print the entry for an editor's configuration")

    options = parse("mcp", words, registry, "Serve the operations as an MCP server on the standard streams.", add)
    if not options.install_json:
        return _mcp([] if registry is not None else [options.target], registry)
    _print_json(_editor_entry(options.target) if registry is None else _entry_of_script())
    return 0


def _mcp_of_config(path: str) -> int:
    import asyncio

    from enfold.config import open_config
    from enfold.surfaces.mcp import run_stdio

    async def run() -> None:
        async with open_config(path, os.environ, logins=logins()) as registry:
            await run_stdio(registry)

    asyncio.run(run())
    return 0


def _editor_entry(target: str) -> dict[str, Any]:
    """What an editor's configuration needs to start this server."""
    place, colon, name = target.partition(":")
    path = Path(place)
    if path.suffix in (".py", ".json", ".toml") and not path.exists():
        raise CallError("VALIDATION_ERROR", f"There is no file {place}")
    where = f"{path.resolve()}{colon}{name}" if path.exists() else target
    return _entry(path.stem, "-m", "enfold", "mcp", where)


def _entry_of_script() -> dict[str, Any]:
    script = Path(sys.argv[0]).resolve()
    return _entry(script.stem, str(script), "mcp")


def _entry(name: str, *words: str) -> dict[str, Any]:
    return {"mcpServers": {name: {"command": sys.executable, "args": list(words)}}}


def _cgi(words: list[str], registry: Registry | None) -> int:
    if words[:1] in (["-h"], ["--help"]):
        print(f"usage: enfold cgi TARGET {' '.join(f'[{name}=VALUE]' for name in CGI_OPTIONS)}")
        return 0
    try:
        return _answer_cgi(words, registry)
    except CallError as error:
        if "GATEWAY_INTERFACE" not in os.environ:
            raise
        from enfold.surfaces.cgi import refuse

        print(f"{error.code}: {error.message}", file=sys.stderr)
        return refuse()


CGI_OPTIONS: Final = {
    "--identity-variable": "REMOTE_USER",
    "--format": "result",
    "--provenance": "",
    "--store": "",
    "--key": "",
}


def _answer_cgi(words: list[str], registry: Registry | None) -> int:
    from contextlib import redirect_stdout

    from enfold.surfaces.cgi import to_cgi

    with redirect_stdout(sys.stderr):  # What a module prints while it is imported must not be taken for headers.
        found, rest = first_is_target(words, registry, "cgi")
    options = dict(CGI_OPTIONS)
    for word in rest:
        name, _, value = word.partition("=")
        if name not in options:
            raise CallError("VALIDATION_ERROR", f"cgi does not know {name!r}: it takes {'=, '.join(options)}=")
        options[name] = value or "yes"
    given = {name: value for name, value in options.items() if value}
    recorder = _recorder(given) if "--provenance" in given else None
    try:
        return to_cgi(
            found, format=options["--format"], identity_variable=options["--identity-variable"], recorder=recorder
        )
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None


# --- commands with argparse ---------------------------------------------------------------------------------------


def _work(words: list[str], registry: Registry | None) -> int:
    from contextlib import nullcontext

    from enfold.surfaces.calls import add_work_options, run_work

    options = parse("work", words, registry, "Serve the operations to other processes.", add_work_options)
    found = nullcontext(registry) if registry is not None else opened(options.target)
    return run_work(found, options, token=os.environ.get(TOKEN))


def _nats(words: list[str], registry: Registry | None) -> int:
    from enfold.calls.command import add_nats_options, print_permissions

    def add(parser: ArgumentParser) -> None:
        parser.prog = "enfold nats permissions"
        add_nats_options(parser)

    if "permissions" not in words[:2] and not {"-h", "--help"} & set(words):
        raise CallError("VALIDATION_ERROR", "nats makes permissions: enfold nats permissions app.py --users users.json")
    rest = [word for index, word in enumerate(words) if index > 1 or word != "permissions"]
    options = parse("nats", rest, registry, "Make the permissions of a NATS server.", add)
    return on_target(options, registry, lambda found: print_permissions(found, options.users))


def _list(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="the specs in full, as JSON")

    options = parse("list", words, registry, "List the operations.", add)
    return on_target(options, registry, lambda found: _print_list(found, options))


def _print_list(registry: Registry, options: Namespace) -> int:
    specs = registry.list()
    if options.json:
        _print_json([spec.to_dict() for spec in specs])
        return 0
    rows = [(spec.id, spec.type.value, spec.description.partition("\n")[0]) for spec in specs]
    if rows:
        print(_table(rows) if sys.stdout.isatty() else "\n".join("\t".join(row) for row in rows))
    return 0


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {text}".rstrip() for name, kind, text in rows)


def _inspect(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("operation", nargs="?", help="an id, or a name that only one operation has")
        parser.add_argument("--json", action="store_true", help="the report of an OpenAPI document as JSON")

    options = parse("inspect", words, registry, "Show operations, or the import of an OpenAPI document.", add)
    is_document = registry is None and options.target.endswith((".json", ".yaml", ".yml"))
    if is_document and not is_config(options.target):
        return _inspect_document(options)
    return on_target(options, registry, lambda found: _print_specs(found, options), options.operation)


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

    options = parse("openapi", words, registry, "Print the OpenAPI document of the HTTP surface.", add)

    def show(found: Registry) -> int:
        _print_json(to_openapi(found, format=options.format, title=options.title, everything=True))
        return 0

    return on_target(options, registry, show)


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
