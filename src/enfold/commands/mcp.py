"""The command `enfold mcp`: an MCP server on the standard streams, and the entry that an editor needs to start it."""

from __future__ import annotations

import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from enfold.commands.shared.callers import LOCAL, local_caller
from enfold.commands.shared.targets import Target, first_target, load_program, opened
from enfold.errors import CallError
from enfold.formats import FORMATS, find_format
from enfold.runtime.registry import Registry
from enfold.surfaces.mcp.stdio import run_stdio, serve_stdio

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from enfold.operations.idempotency import IdempotencyStore
    from enfold.tasks import Tasks

_AT_A_TERMINAL: Final = "This command speaks MCP on stdin and stdout, and is meant to be started by an MCP client. Use enfold serve for a browser. Press Ctrl-D to stop."


def run(words: list[str], registry: Registry | None) -> int:
    """Serve until standard input ends, or print the editor's entry."""
    # An editor gives a target alone, and waits for us: argparse would take its time.
    if any(word.startswith("-") for word in words):
        return _by_options(words, registry)
    target, rest = first_target(words, registry, "mcp")
    if target.kind == "configuration":
        return _by_options(words, registry)
    if rest:
        raise CallError("VALIDATION_ERROR", f"mcp has no option {rest[0]!r}: it takes a target and --install-json")
    return _serve(target, identity=LOCAL)


def _serve(target: Target, **settings: Any) -> int:
    if sys.stdin.isatty():
        print(_AT_A_TERMINAL, file=sys.stderr)
    if target.kind != "program":
        return _serve_sources(target, settings)
    found = load_program(target)
    found.services.new_idempotency_store = partial(_new_store, target)
    signal.signal(signal.SIGTERM, _interrupt)
    serve_stdio(found, tasks=_tasks_of(found, target, settings), **settings)
    return 0


def _new_store(target: Target) -> IdempotencyStore | None:
    from enfold.commands.shared.stores import idempotency_store, task_settings  # with the first idempotency key

    return idempotency_store(task_settings(target))


def _interrupt(*_: object) -> None:
    """Handle SIGTERM as a Ctrl-C, also where that is ignored: `on_stop` is run, and tasks are given back."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, None)


def _tasks_of(registry: Registry, target: Target, settings: dict[str, Any]) -> Tasks | None:
    """Return the tasks of a program with durable operations; they start with the first call, in its event loop."""
    if all(spec.durable == "never" for spec in registry.list()):
        return None
    from enfold.commands.shared.stores import open_tasks, task_settings

    tasks = open_tasks(registry, task_settings(target), recorder=settings.get("recorder"))
    if tasks is not None:
        registry.services.lifetime.add(tasks.begin, tasks.close)
    return tasks


def _by_options(words: list[str], registry: Registry | None) -> int:
    # An editor's server is quicker without all of these.
    from enfold.commands.shared.options import add_agent_options, agent_settings, parse_command
    from enfold.commands.shared.output import print_json
    from enfold.commands.shared.stores import add_recording_options, recorder_of

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--install-json", action="store_true", help="print the entry for an editor's configuration")

        parser.add_argument("--tokens", metavar="FILE", help="call as the identity of ENFOLD_TOKEN in this file")
        parser.add_argument("--format", help=f"the format of results: {', '.join(FORMATS)}")
        parser.add_argument("--tool-names", choices=["safe", "id"], help="tool names: shop_add (safe) or shop.add (id)")
        parser.add_argument("--name", help="name shown to clients and used in an editor's configuration")
        add_agent_options(parser)
        add_recording_options(parser)

    options = parse_command("mcp", words, registry, "Serve operations as an MCP server over stdio.", add)
    if not options.install_json:
        if options.format is not None:
            find_format(options.format)  # which says what there is, where there is no such format
        named = {"format": options.format, "tool_names": options.tool_names, "name": options.name}
        settings = {name: value for name, value in named.items() if value is not None}
        settings |= agent_settings(options, options.target)
        caller = local_caller(options.tokens)
        return _serve(options.target, identity=caller, recorder=recorder_of(options), **settings)
    print_json(_editor_entry(options.target, options.name))
    return 0


def _serve_sources(target: Target, settings: dict[str, Any]) -> int:
    from enfold.app.signals import ignore_hangups, run_in_loop
    from enfold.commands.shared.options import limits_of  # a program has none
    from enfold.commands.shared.stores import opened_tasks, task_settings

    ignore_hangups()

    async def serve() -> None:
        async with (
            opened(target, reloads=True) as registry,
            opened_tasks(registry, task_settings(target), recorder=settings.get("recorder")) as tasks,
        ):
            registry.services.new_idempotency_store = partial(_new_store, target)
            await run_stdio(registry, limits=limits_of(target), tasks=tasks, **settings)

    run_in_loop(serve())
    return 0


def _editor_entry(target: Target, name: str | None) -> dict[str, Any]:
    """Return the entry with which an editor starts this server."""
    from pathlib import Path

    if target.registry is not None:
        script = Path(sys.argv[0]).resolve()
        return _entry(name or script.stem, str(script), "mcp")
    if target.command:
        return _entry(name or Path(target.command[0]).stem, "-m", "enfold", "mcp", "--", *target.command)
    place, colon, attribute = target.text.partition(":")
    path = Path(place)
    if path.suffix in (".py", ".json", ".toml") and not path.exists():
        raise CallError("VALIDATION_ERROR", f"There is no file {place}")
    where = f"{path.resolve()}{colon}{attribute}" if path.exists() else target.text
    return _entry(name or path.stem, "-m", "enfold", "mcp", where)


def _entry(name: str, *words: str) -> dict[str, Any]:
    return {"mcpServers": {name: {"command": sys.executable, "args": list(words)}}}
