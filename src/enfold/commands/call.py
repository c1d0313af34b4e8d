"""The command `enfold call`: run one operation from the shell. Without argparse, which starts slowly."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TextIO

from enfold.commands.callers import local_caller
from enfold.commands.recorder_options import make_recorder
from enfold.commands.targets import Target, first_target, in_loop, program, split_command
from enfold.errors import CallError, code_row
from enfold.log import silence
from enfold.registry import Registry
from enfold.surfaces.command_line import USAGE, Words, run_command_line, to_command_line

if TYPE_CHECKING:
    from enfold.tasks import Tasks

__all__ = ["run"]

_OURS: Final = (
    "  --tokens FILE the caller is whoever ENFOLD_TOKEN stands for in this file; else local, who may do everything"
)
_ARGUMENT: Final = re.compile(r"@|[A-Za-z_][\w.-]*:?=")


def run(words: list[str], registry: Registry | None) -> int:
    """Run the operation that the words name, with the arguments they give."""
    if registry is None and (not words or words[0] in ("-h", "--help")):
        print(f"{USAGE.replace('usage: call ', 'usage: enfold call TARGET ')}\n{_OURS}")
        return 0 if words else code_row("VALIDATION_ERROR").exit_code
    silence("enfold", "enfold.pipeline", "enfold.registry")  # The user is told in one sentence.
    target, rest = _target(words, registry)
    with _output_of_results() as out:
        tokens, rest = _without_tokens(rest)
        options: dict[str, Any] = {"recorder": make_recorder, "stdout": out, "caller": _caller(target)}
        options["identity"] = local_caller(tokens)
        options["tasks"] = partial(_open_tasks, target)
        if target is None or target.kind == "program":
            return to_command_line(_keeping(program(target, registry), target, rest), rest, **options)
        named = next((word for word in rest[:1] if not word.startswith("-")), None)
        return in_loop(target, lambda found: run_command_line(_keeping(found, target, rest), rest, **options), named)


def _keeping(registry: Registry, target: Target | None, words: list[str]) -> Registry:
    """The registry with a place for first results, where the words have a key for one."""
    asked = Words(words).options
    if "--idempotency-key" not in asked:
        return registry
    from enfold.commands.task_store import first_results, task_settings
    from enfold.operation import Policy

    return registry.with_policy(Policy(once=first_results(task_settings(target, asked.get("--tasks")), in_file=True)))


def _open_tasks(target: Target | None, registry: Registry, store: str | None) -> Tasks | None:
    """The tasks of a target, which are ordered here and run elsewhere."""
    from enfold.commands.task_store import open_tasks, task_settings

    return open_tasks(registry, task_settings(target, store), works=False)


def _without_tokens(words: list[str]) -> tuple[str | None, list[str]]:
    """The file after `--tokens`, by which the caller is known, and the other words."""
    for place, word in enumerate(words):
        if word == "--tokens" and place + 1 < len(words):
            return words[place + 1], [*words[:place], *words[place + 2 :]]
        if word.startswith("--tokens="):
            return word.removeprefix("--tokens="), [*words[:place], *words[place + 1 :]]
    return None, words


def _caller(target: Target | None) -> str:
    """What stands before the operation on the user's command line."""
    if target is None:
        return f"python {sys.argv[0]} call"
    return f"enfold call {'-- ' if target.command else ''}{target.text}"


@contextmanager
def _output_of_results() -> Iterator[TextIO]:
    """Standard output for results alone: what handlers print, and programs that they start, goes to standard error."""
    try:
        standard, messages = sys.stdout.fileno(), sys.stderr.fileno()
    except OSError:  # They are no files, but texts in memory.
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


def _target(words: list[str], registry: Registry | None) -> tuple[Target | None, list[str]]:
    """What is called, and the words of the call. The operation may stand before `--`, or behind the server's command."""
    if registry is not None or "--" not in words:
        return first_target(words, registry, "call")
    own, server = split_command(words)
    if server is None or Words(own).operation is not None:
        return server, own
    command, call = _split_call(server.command)
    return Target("server", " ".join(command), command), [*own, *call]


def _split_call(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A server's command, and the operation and arguments at its end: `npx some-server` and `add x=1`."""
    end = len(words)
    while end and _ARGUMENT.match(words[end - 1]):
        end -= 1
    if end < 2:
        raise CallError("VALIDATION_ERROR", "call needs an operation, as in: enfold call -- npx some-server add x=1")
    return words[: end - 1], words[end - 1 :]
