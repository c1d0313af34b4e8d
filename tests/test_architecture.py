"""Rules about the code base that import-linter cannot check: cycles, late imports, the environment, the log."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import enfold

SOURCE = Path(enfold.__file__).parent

# CGI receives its request there; sources and the HTTP client read credentials, proxies and TLS settings, and pass the
# environment to the programs they start.
MAY_READ_THE_ENVIRONMENT = ("commands/", "surfaces/cgi", "sources/", "http_client/")

REASON = "# Imports inside functions: "

# `ops.run()` turns a script into a command line, and `uvicorn app:ops` serves an `App`: the only imports that point up.
UPWARDS = ("enfold.runtime.registry", {"enfold.commands.main", "enfold.app.app"})


class Import(NamedTuple):
    """One import statement; `is_late` if it is inside a function."""

    names: tuple[str, ...]
    line: int
    is_late: bool


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def files() -> dict[str, Path]:
    """Source files by module name."""
    return {_module(path): path for path in sorted(SOURCE.rglob("*.py"))}


def _module(path: Path) -> str:
    parts = ("enfold", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, *, is_late: bool = False) -> Iterator[Import]:
    """All imports but those under `TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield Import(tuple(alias.name for alias in node.names), node.lineno, is_late)
        elif isinstance(node, ast.ImportFrom):
            yield Import(tuple(f"{node.module}.{alias.name}" for alias in node.names), node.lineno, is_late)
        elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from imports(node, is_late=is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_import_cycle_not_even_through_late_imports() -> None:
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
    needed[UPWARDS[0]] -= UPWARDS[1]
    TopologicalSorter(needed).prepare()  # raises a CycleError that names the cycle


def test_late_imports_give_their_reason() -> None:
    """In a comment at or above the import, or for the whole file or package."""
    unexplained = [
        f"{path.relative_to(SOURCE)}:{found.line}"
        for path in files().values()
        for found in imports(parsed(path))
        if found.is_late and not _is_optional(found) and not _is_explained(path, found.line)
    ]
    assert unexplained == []


def _is_optional(found: Import) -> bool:
    """Whether it imports a package that is neither ours nor in the standard library: those are optional but for msgspec."""
    return not any(name.partition(".")[0] in {"enfold", *sys.stdlib_module_names} for name in found.names)


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
    """Files that use a name of a standard library module; with an empty name, files that import the module."""
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


def test_the_architecture_page_lists_every_package() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| package |")[2].partition("\n\n")[0]
    listed = {
        name.partition(".")[0] for line in table.splitlines() for name in re.findall(r"`([\w.]+)`", line.split("|")[1])
    }
    packages = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert listed == packages - {"__init__", "__main__"}


@pytest.mark.parametrize("name", ["environ", "getenv"])
def test_only_commands_and_sources_read_the_environment(name: str) -> None:
    assert [file for file in names_used(name, "os") if not file.startswith(MAY_READ_THE_ENVIRONMENT)] == []


def test_only_the_log_modules_import_logging() -> None:
    assert {Path(file).name for file in names_used("", "logging")} == {"log.py"}
