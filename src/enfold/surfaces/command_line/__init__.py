"""Operations as a command line: arguments and help from the schema, results on stdout, messages on stderr."""

# Imports inside functions: the program starts anew for each call, and most calls need no record, task or request file.

from enfold.surfaces.command_line.arguments import USAGE, Words
from enfold.surfaces.command_line.shell import ShellOptions, run_command_line, to_command_line

__all__ = ["USAGE", "ShellOptions", "Words", "run_command_line", "to_command_line"]
