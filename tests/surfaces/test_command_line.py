import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enfold import OperationSpec
from enfold.surfaces.command_line.help import operation_help

APP = """
import asyncio
from typing import Annotated, Literal, TypedDict
from collections.abc import AsyncIterator
from enfold import CallError, OperationRegistry, TextContent, http_envelope, mcp_envelope

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
    await asyncio.Event().wait()

@ops.query
async def failed():
    return mcp_envelope(None, is_error=True, content=[TextContent(text="disk full")])

@ops.subscription
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number
    if to > 2:
        raise ValueError("too far")

@ops.query
def arrays(many: list[int] = [], maybe: list[int] | None = None, either: str | list[str] = "") -> dict:
    given = {"many": many, "maybe": maybe, "either": either}
    return {name: value for name, value in given.items() if value}

@ops.query
def half() -> str:
    return "an unpaired surrogate: \\ud800"

@ops.subscription
async def halves() -> AsyncIterator[str]:
    yield "whole"
    yield "\\ud800"

class Row(TypedDict):
    id: int

@ops.query
def rows() -> list[Row]:
    return [{"id": 1, "secret": "x"}, {"id": 2, "secret": "y"}]

@ops.query
async def page() -> Row:
    return http_envelope("<html>", status_code=200, content_type="text/html")

@ops.subscription
async def some() -> AsyncIterator[Row]:
    yield {"id": 1, "a\\x1b[2J\\nb": "x"}

@ops.query
def odd_error() -> None:
    raise CallError("ODD", "an unpaired surrogate: \\ud800", {"thing": object, "half": "\\ud800"})

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


FILES = """
from dataclasses import dataclass
from enfold import OperationRegistry
ops = OperationRegistry("lab")

@dataclass
class Sample:
    content: bytes
    label: str = ""

@ops.mutation
def upload(content: bytes, name: str = "") -> dict:
    return {"size": len(content), "start": content[:4].hex(), "name": name}

@ops.mutation
def deep(sample: Sample, more: list[bytes] | None = None) -> list:
    return [sample.content.hex(), [each.hex() for each in more or []]]

@ops.mutation
def either(value: str | bytes) -> str:
    return str(value)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "app.py"
    path.write_text(FILES)
    (path.parent / "photo.png").write_bytes(b"\x89PNG\xff\x00")
    return path


def test_a_file_is_encoded_where_the_operation_takes_bytes(files: Path) -> None:
    photo = f"@{files.parent / 'photo.png'}"
    seen = {"size": 6, "start": "89504e47", "name": ""}
    assert call(files, "upload", f"content={photo}") == (0, [{"result": seen}], "")
    assert call(files, "upload", "--content", photo)[1] == [{"result": seen}]
    assert call(files, "upload", "content=aGVsbG8=")[1][0]["result"]["size"] == 5


def test_files_are_encoded_in_fields_and_arrays(files: Path) -> None:
    photo = f"@{files.parent / 'photo.png'}"
    content = "89504e47ff00"
    assert call(files, "deep", f"sample.content={photo}")[1] == [{"result": [content, []]}]
    assert call(files, "deep", f"sample.content={photo}", f"more={photo}")[1] == [{"result": [content, [content]]}]
    words = [f"sample.content={photo}", f"more={photo}", "more=aGk=", f"sample.label={files}"]
    assert call(files, "deep", *words)[1] == [{"result": [content, [content, b"hi".hex()]]}]


def test_bytes_are_read_from_standard_input(files: Path) -> None:
    command = [sys.executable, "-m", "enfold", "call", str(files), "upload", "content=@-"]
    done = subprocess.run(command, input=b"\x00\xff\xfe", capture_output=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["result"]["start"]) == (0, "00fffe")


def test_text_that_starts_with_an_at_sign_is_written_as_json(files: Path) -> None:
    photo = f"content=@{files.parent / 'photo.png'}"
    code, _, said = call(files, "upload", photo, "name=@ann")
    assert code == 2
    assert said.startswith("VALIDATION_ERROR: ann cannot be read: No such file or directory")
    assert """name:='"@text"'""" in said
    assert call(files, "upload", photo, 'name:="@ann"')[1][0]["result"]["name"] == "@ann"
    assert call(files, "upload", "content=@/nothing")[2].startswith(
        "VALIDATION_ERROR: /nothing cannot be read: No such"
    )


def test_an_argument_that_may_be_text_takes_the_text_of_a_file(files: Path) -> None:
    (files.parent / "note.txt").write_text("aGVsbG8=")
    assert call(files, "either", f"value=@{files.parent / 'note.txt'}")[0] == 0


@pytest.mark.parametrize("words", [["many=1"], ["many=[1]"], ["many:=[1]"], ["maybe=1"], ["maybe=1", "many=1"]])
def test_one_value_is_enough_for_an_array(app: Path, words: list[str]) -> None:
    given = call(app, "arrays", *words)[1][0]["result"]
    assert given == {word.partition("=")[0].rstrip(":"): [1] for word in words}


def test_text_stays_text_where_text_will_do(app: Path) -> None:
    assert call(app, "arrays", "either=1")[1] == [{"result": {"either": "1"}}]


def test_the_format_can_be_chosen(app: Path) -> None:
    _, [answer], _ = call(app, "add", "x=1", "--format", "envelope")
    assert (answer["data"], answer["meta"]["source"]) == (3, "local")


FAILURES = [
    ("missing", ["add"], 2, 'VALIDATION_ERROR: Argument "x" is missing (expected integer)'),
    ("wrong type", ["add", "x=abc"], 2, 'VALIDATION_ERROR: Argument "x" must be integer, got string'),
    ("unknown argument", ["add", "x=1", "z=2"], 2, 'VALIDATION_ERROR: Unknown argument "z"'),
    (
        "one namespace more",
        ["warehouse.t.add", "x=1"],
        3,
        "OPERATION_NOT_FOUND: Operation not found: warehouse.t.add. Did you mean t.add?",
    ),
    ("unknown operation", ["t.ad", "x=1"], 3, "OPERATION_NOT_FOUND: Operation not found: t.ad. Did you mean t.add?"),
    ("slow", ["slow"], 5, "TIMEOUT: t.slow exceeded its timeout"),
    ("failing", ["broken"], 1, "EXECUTION_ERROR: no such disk"),
    ("a code of its own", ["own"], 1, "SOLD_OUT: None left"),
    ("not an argument", ["add", "x"], 2, "VALIDATION_ERROR: 'x' is not an argument: write name=value"),
    ("not JSON", ["add", "x:=}"], 2, 'VALIDATION_ERROR: Argument "x": not JSON'),
    ("no object", ["add", "--json", "[1]"], 2, "VALIDATION_ERROR: The arguments must be a JSON object"),
    ("no file", ["add", "x=@/nothing/here"], 2, "VALIDATION_ERROR: /nothing/here cannot be read: No such file"),
    ("an unknown option", ["add", "x=1", "--z", "1"], 2, 'VALIDATION_ERROR: Unknown argument "z"'),
    ("an option without value", ["add", "--json"], 2, "VALIDATION_ERROR: --json needs a value"),
    ("a wrong timeout", ["add", "x=1", "--timeout", "soon"], 2, "VALIDATION_ERROR: --timeout needs a number"),
    (
        "an option nearly right",
        ["add", "--fromat=x"],
        2,
        "VALIDATION_ERROR: Unknown option --fromat: did you mean --format?",
    ),
    (
        "a file that cannot be",
        ["add", "x=1", "--output", "/no/such"],
        2,
        "VALIDATION_ERROR: Cannot write /no/such",
    ),
    (
        "a file for a stream",
        ["count", "to=1", "--output", "/tmp/x"],
        2,
        "VALIDATION_ERROR: --output needs a single result",
    ),
    ("an unknown format", ["add", "x=1", "--format", "xml"], 2, 'VALIDATION_ERROR: Unknown format "xml"'),
]


def test_the_local_user_may_call_everything_of_a_local_target(app: Path) -> None:
    assert call(app, "secret")[:2] == (0, [{"result": 1}])


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
    assert call(app, "failed") == (1, [], "EXECUTION_ERROR: disk full\n")
    told = call(app, "failed", "--format", "result")
    assert told == (1, [{"error": "disk full"}], "EXECUTION_ERROR: disk full\n")


def test_a_stream_is_printed_line_by_line_and_a_failure_at_its_end_is_reported(app: Path) -> None:
    assert call(app, "count", "to=2") == (0, [{"result": 0}, {"result": 1}], "")
    returned, printed, message = call(app, "count", "to=3")
    assert (returned, len(printed)) == (1, 3)
    assert "EXECUTION_ERROR: too far" in message


@pytest.mark.parametrize(("name", "before"), [("half", []), ("halves", [{"result": "whole"}])])
def test_a_result_that_has_no_json_form_is_a_failure_in_one_sentence(app: Path, name: str, before: list[Any]) -> None:
    code, lines, said = call(app, name)
    assert (code, lines) == (1, before)
    assert said.startswith("EXECUTION_ERROR: failed to marshal response: /")
    assert len(said.splitlines()) == 1


def test_an_error_with_odd_details_is_written_anyway(app: Path) -> None:
    code, lines, said = call(app, "odd_error", "--format", "envelope")
    assert (code, lines[0]["error"]["code"]) == (1, "ODD")
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [["text=@-"], ["text:=@-"], ["@-"]], ids=["text", "json", "whole"])
def test_standard_input_that_is_not_text_is_reported(app: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "enfold", "call", str(app), "echo", *words]
    done = subprocess.run(command, input=b'"\xff"', capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr == b"VALIDATION_ERROR: Standard input cannot be read: it is not UTF-8 text\n"


@pytest.mark.parametrize("word", ["text=\udcff", 'text:="\udcff"', '--json={"text":"\udcff"}'])
def test_arguments_that_are_not_text_are_reported(app: Path, word: str) -> None:
    assert call(app, "echo", word) == (
        2,
        [],
        "VALIDATION_ERROR: An argument cannot be read: it is not UTF-8 text\n",
    )


def test_where_an_encoding_lacks_a_character_json_names_it(app: Path) -> None:
    command = [sys.executable, "-m", "enfold", "call", str(app), "echo", "text=日本"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, check=False, env=environ)
    assert (done.returncode, json.loads(done.stdout)["result"]["text"]) == (0, "日本")


def test_help_comes_from_the_schema(app: Path) -> None:
    shown = enfold("call", str(app), "add", "--help").stdout
    assert "Add two numbers." in shown
    assert f"usage: enfold call {app} t.add x=… [y=…]" in shown
    assert "x  integer  First addend. (required)" in shown
    assert "y  integer  Second addend. (default 2)" in shown
    assert '"low" | "high"' in enfold("call", str(app), "echo", "--help").stdout


def test_a_users_own_script_has_the_same_commands(app: Path) -> None:
    done = subprocess.run([sys.executable, str(app), "call", "add", "x=1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, '{"result":3}\n')
    done = subprocess.run([sys.executable, str(app), "list"], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == "t.add\tquery\tAdd two numbers."


@pytest.mark.parametrize(
    ("words", "reader", "read"),
    [("list {app} --json", "head -c 1", "["), ("list {app}", "true", ""), ("call {app} add x=1", "true", "")],
    ids=["in the middle", "before the first line", "before the result"],
)
def test_a_reader_that_stops_reading_is_not_an_error(app: Path, words: str, reader: str, read: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    # The reader has gone by the time the command writes: its end of the pipe is closed before the command starts.
    command = f"{{ sleep 0.1; {sys.executable} -m enfold {words.format(app=app)}; echo $? >&2; }} | {reader}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environ)
    assert (done.stdout, done.stderr) == (read, "0\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_cannot_be_written_is_reported_in_one_sentence(app: Path, buffered: bool) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "enfold", "call", str(app), "add", "x=1"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (1, "EXECUTION_ERROR: No space left on device\n")


def test_every_warning_is_a_line_on_stderr(app: Path) -> None:
    code, printed, messages = call(app, "rows")
    assert (code, printed) == (0, [{"result": [{"id": 1}, {"id": 2}]}])
    assert messages == "warning: An undeclared property was removed: /*/secret (2 times)\n"


def test_a_warning_sends_no_control_sequences_to_the_terminal(app: Path) -> None:
    code, printed, messages = call(app, "some")
    assert (code, printed) == (0, [{"result": {"id": 1}}])
    assert messages == "warning: An undeclared property was removed: /a\\x1b[2J b\n"


def test_an_invalid_success_of_an_upstream_is_printed_with_a_warning_and_exits_with_1(app: Path) -> None:
    code, printed, messages = call(app, "page")
    assert (code, printed) == (1, [])
    assert "The service returned text/html instead of application/json" in messages
    assert call(app, "page", "--format", "envelope")[1][0]["data"] == "<html>"
    assert messages.splitlines()[0] == "warning: The result as a whole does not match the schema: /"
    assert messages.splitlines()[1].startswith("EXECUTION_ERROR: ")


NESTED = """
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
import msgspec
from enfold import CallError, ImageContent, OperationRegistry, http_envelope

ops = OperationRegistry("t")
ran = []

@dataclass
class Line:
    sku: Annotated[str, msgspec.Meta(min_length=6)]
    color: Literal["red", "blue"]
    next: "Line | None" = None

@ops.query
def order(lines: list[Line], when: datetime, count: Annotated[int, msgspec.Meta(ge=3)] = 4) -> int:
    return len(lines)

@ops.query
def raw() -> bytes: return b"\\x00\\xff"

@ops.query
def image(): return ImageContent(data="AAE=", mime_type="image/png")

@ops.query
def page(): return http_envelope(b"PNG", status_code=200, content_type="image/png")

@ops.query
def number() -> int: return 3
"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nested") / "nested.py"
    path.write_text(NESTED)
    return path


def test_help_opens_references_and_its_example_runs(nested: Path) -> None:
    lines = enfold("call", str(nested), "order", "--help").stdout.splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert f"usage: enfold call {nested} t.order lines=… when=… [count=…]" in words
    assert "lines array of Line (required)" in words
    assert "sku string (at least 6 characters) (required)" in words
    assert 'color "red" | "blue" (required)' in words
    assert "when string (date-time) (required)" in words
    assert "count integer (at least 3) (default 4)" in words
    example = shlex.split(lines[-1])
    assert example[:2] == ["enfold", "call"]
    done = enfold(*example[1:])
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"result":1}\n', "")


@pytest.mark.parametrize(
    ("operation", "data"),
    [("raw", b"\x00\xff"), ("image", b"\x00\x01"), ("page", b"PNG"), ("number", b'{"result":3}\n')],
)
def test_a_result_can_be_written_to_a_file(nested: Path, tmp_path: Path, operation: str, data: bytes) -> None:
    file = tmp_path / "result"
    assert call(nested, operation, "--output", str(file)) == (0, [], f"{file}: {len(data)} bytes\n")
    assert file.read_bytes() == data


def test_output_of_handlers_goes_to_stderr(tmp_path: Path) -> None:
    app = tmp_path / "loud.py"
    app.write_text(
        "import os, subprocess\n"
        "print('imported')\n"
        "def add(x: int) -> int:\n"
        "    print('printed')\n"
        "    os.write(1, b'written\\n')\n"
        "    subprocess.run(['echo', 'echoed'])\n"
        "    return x\n"
    )
    code, printed, messages = call(app, "add", "x=1")
    assert (code, printed) == (0, [{"result": 1}])
    assert sorted(messages.split()) == ["echoed", "imported", "printed", "written"]


def test_streams_run_in_the_loop_that_their_source_lives_in(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(
        "import asyncio\n"
        "from collections.abc import AsyncIterator\n"
        "from enfold import OperationRegistry\n"
        "ops = OperationRegistry('loops')\n"
        "home = asyncio.get_running_loop()\n"
        "def is_home() -> bool: return asyncio.get_running_loop() is home\n"
        "@ops.query\n"
        "async def once() -> bool: return is_home()\n"
        "@ops.subscription\n"
        "async def often() -> AsyncIterator[bool]: yield is_home()\n"
    )
    config = tmp_path / "enfold.toml"
    config.write_text('[sources.own]\nfunctions = "loops.py"\n')
    assert call(config, "loops.once") == (0, [{"result": True}], "")
    assert call(config, "loops.often") == (0, [{"result": True}], "")
    request = '{"schema_version": "mcp.request.v0.1", "tool": {"name": "loops.once"}, "params": {}, "artifacts": []}'
    code, (answer,), _ = call(config, "--request", request)
    assert (code, answer["result"]) == (0, True)


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {f"f{n}": {"$ref": "#"} for n in range(60)},
            "required": [f"f{n}" for n in range(60)],
        },
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": "x", "multipleOf": []}},
            "required": ["a"],
        },
        {"type": "object", "properties": {"a": {"anyOf": [True, {"items": {"$ref": 7}}]}}, "required": "a"},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        },
        {"type": "object", "properties": [], "required": {}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 10**12}}, "required": ["a"]},
    ],
)
def test_a_hostile_schema_still_has_help(schema: dict[str, Any]) -> None:
    assert operation_help(OperationSpec(name="odd", input_schema=schema)).startswith("odd (")
