import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from enfold import App, OperationRegistry
from enfold.sources.functions import TargetError, from_functions, load_target, scan

APP = """
from enfold import OperationRegistry
from neighbour import ONE

ops = OperationRegistry("shop")

@ops.query
def add(x: int, y: int = ONE) -> int:
    return x + y
"""

PLAIN = """
from os.path import join

def greet(name: str) -> str:
    "Say hello."
    return f"hello {name}"

def _hidden() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "app_for_test.py").write_text(APP)
    (tmp_path / "plain_for_test.py").write_text(PLAIN)
    (tmp_path / "neighbour.py").write_text("ONE = 1\n")
    (tmp_path / "_private.py").write_text("raise RuntimeError('not to be imported')\n")
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_functions_become_operations_with_filters_and_new_names() -> None:
    def get_one() -> int:
        return 1

    def get_two() -> int:
        return 2

    def drop_all() -> None: ...

    operations = from_functions(
        get_one, get_two, drop_all, namespace="n", include=["get_*"], exclude=["*_two"], rename={"get_one": "one"}
    )
    assert [operation.spec.id for operation in operations] == ["n.one"]


def test_a_function_without_hints_is_not_a_query() -> None:
    assert from_functions(print_nothing)[0].spec.type == "mutation"
    assert from_functions(print_nothing, type="query")[0].spec.type == "query"


def print_nothing() -> None: ...


def test_a_module_gives_its_own_public_functions(folder: Path) -> None:
    module = ModuleType("made")
    exec(PLAIN, module.__dict__)  # noqa: S102  # our own text
    assert [operation.spec.id for operation in from_functions(module, namespace="m")] == ["m.greet"]


async def test_an_entry_point_names_a_function(folder: Path) -> None:
    registry = OperationRegistry()
    registry.register_all(from_functions(f"{folder / 'plain_for_test.py'}:greet"))
    assert (await registry.execute("greet", {"name": "you"})).data == "hello you"


def test_a_folder_gives_the_operations_of_its_files(folder: Path) -> None:
    assert [operation.spec.id for operation in scan(folder, namespace="all")] == [
        "shop.add",
        "all.plain_for_test.greet",
    ]
    with pytest.raises(TargetError, match="is not a folder"):
        scan(folder / "nothing")


async def test_a_target_is_a_file_its_registry_or_a_module(folder: Path) -> None:
    app = str(folder / "app_for_test.py")
    for target in (app, f"{app}:ops"):
        assert (await load_target(target).execute("shop.add", {"x": 1})).data == 2
    assert [spec.id for spec in load_target(str(folder / "plain_for_test.py")).list()] == ["greet"]
    assert [spec.id for spec in load_target("plain_for_test:greet").list()] == ["greet"]


async def test_a_program_that_changes_twice_in_a_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    program, path = "def version() -> int:\n    return {}\n", tmp_path / "changed_twice.py"
    for number in (1, 2, 3):  # of one size
        path.write_text(program.format(number))
        os.utime(path, ns=(10**18, 10**18 + number))
        assert (await load_target(f"{path}:version").execute("version")).data == number


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.py", "There is no file missing.py"),
        ("no_such_module_at_all", "There is no module no_such_module_at_all"),
        ("", "The target is empty"),
        (".", ". is a folder: name a Python file in it, as in app.py"),
        ("..", ".. is a folder: name a Python file in it, as in ../app.py"),
        ("./", "./ is a folder"),
        ("a..b", "There is no module a..b"),
        ("a b", "There is no module a b"),
        (__file__ + "c", "There is no module"),
        ("neighbour.py", "has no operations"),
        ("app_for_test.py:nothing", "there is no nothing in app_for_test"),
        ("app_for_test.py:ONE", "has no operations"),
    ],
)
def test_a_wrong_target_is_reported_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(TargetError, match=said):
        load_target(target)


def test_a_file_with_several_registries_asks_which(folder: Path) -> None:
    (folder / "two_for_test.py").write_text("from enfold import OperationRegistry as R\na = R()\nb = R()\n")
    with pytest.raises(TargetError, match="has several registries: name one of a, b"):
        load_target(str(folder / "two_for_test.py"))


async def test_registries_of_scanned_files_start_and_stop_with_the_one_that_takes_their_operations(
    tmp_path: Path,
) -> None:
    program = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")
events = []
ops.on_start(lambda: events.append("open"))
ops.on_stop(lambda: events.append("close"))

@ops.query
def seen() -> list[str]:
    return [*events]
"""
    (tmp_path / "scanned_shop.py").write_text(program)
    whole = OperationRegistry()
    whole.register_all(scan(tmp_path))
    for expected in (["open"], ["open", "close", "open"]):
        async with App(whole):
            assert (await whole.execute("shop.seen")).data == expected


@pytest.mark.parametrize("name", ["app", "asgi", "number"])
def test_an_application_or_another_object_is_no_target(name: str, tmp_path: Path) -> None:
    program = (
        "from enfold import App, OperationRegistry\napp = App(OperationRegistry())\nasgi = app.http()\nnumber = 3\n"
    )
    (tmp_path / "served_shop.py").write_text(program)
    with pytest.raises(
        TargetError, match=r"it is an object of the class \w+\. Name an OperationRegistry or a function"
    ):
        load_target(str(tmp_path / f"served_shop.py:{name}"))
