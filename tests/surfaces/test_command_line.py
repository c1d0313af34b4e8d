import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enfold.surfaces.command_line import to_command_line  # noqa: F401  # the surface under test, through its command

APP = """
import asyncio
from typing import Annotated, Literal
from collections.abc import AsyncIterator
from enfold import CallError, OperationRegistry, TextContent, mcp_envelope

ops = OperationRegistry("t")

@ops.query
def add(x: int, y: int = 2) -> int:
    '''Add two numbers.

    Args:
        x: First addend.
        y: Second addend.
    '''
    return x + y

@ops.query
async def echo(text: str, many: list[int] = [], deep: dict[str, int] | None = None, level: Literal["low", "high"] = "low") -> dict:
    return {"text": text, "many": many, "deep": deep, "level": level}

@ops.query
def pair() -> tuple[int, str]:
    return 1, "a"

@ops.query
def nothing() -> None: ...

@ops.query
def broken() -> None:
    raise ValueError("no such disk")

@ops.query
def own() -> None:
    raise CallError("SOLD_OUT", "None left")

@ops.query(access={"required_scopes": ["admin"]})
def secret() -> int:
    return 1

@ops.query(timeout=0.05)
async def slow() -> None:
    await asyncio.sleep(60)

@ops.query
async def failed():
    return mcp_envelope(None, is_error=True, content=[TextContent(text="disk full")])

@ops.subscription
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number
    if to > 2:
        raise ValueError("too far")

if __name__ == "__main__":
    ops.run()
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "app.py"
    path.write_text(APP)
    return path


def enfold(*words: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "enfold", *words], input=stdin, capture_output=True, text=True, check=False, cwd=cwd
    )


def call(app: Path, *words: str, stdin: str = "") -> tuple[int, Any, str]:
    done = enfold("call", str(app), *words, stdin=stdin)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_call_prints_its_result_and_nothing_else(app: Path) -> None:
    assert call(app, "t.add", "x=1") == (0, [{"result": 3}], "")
    assert call(app, "add", "x=1", "y=4") == (0, [{"result": 5}], "")


def test_several_values_and_none(app: Path) -> None:
    assert call(app, "pair")[1] == [{"result0": 1, "result1": "a"}]
    assert call(app, "nothing")[1] == [{}]


def test_arguments_come_as_text_json_files_and_stdin(app: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a file")
    (tmp_path / "json").write_text('{"a": 1}')
    (tmp_path / "all").write_text('{"text": "whole", "level": "high"}')
    _, [answer], _ = call(app, "echo", f"text=@{tmp_path / 'text'}", "many=1", "many=2", f"deep:=@{tmp_path / 'json'}")
    assert answer["result"] == {"text": "from a file", "many": [1, 2], "deep": {"a": 1}, "level": "low"}
    assert call(app, "echo", f"@{tmp_path / 'all'}", "level=low")[1][0]["result"]["text"] == "whole"
    assert call(app, "echo", "@-", stdin='{"text": "in"}')[1][0]["result"]["text"] == "in"
    assert call(app, "echo", "text=@-", stdin="words")[1][0]["result"]["text"] == "words"
    assert call(app, "echo", "--json", '{"text": "10"}')[1][0]["result"]["text"] == "10"
    assert call(app, "echo", "text=a=b", "many:=[3]")[1][0]["result"]["many"] == [3]


def test_the_format_can_be_chosen(app: Path) -> None:
    _, [answer], _ = call(app, "add", "x=1", "--format", "envelope")
    assert (answer["data"], answer["meta"]["source"]) == (3, "local")


FAILURES = [
    ("missing", ["add"], 2, 'VALIDATION_ERROR: Argument "x" is missing (expected integer)'),
    ("wrong type", ["add", "x=abc"], 2, 'VALIDATION_ERROR: Argument "x" must be integer, got string'),
    ("unknown argument", ["add", "x=1", "z=2"], 2, 'VALIDATION_ERROR: Unknown argument "z"'),
    ("unknown operation", ["t.ad", "x=1"], 3, "OPERATION_NOT_FOUND: Operation not found: t.ad. Did you mean t.add?"),
    ("denied", ["secret"], 4, "ACCESS_DENIED: t.secret needs a caller who says who he is"),
    ("slow", ["slow"], 5, "TIMEOUT: t.slow took longer than it may"),
    ("failing", ["broken"], 1, "EXECUTION_ERROR: no such disk"),
    ("a code of its own", ["own"], 1, "SOLD_OUT: None left"),
    ("not an argument", ["add", "x"], 2, "VALIDATION_ERROR: 'x' is not an argument: write name=value"),
    ("not JSON", ["add", "x:=}"], 2, 'VALIDATION_ERROR: Argument "x": not JSON'),
    ("no object", ["add", "--json", "[1]"], 2, "VALIDATION_ERROR: The arguments must be a JSON object"),
    ("no file", ["add", "x=@/nothing/here"], 2, "VALIDATION_ERROR: /nothing/here cannot be read: No such file"),
    ("an unknown option", ["add", "--x", "1"], 2, "VALIDATION_ERROR: Unknown option --x: write an argument"),
    ("an option without value", ["add", "--json"], 2, "VALIDATION_ERROR: --json needs a value"),
    ("a wrong timeout", ["add", "x=1", "--timeout", "soon"], 2, "VALIDATION_ERROR: --timeout needs a number"),
    ("an unknown format", ["add", "x=1", "--format", "xml"], 2, 'VALIDATION_ERROR: There is no format "xml"'),
]


@pytest.mark.parametrize(("words", "code", "said"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_a_failure_is_one_sentence_and_the_exit_code_of_the_table(
    app: Path, words: list[str], code: int, said: str
) -> None:
    returned, printed, message = call(app, *words)
    assert (returned, printed) == (code, [])
    assert message.startswith(said)
    assert "Traceback" not in message


def test_a_failure_is_also_written_in_a_format_that_was_asked_for(app: Path) -> None:
    returned, [printed], _ = call(app, "add", "--format", "envelope")
    assert (returned, printed["error"]["code"]) == (2, "VALIDATION_ERROR")


def test_an_mcp_error_result_is_a_result_with_exit_code_1(app: Path) -> None:
    assert call(app, "failed") == (1, [{"error": "disk full"}], "EXECUTION_ERROR: disk full\n")


def test_a_stream_is_printed_line_by_line_and_a_failure_at_its_end_is_told(app: Path) -> None:
    assert call(app, "count", "to=2") == (0, [{"result": 0}, {"result": 1}], "")
    returned, printed, message = call(app, "count", "to=3")
    assert (returned, len(printed)) == (1, 3)
    assert "EXECUTION_ERROR: too far" in message


def test_help_comes_from_the_schema(app: Path) -> None:
    shown = enfold("call", str(app), "add", "--help").stdout
    assert "Add two numbers." in shown
    assert "usage: call t.add x=… [y=…]" in shown
    assert "x  integer  First addend. (required)" in shown
    assert "y  integer  Second addend. (default 2)" in shown
    assert '"low" | "high"' in enfold("call", str(app), "echo", "--help").stdout


def test_a_users_own_script_has_the_same_commands(app: Path) -> None:
    done = subprocess.run([sys.executable, str(app), "call", "add", "x=1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, '{"result":3}\n')
    done = subprocess.run([sys.executable, str(app), "list"], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == "t.add\tquery\tAdd two numbers."


def test_a_reader_that_stops_reading_is_no_error(app: Path) -> None:
    command = f"{sys.executable} -m enfold list {app} --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ.copy())
    assert (done.stdout, done.stderr) == ("[", "")
