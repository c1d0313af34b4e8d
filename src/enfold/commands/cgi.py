"""The command `enfold cgi`: answer one CGI request. Without argparse, which starts slowly."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from enfold.commands.shared.targets import Target, first_target, load_program
from enfold.errors import CallError, printable_lines
from enfold.formats import DEFAULT_FORMAT
from enfold.runtime.registry import Registry
from enfold.surfaces.cgi import refuse, to_cgi

if TYPE_CHECKING:
    from enfold.tasks import Tasks

OPTIONS: Final = {  # each with its default
    "--identity-variable": ("the variable of the web server that says who calls", "REMOTE_USER"),
    "--format": ("default format of responses", DEFAULT_FORMAT),
    "--provenance": ("record the run: `minimal` or `full`", ""),
    "--store": ("keep the record in this SQLite file", ""),
    "--key": ("sign the record with this private key (PEM)", ""),
}


def run(words: list[str], registry: Registry | None) -> int:
    """Answer the request, even if the program cannot be loaded; without a web server, print usage errors to stderr."""
    if words[:1] in (["-h"], ["--help"]):
        print("usage: enfold cgi TARGET [options]\n")
        for name, (about, default) in OPTIONS.items():
            print(f"  {f'{name}=VALUE':<26} {about}{f' (default {default})' if default else ''}")
        return 0
    try:
        return _answer(words, registry)
    except CallError as error:
        if "GATEWAY_INTERFACE" not in os.environ:
            raise
        return _refuse(error)


def _answer(words: list[str], registry: Registry | None) -> int:
    target, rest = first_target(words, registry, "cgi")
    if target.kind != "program":
        raise CallError("VALIDATION_ERROR", f"cgi needs a Python program; {target.text} is a {target.kind}")
    options = _options(rest)
    given = {name: value for name, value in options.items() if value}
    recorder = None
    if "--provenance" in given:
        from enfold.commands.shared.stores import make_recorder  # few programs record

        recorder = make_recorder(given)
    try:
        found = load_program(target)
    except CallError as error:
        return _refuse(error)
    try:
        return to_cgi(
            found,
            format=options["--format"],
            identity_variable=options["--identity-variable"],
            recorder=recorder,
            tasks=partial(_open_tasks, found, target),
        )
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None


@asynccontextmanager
async def _open_tasks(registry: Registry, target: Target) -> AsyncIterator[Tasks | None]:
    """Open the tasks of a program; this process runs only those that it waits for."""
    from enfold.commands.shared.stores import opened_tasks, task_settings  # few operations must be tasks

    async with opened_tasks(registry, task_settings(target), at_once=0, runs_own=True) as tasks:
        yield tasks


def _refuse(error: CallError) -> int:
    print(printable_lines(f"{error.code}: {error.message}"), file=sys.stderr)
    return refuse()


def _options(words: list[str]) -> dict[str, str]:
    options = {name: default for name, (_, default) in OPTIONS.items()}
    for word in words:
        name, _, value = word.partition("=")
        if name not in options:
            raise CallError("VALIDATION_ERROR", f"cgi has no option {name!r}: use {'=, '.join(options)}=")
        options[name] = value or "yes"
    return options
