"""Operations as a command line: arguments and help from the schema, results on stdout, messages on stderr."""

from enfold.surfaces.command_line.help import USAGE, operation_help
from enfold.surfaces.command_line.shell import run_command_line, to_command_line
from enfold.surfaces.command_line.words import Words, read_arguments

__all__ = ["USAGE", "Words", "operation_help", "read_arguments", "run_command_line", "to_command_line"]
