"""`enfold diff`: what changed between two programs, and which changes are breaking."""

import json
from pathlib import Path

import pytest

from enfold.commands.main import main

OLD = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
def price(item: str) -> int: return 1

@ops.query
def stock(item: str) -> int | None: return 1

@ops.query
def gone() -> None: ...

@ops.mutation
def order(item: str) -> str: return item
"""
NEW = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
def price(item: str, currency: str) -> float: return 1.0

@ops.query
def stock(item: str, shelf: int = 0) -> int:
    \"\"\"How many there are.\"\"\"
    return 1

@ops.query
def here() -> None: ...

@ops.mutation(access={"required_scopes": ["shop:write"]})
def order(item: str) -> str: return item
"""


@pytest.fixture
def programs(tmp_path: Path) -> tuple[str, str]:
    for name, text in (("old.py", OLD), ("new.py", NEW)):
        (tmp_path / name).write_text(text)
    return str(tmp_path / "old.py"), str(tmp_path / "new.py")


def test_each_change_is_reported_with_its_reasons(
    programs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *programs]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "- shop.gone  removed, breaking",
        "+ shop.here  added",
        "~ shop.order  changed, breaking",
        "    now requires the scope shop:write",
        "~ shop.price  changed, breaking",
        "    input: /currency may be missing where it is required",
        "    output: the value may be a number where an integer is expected",
        "~ shop.stock  changed",
        "    description, input_schema, output_schema changed",
        "1 removed, 1 added, 3 changed; 3 breaking",
    ]


def test_diff_exits_with_0_only_without_breaking_changes_and_prints_json(
    programs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = programs
    assert main(["diff", old, old]) == 0
    assert capsys.readouterr().out == "Nothing changed.\n"
    assert main(["diff", old, new, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["breaking"] is True
    assert told["changes"][0] == {"id": "shop.gone", "change": "removed", "verdict": "breaking", "reasons": []}


def test_a_target_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "nothing.py", "nothing.py"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
