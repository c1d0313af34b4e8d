"""How the rooms of the house know each other, and what they leave to the commands: the environment, and the log."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import enfold
from enfold.commands.main import COMMANDS

SOURCE = Path(enfold.__file__).parent

# A web server puts the request of a CGI program there; sources read credentials, proxies and TLS settings, and give the
# environment on to the programs they start.
MAY_READ_THE_ENVIRONMENT = ("commands/", "surfaces/cgi.py", "sources/")


REASON = "# Imports inside functions: "

# `ops.run()` gives a user's script the commands: the one import upwards.
UPWARDS = ("enfold.registry", "enfold.commands.main")


class Import(NamedTuple):
    """One import statement; `is_late` where it stands inside a function."""

    names: tuple[str, ...]
    line: int
    is_late: bool


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def files() -> dict[str, Path]:
    """The files by the names of their modules."""
    return {_module(path): path for path in sorted(SOURCE.rglob("*.py"))}


def _module(path: Path) -> str:
    parts = ("enfold", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, *, is_late: bool = False) -> Iterator[Import]:
    """The imports that are carried out, at once or late; those for types alone are not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield Import(tuple(alias.name for alias in node.names), node.lineno, is_late)
        elif isinstance(node, ast.ImportFrom):
            yield Import(tuple(f"{node.module}.{alias.name}" for alias in node.names), node.lineno, is_late)
        elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from imports(node, is_late=is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_module_needs_itself_not_even_by_a_late_import() -> None:
    known = files()
    needed = {
        module: {
            name if name in known else name.rpartition(".")[0]
            for found in imports(parsed(path))
            for name in found.names
            if name.startswith("enfold.")
        }
        - {module}
        for module, path in known.items()
    }
    needed[UPWARDS[0]].remove(UPWARDS[1])
    TopologicalSorter(needed).prepare()  # a cycle is a CycleError that names it


def test_a_late_import_says_its_reason() -> None:
    """A comment at the import or above it, in its file or for its room."""
    unexplained = [
        f"{path.relative_to(SOURCE)}:{found.line}"
        for path in files().values()
        for found in imports(parsed(path))
        if found.is_late and not _is_explained(path, found.line)
    ]
    assert unexplained == []


def _is_explained(path: Path, line: int) -> bool:
    lines = path.read_text(encoding="utf-8").splitlines()
    above = line - 1
    while lines[above].lstrip().startswith(("import ", "from ", "#")) or not lines[above]:
        if "#" in lines[above]:
            return True
        above -= 1
    places = [path, *(folder / "__init__.py" for folder in path.relative_to(SOURCE).parents)]
    return any(REASON in (SOURCE / place).read_text(encoding="utf-8") for place in places)


def names_used(name: str, module: str) -> list[str]:
    """The files that use a name of a module of the standard library, or import the module itself where it is empty."""
    return sorted(
        path.relative_to(SOURCE).as_posix()
        for path in files().values()
        if any(_uses(node, name, module) for node in ast.walk(parsed(path)))
    )


def _uses(node: ast.AST, name: str, module: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == module
    if isinstance(node, ast.ImportFrom):
        return node.module == module and (not name or name in [alias.name for alias in node.names])
    return isinstance(node, ast.Import) and not name and module in [alias.name for alias in node.names]


def test_every_room_has_its_line_on_the_page_about_them() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| room |")[2].partition("\n\n")[0]
    named = {
        name.partition(".")[0] for line in table.splitlines() for name in re.findall(r"`([\w.]+)`", line.split("|")[1])
    }
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert named == rooms - {"__init__", "__main__"}


@pytest.mark.parametrize("name", ["environ", "getenv"])
def test_the_environment_is_read_by_commands_and_sources_alone(name: str) -> None:
    assert [file for file in names_used(name, "os") if not file.startswith(MAY_READ_THE_ENVIRONMENT)] == []


def test_no_two_classes_have_the_same_name() -> None:
    names = [node.name for path in files().values() for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    assert sorted(name for name, times in Counter(names).items() if times > 1) == []


def test_there_is_one_way_to_log() -> None:
    assert names_used("", "logging") == [
        "commands/shared/log_setup.py",
        "log.py",
    ]  # the first says how lines are written


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_the_module_of_its_name(name: str) -> None:
    tree = ast.parse((SOURCE / "commands" / f"{name}.py").read_text(encoding="utf-8"))
    (run,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    assert [argument.arg for argument in run.args.args] == ["words", "registry"]


def test_what_is_no_command_stands_apart_from_them() -> None:
    modules = {path.stem for path in (SOURCE / "commands").glob("*.py")}
    assert modules - {"__init__"} == {*COMMANDS, "main"}
