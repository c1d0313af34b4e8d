"""The command `enfold cgi`: answer one request as a CGI program. Without argparse, which starts slowly."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import Final

from enfold.commands.recorder_options import make_recorder
from enfold.commands.targets import first_target, program
from enfold.errors import CallError
from enfold.registry import Registry

__all__ = ["run"]

OPTIONS: Final = {
    "--identity-variable": "REMOTE_USER",
    "--format": "result",
    "--provenance": "",
    "--store": "",
    "--key": "",
}


def run(words: list[str], registry: Registry | None) -> int:
    """Answer the request; under a web server even a wrong target is answered over HTTP."""
    if words[:1] in (["-h"], ["--help"]):
        print(f"usage: enfold cgi TARGET {' '.join(f'[{name}=VALUE]' for name in OPTIONS)}")
        return 0
    try:
        return _answer(words, registry)
    except CallError as error:
        if "GATEWAY_INTERFACE" not in os.environ:
            raise
        from enfold.surfaces.cgi import refuse

        print(f"{error.code}: {error.message}", file=sys.stderr)
        return refuse()


def _answer(words: list[str], registry: Registry | None) -> int:
    from enfold.surfaces.cgi import to_cgi

    with redirect_stdout(sys.stderr):  # What a module prints while it is imported must not be taken for headers.
        target, rest = first_target(words, registry, "cgi")
        if target is not None and target.kind != "program":
            raise CallError("VALIDATION_ERROR", f"cgi takes a program, and {target.text} is a {target.kind}")
        found = program(target, registry)
    options = _options(rest)
    given = {name: value for name, value in options.items() if value}
    recorder = make_recorder(given) if "--provenance" in given else None
    try:
        return to_cgi(
            found, format=options["--format"], identity_variable=options["--identity-variable"], recorder=recorder
        )
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None


def _options(words: list[str]) -> dict[str, str]:
    options = dict(OPTIONS)
    for word in words:
        name, _, value = word.partition("=")
        if name not in options:
            raise CallError("VALIDATION_ERROR", f"cgi does not know {name!r}: it takes {'=, '.join(options)}=")
        options[name] = value or "yes"
    return options
