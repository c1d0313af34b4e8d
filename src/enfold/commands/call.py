"""The command `enfold call`: run one operation from the shell. Without argparse, which starts slowly."""

from __future__ import annotations

from enfold.commands.recording import make_recorder
from enfold.commands.targets import first_is_target, is_config, with_config
from enfold.errors import code_row
from enfold.log import silence
from enfold.registry import Registry
from enfold.surfaces.command_line import USAGE, run_command_line, to_command_line

__all__ = ["run"]


def run(words: list[str], registry: Registry | None) -> int:
    """Run the operation that the words name, with the arguments they give."""
    if registry is None and (not words or words[0] in ("-h", "--help")):
        print(USAGE.replace("usage: call ", "usage: enfold call TARGET "))
        return 0 if words else code_row("VALIDATION_ERROR").exit_code
    silence("enfold", "enfold.pipeline", "enfold.registry")  # The user is told in one sentence.
    if registry is None and is_config(words[0]):
        named = next((word for word in words[1:2] if not word.startswith("-")), None)
        return with_config(words[0], lambda found: run_command_line(found, words[1:], recorder=make_recorder), named)
    found, rest = first_is_target(words, registry, "call")
    return to_command_line(found, rest, recorder=make_recorder)
