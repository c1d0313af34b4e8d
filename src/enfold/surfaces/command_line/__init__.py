"""Operations as a command line: arguments and help from the schema, results on stdout, messages on stderr."""

# Imports inside functions: the program starts anew for each call, and most calls need no help, record or request file.

from enfold.surfaces.command_line.shell import printable, run_command_line, to_command_line
from enfold.surfaces.command_line.words import USAGE, Words

__all__ = ["USAGE", "Words", "printable", "run_command_line", "to_command_line"]
