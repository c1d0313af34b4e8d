"""The entry point of `enfold`: it imports the requested command, and prints a failure as one sentence."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it, which takes longer to load than the help takes to print
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any, Final, NoReturn

    from enfold.runtime.registry import Registry

# Each is the module of its name in this folder, imported when it is asked for: `call` and `cgi` have to start fast.
COMMANDS: Final = {
    "serve": "serve operations over HTTP, and over MCP at /mcp",
    "mcp": "serve operations as an MCP server over stdio",
    "cgi": "answer one CGI request",
    "call": "call an operation",
    "list": "list operations",
    "search": "search operations by what they do",
    "openapi": "print the OpenAPI document",
    "inspect": "show one operation or all in detail",
    "tasks": "manage tasks: get, wait, answer, cancel, list, clean",
    "work": "run operations for peers, over NATS or a hub",
    "peers": "list peers, their operations, counts and latencies",
    "nats": "generate the permissions of a NATS server, and create its streams",
    "convert": "convert a result from one format to another",
    "token": "create, list and revoke tokens in a file",
    "prov": "show, verify and draw provenance records",
    "diff": "report breaking changes between two targets",
    "schema": "print the JSON Schema of enfold.toml, for your editor",
    "doctor": "check the installation, a target or a token",
    "completion": "print a shell completion script for commands, operations and arguments",
}

_HELP: Final = ("-h", "--help", "help")

USAGE: Final = """\
usage: {program} [options]

{commands}

{more}"""
TARGETS: Final = """\
A target is app.py, app.py:ops, package.module, package.module:ops; a configuration: enfold.toml, or the mcpServers JSON of
an editor; an OpenAPI document (a file or a URL); an MCP server: https://…/mcp, or -- COMMAND; or peers: nats://…,
ws://…. See `enfold COMMAND --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in _HELP:
        print(_usage(None))
        return 0
    return exit_code_of(lambda: _dispatch(words, None, owns_process=arguments is None))


def run(registry: Registry, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the commands for a user's script, whose registry is the target: `ops.run()`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(exit_code_of(lambda: _dispatch(words, registry)))


def _dispatch(words: list[str], registry: Registry | None, *, owns_process: bool = False) -> int:
    if not words or words[0] in _HELP:
        print(_usage(registry))
        return 0 if words else _exit_code("VALIDATION_ERROR")
    if words[0] in ("-V", "--version"):
        from enfold import __version__

        print(f"enfold {__version__}")
        return 0
    if words[0] not in COMMANDS:
        raise _unknown(words)
    command = _load(words[0], owns_process=owns_process)
    from enfold.observability.log import before_the_first_line  # which every command has loaded

    is_started_by_others = words[0] in ("mcp", "cgi")  # whose log is kept, and read later
    before_the_first_line(lambda: _set_up_log(is_dated=is_started_by_others))
    exit_code: int = command.run(words[1:], registry)
    return exit_code


def _set_up_log(*, is_dated: bool) -> None:
    from enfold.commands.shared.log import set_up_log  # few commands write to the log

    set_up_log("info" if is_dated else "warning", is_dated=is_dated)


def _load(command: str, *, owns_process: bool) -> ModuleType:
    """Import the module of a command without garbage collection: all that is loaded stays to the end of the process."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"enfold.commands.{command}")
    finally:
        if owns_process:
            gc.freeze()
        if was_enabled:
            gc.enable()


def _unknown(words: list[str]) -> Exception:
    from enfold.commands.shared.advice import unknown_command
    from enfold.errors import CallError, nearest

    elsewhere = unknown_command(words)
    if elsewhere is not None:
        return elsewhere
    near = nearest(words[0], COMMANDS)
    advice = f"did you mean {near}?" if near else f"use {', '.join(COMMANDS)}"
    return CallError("VALIDATION_ERROR", f"Unknown command {words[0]!r}: {advice}")


def _exit_code(code: str) -> int:
    from enfold.errors import code_row

    return code_row(code).exit_code


def _usage(registry: Registry | None) -> str:
    commands = "\n".join(f"  {name:<12} {text}" for name, text in COMMANDS.items())
    if registry is None:
        return USAGE.format(program="enfold COMMAND TARGET", commands=commands, more=TARGETS)
    script = f"{os.path.basename(sys.argv[0])} COMMAND"  # noqa: PTH119  # `pathlib` takes its time to load
    return USAGE.format(program=script, commands=commands, more=f"See `{script} --help`.")


class CommandEndedError(Exception):
    """Ends a command after its message has been printed."""

    def __init__(self, code: object) -> None:
        super().__init__()
        self.exit_code = code if isinstance(code, int) else 0


def exit_code_of(command: Callable[[], int]) -> int:
    """Say what went wrong in one sentence, with the exit code of the table, and never with a traceback."""
    # Python has None for what is closed.
    sys.stdout, sys.stderr = sys.stdout or _null_stream(), sys.stderr or _null_stream()
    try:
        return _flushed(command)
    except CommandEndedError as ended:
        return ended.exit_code
    except KeyboardInterrupt:
        return _exit_code("ABORTED")
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe
        return 0
    except OSError as error:
        from enfold.errors import printable  # as above

        _discard_output()
        print(f"EXECUTION_ERROR: {error.strerror or printable(str(error))}", file=sys.stderr)
        return _exit_code("EXECUTION_ERROR")
    except Exception as error:
        from enfold.errors import (
            CallError,
            printable_lines,  # as above
        )

        if not isinstance(error, CallError):
            raise
        print(printable_lines(f"{error.code}: {error.message}"), file=sys.stderr)
        return error.row.exit_code


def _null_stream() -> Any:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # open as long as the program, without `pathlib`


def _flushed(command: Callable[[], int]) -> int:
    code = command()
    sys.stdout.flush()  # At the end of the program it would be too late to say what went wrong.
    return code


def _discard_output() -> None:
    """Discard unread output: Python would try to flush it at exit, and print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
