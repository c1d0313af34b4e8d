"""The command `enfold call`: call an operation. Without argparse, which starts slowly."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

from enfold.commands.shared.callers import local_caller
from enfold.commands.shared.targets import (
    Target,
    first_target,
    in_loop,
    load_program,
    output_for_results,
    split_command,
)
from enfold.errors import CallError
from enfold.observability.log import silence
from enfold.runtime.registry import Registry
from enfold.surfaces.command_line import USAGE, ShellOptions, Words, run_command_line, to_command_line

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.tasks import Tasks

_OURS: Final = "  --tokens FILE         call as the identity of ENFOLD_TOKEN in this file; by default as `local`, which may do everything"
_ARGUMENT: Final = re.compile(r"@|[A-Za-z_][\w.-]*:?=")


def run(words: list[str], registry: Registry | None) -> int:
    """Run the operation that the words name, with the arguments they give."""
    if registry is None and words[:1] in (["-h"], ["--help"]):
        print(f"{USAGE.replace('usage: call ', 'usage: enfold call TARGET ')}\n{_OURS}")
        return 0
    # One sentence for the user; stack traces only on request.
    silence("enfold.runtime.pipeline", "enfold.runtime.registry", *(() if "--verbose" in words else ("enfold",)))
    target, rest = _target(words, registry)
    with output_for_results() as out:
        tokens, rest = _without_tokens(rest)
        asked = Words(rest)
        found = asked.options
        options: ShellOptions = {"recorder": _make_recorder, "stdout": out, "caller": _caller(target)}
        options["identity"] = local_caller(tokens)
        options["tasks"] = partial(_open_tasks, target)
        if target.kind == "program":
            return to_command_line(_with_first_results(load_program(target), target, found), rest, **options)
        return in_loop(
            target,
            lambda opened: run_command_line(_with_first_results(opened, target, found), rest, **options),
            asked.operation,
        )


def _with_first_results(registry: Registry, target: Target, asked: Mapping[str, str]) -> Registry:
    """Return the registry, with an idempotency store if the words have an idempotency key."""
    if "--idempotency-key" in asked:
        from enfold.commands.shared.stores import idempotency_store, task_settings

        registry.services.idempotency_store = idempotency_store(task_settings(target, asked.get("--tasks")))
    return registry


def _make_recorder(options: Mapping[str, str]) -> Recorder:
    from enfold.commands.shared.stores import make_recorder  # few calls are recorded

    return make_recorder(options)


def _open_tasks(target: Target, registry: Registry, store: str | None) -> AbstractAsyncContextManager[Tasks | None]:
    """Open the tasks of a target; this process runs only those that it waits for."""
    from enfold.commands.shared.stores import opened_tasks, task_settings

    return opened_tasks(registry, task_settings(target, store), at_once=0, runs_own=True)


def _without_tokens(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the file after `--tokens`, which identifies the caller, and the other words."""
    for place, word in enumerate(words):
        if word == "--tokens" and place + 1 < len(words):
            return words[place + 1], [*words[:place], *words[place + 2 :]]
        if word.startswith("--tokens="):
            return word.removeprefix("--tokens="), [*words[:place], *words[place + 1 :]]
    return None, words


def _caller(target: Target) -> str:
    """Return the command line before the operation."""
    if target.registry is not None:
        return f"python {sys.argv[0]} call"
    return f"enfold call {'-- ' if target.command else ''}{target.text}"


def _target(words: list[str], registry: Registry | None) -> tuple[Target, list[str]]:
    """Return the target and the words of the call. The operation may be before `--`, or after the server's command."""
    own, server = split_command(words) if registry is None else (words, None)
    if server is None:
        return first_target(words, registry, "call", " OPERATION name=value")
    if Words(own).operation is not None:
        return server, own
    command, call = _split_call(server.command)
    return Target("server", " ".join(command), command), [*own, *call]


def _split_call(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a server's command from the operation and arguments at its end: `npx some-server` and `add x=1`."""
    end = len(words)
    while end and _ARGUMENT.match(words[end - 1]):
        end -= 1
    if end < 2:
        raise CallError("VALIDATION_ERROR", "call needs an operation, as in: enfold call -- npx some-server add x=1")
    return words[: end - 1], words[end - 1 :]
