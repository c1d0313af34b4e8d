"""What the rooms of the house leave to the commands: the environment, and printing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import enfold
from enfold.commands.main import COMMANDS

SOURCE = Path(enfold.__file__).parent

# A web server puts the request of a CGI program there; sources read credentials, proxies and TLS settings, and give the
# environment on to the programs they start.
MAY_READ_THE_ENVIRONMENT = ("commands/", "surfaces/cgi.py", "sources/")


def names_used(name: str, module: str) -> list[str]:
    """The files that use a name of a module of the standard library, or import the module itself where it is empty."""
    return sorted(
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(_uses(node, name, module) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    )


def _uses(node: ast.AST, name: str, module: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == module
    if isinstance(node, ast.ImportFrom):
        return node.module == module and (not name or name in [alias.name for alias in node.names])
    return isinstance(node, ast.Import) and not name and module in [alias.name for alias in node.names]


@pytest.mark.parametrize("name", ["environ", "getenv"])
def test_the_environment_is_read_by_commands_and_sources_alone(name: str) -> None:
    assert [file for file in names_used(name, "os") if not file.startswith(MAY_READ_THE_ENVIRONMENT)] == []


def test_there_is_one_way_to_log() -> None:
    assert names_used("", "logging") == ["log.py"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_the_module_of_its_name(name: str) -> None:
    tree = ast.parse((SOURCE / "commands" / f"{name}.py").read_text(encoding="utf-8"))
    (run,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    assert [argument.arg for argument in run.args.args] == ["words", "registry"]
