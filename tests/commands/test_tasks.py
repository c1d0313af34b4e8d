"""Tasks from the shell: started and listed, followed and answered, stored next to the target, and no file without need."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.tasks import conftest

from enfold.app.file import read_config
from enfold.commands.main import main
from enfold.commands.shared.stores import open_tasks, task_settings
from enfold.commands.shared.targets import Target
from enfold.errors import CallError
from enfold.operations import LogMessage, Progress
from enfold.operations.questions import elicitation
from enfold.sources.functions import load_target
from enfold.surfaces.command_line.terminal import ProgressLine, TerminalPeer

APP = """
from enfold import Context, OperationRegistry
from enfold.mcp import elicit

ops = OperationRegistry("shop")

@ops.mutation(durable=True)
async def report(year: int) -> str:
    return f"report of {year}"

@ops.mutation(durable=True)
async def clean(context: Context) -> str:
    return (await elicit(context, "Sure?")).action

@ops.mutation(durable=True)
async def pay(amount: int) -> int:
    with open("effects", "a") as file:
        file.write("x")
    return amount

@ops.mutation
async def plain() -> str:
    with open("effects", "a") as file:
        file.write("x")
    return "plain"
"""

jetstream = conftest.jetstream


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def work(*ids: str) -> None:
    """Run what has been ordered until these tasks have ended or ask."""

    async def run() -> None:
        tasks = open_tasks(load_target("app.py"), task_settings(Target("program", "app.py")))
        assert tasks is not None
        async with tasks:
            for task_id in ids:
                async for task in tasks.store.watch(None, task_id):
                    if task.is_ended or task.questions:
                        break

    asyncio.run(run())


def test_a_task_is_ordered_run_elsewhere_and_found_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["call", "app.py", "shop.plain"]) == 0
    assert not (folder / ".enfold").exists()  # nothing durable has been ordered
    capfd.readouterr()
    ids = []
    for words in (["shop.report", "year=2026"], ["shop.clean"]):
        assert main(["call", "app.py", *words, "--detach", "--idempotency-key", "k"]) == 0
        ids.append(capfd.readouterr().out.strip())
    assert main(["call", "app.py", "shop.report", "year=2026", "--detach", "--idempotency-key", "k"]) == 0
    assert capfd.readouterr().out.strip() == ids[0]
    assert main(["tasks", "list"]) == 0
    assert {line.split("\t")[0] for line in capfd.readouterr().out.splitlines()} == set(ids)
    work(*ids)
    assert main(["tasks", "wait", ids[0]]) == 0
    assert json.loads(capfd.readouterr().out) == {"result": "report of 2026"}
    assert main(["tasks", "wait", ids[1]]) == 7  # there is no terminal to ask
    assert main(["tasks", "get", ids[1]]) == 0
    key = next(iter(json.loads(capfd.readouterr().out)["inputRequests"]))
    assert main(["tasks", "answer", ids[1], 'sure={"action":"decline"}']) == 2
    assert f"has no question sure: answer {key}" in capfd.readouterr().err
    assert main(["tasks", "answer", ids[1], f'{key}={{"action":"decline"}}']) == 0
    work(ids[1])
    capfd.readouterr()
    assert main(["tasks", "cancel", ids[1]]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["status"], told["result"]) == ("completed", {"result": "decline"})
    assert main(["tasks", "clean"]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["tasks", "get", "A" * 32, "--tasks", "none.db"], 2),
        (["tasks", "get"], 2),
        (["tasks", "cancel", "A" * 32, "B" * 32], 2),
        (["tasks", "list", "abc"], 2),
        (["tasks", "clean", "abc"], 2),
        (["tasks", "list", "--limit", "-1"], 2),
        (["tasks", "list", "--limit", "1001"], 2),
        (["tasks", "wait", "A" * 32, "--timeout", "nan"], 2),
        (["tasks", "wait", "A" * 32, "--timeout", "-1"], 2),
        (["tasks", "list", "--target", "nothere.py"], 2),
        (["call", "app.py", "shop.report", "year=1", "--detach", "--timeout", "1"], 2),
        (["call", "app.py", "shop.report", "year=1", "--detach", "--output", "f"], 2),
        (["call", "app.py", "shop.report", "year=1", "--detach", "--format", "envelope"], 2),
        (["call", "app.py", "--detach", "--request", "{}"], 2),
        (["call", "app.py", "shop.plain", "--detach"], 2),
        (["call", "app.py", "shop.report", "year=x", "--detach"], 2),
    ],
)
def test_impossible_combinations_are_reported(folder: Path, words: list[str], code: int) -> None:
    assert main(["call", "app.py", "shop.report", "year=1", "--detach"]) == 0  # so that there is a store
    assert main(words) == code


def test_a_command_without_a_subcommand_asks_for_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 2
    assert capfd.readouterr().err.endswith(
        "the following arguments are required: {get,wait,answer,cancel,list,clean}\n"
    )


def test_one_key_is_one_run_in_the_shell_and_its_worker_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checks 10 and 25 in the shell: ordered and called, called and ordered; a call runs no other task."""
    assert main(["call", "app.py", "shop.pay", "amount=9", "--detach"]) == 0
    waiting, told = capfd.readouterr()
    assert told.startswith("no process runs tasks of this store: ")
    assert told.endswith(f"Follow it: enfold tasks wait {waiting}")
    for n, (first, second) in enumerate([(["--detach"], []), ([], ["--detach"])]):
        key = ["--idempotency-key", f"k{n}"]
        for words in (first, second, []):
            assert main(["call", "app.py", "shop.pay", f"amount={n}", *key, *words]) == 0
        assert (folder / "effects").read_text() == "xx"[: n + 1]
        out = capfd.readouterr().out.splitlines()
        (result,) = {line for line in out if line.startswith("{")}
        (task_id,) = {line for line in out if not line.startswith("{")}
        assert main(["tasks", "wait", task_id]) == 0
        assert capfd.readouterr().out.strip() == result == json.dumps({"result": n}, separators=(",", ":"))
    assert main(["tasks", "get", waiting.strip()]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "working"  # which no call has taken along
    assert main(["call", "app.py", "shop.pay", "amount=7", "--idempotency-key", "k1"]) == 2

    async def served() -> bool | None:
        tasks = open_tasks(load_target("app.py"), task_settings(Target("program", "app.py")))
        assert tasks is not None
        other = open_tasks(load_target("app.py"), task_settings(Target("program", "app.py")), at_once=0)
        assert other is not None
        async with tasks:
            async for task in tasks.store.watch(None, waiting.strip()):
                if task.is_ended:
                    break
            return await other.store.has_worker()

    assert asyncio.run(served()) is True


def test_nothing_is_detached_that_would_end_with_the_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / ".enfold").write_text("no folder")  # so that the default store is in memory
    assert main(["call", "app.py", "shop.report", "year=1", "--detach"]) == 7
    told = capfd.readouterr()
    assert (told.out, "pass a file with --tasks" in told.err) == ("", True)
    assert main(["call", "app.py", "shop.report", "year=1"]) == 0


def test_a_file_of_an_older_version_is_taken_over_and_others_are_reported(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", "app.py", "shop.report", "year=1", "--detach"]) == 0
    task_id = capfd.readouterr().out.strip()
    file = folder / ".enfold" / "tasks.db"
    assert main(["tasks", "cancel", task_id]) == 0
    change(
        file,
        "DROP INDEX tasks_by_change; ALTER TABLE tasks DROP COLUMN change; DROP TABLE kept_bytes; PRAGMA user_version = 1",
    )
    assert main(["tasks", "get", task_id]) == 0
    with closing(sqlite3.connect(file)) as connection:  # what has ended before is counted, too
        assert connection.execute("SELECT bytes > 500 FROM kept_bytes").fetchall() == [(1,)]
    assert main(["call", "app.py", "shop.report", "year=2", "--detach"]) == 0
    capfd.readouterr()
    assert main(["tasks", "list"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2
    for version, words in ((99, "newer version of Enfold"), (0, "belongs to another program")):
        change(file, f"PRAGMA user_version = {version}")
        before = file.read_bytes()
        assert main(["tasks", "list"]) == 7
        told = capfd.readouterr().err
        assert words in told
        assert "tasks.db" in told
        assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (None, "is not a database"),
        ("CREATE TABLE users (name)", "belongs to another program"),
        ("CREATE TABLE users (name); PRAGMA user_version = 2", "belongs to another program"),
        ("CREATE TABLE tasks (done)", "belongs to another program"),
        ("PRAGMA user_version = 99", "newer version of Enfold"),
    ],
)
@pytest.mark.parametrize("command", [("work",), ("serve", "--port", "0")], ids=["work", "serve"])
def test_a_file_that_is_not_a_task_store_is_reported_at_startup_and_not_changed(
    folder: Path, command: tuple[str, ...], statements: str | None, words: str
) -> None:
    file = folder / "mine.db"
    file.write_text("notes " * 100) if statements is None else change(file, statements)
    before = file.read_bytes()
    started = [sys.executable, "-m", "enfold", command[0], "app.py", "--tasks", "mine.db", *command[1:]]
    done = subprocess.run(started, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, words in done.stderr, "mine.db" in done.stderr) == (2, True, True)
    assert file.read_bytes() == before


def change(file: Path, statements: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(statements)
    connection.close()


def test_a_store_on_nats_is_named_by_every_command(
    folder: Path, jetstream: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ordered, run, waited for and found over one address; a key meets its task there, too."""
    store = ["--tasks", jetstream.url]
    assert main(["call", "app.py", "shop.pay", "amount=3", "--detach", "--idempotency-key", "k", *store]) == 0
    task_id, told = capfd.readouterr()
    task_id = task_id.strip()
    assert "no process runs tasks" in told
    words = [sys.executable, "-m", "enfold", "work", "app.py", *store]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert main(["tasks", "wait", task_id, "--timeout", "20", *store]) == 0
            assert json.loads(capfd.readouterr().out) == {"result": 3}
            assert main(["call", "app.py", "shop.pay", "amount=3", "--idempotency-key", "k", *store]) == 0
            assert json.loads(capfd.readouterr().out) == {"result": 3}
            assert main(["tasks", "get", "A" * 32, *store]) == 3
        finally:
            worker.terminate()
        assert worker.wait(20) == 0
    assert (folder / "effects").read_text() == "x"
    assert not (folder / ".enfold").exists()


def test_a_wrong_id_is_not_found(folder: Path) -> None:
    assert main(["call", "app.py", "shop.report", "year=1", "--detach"]) == 0
    assert main(["tasks", "get", "A" * 32]) == main(["tasks", "cancel", "x"]) == 3


def test_a_configuration_says_where_and_on_what_terms(folder: Path) -> None:
    (folder / "enfold.toml").write_text('[tasks]\nstore = "kept/t.db"\nlimit = 5\nkeep = 60\nfsync = "normal"\n')
    settings = task_settings(Target("configuration", "enfold.toml"))
    assert (settings.store, settings.terms) == ("kept/t.db", {"limit": 5, "keep": 60, "fsync": "normal"})
    for wrong in ("lmit = 5", "limit = 0", 'fsync = "never"', "keep = true"):
        (folder / "enfold.toml").write_text(f"[tasks]\n{wrong}\n")
        with pytest.raises(CallError, match="line 2"):
            read_config("enfold.toml", {})


def test_a_key_works_from_one_command_to_the_next(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for key in ("k", "k", "other"):
        assert main(["call", "app.py", "shop.plain", "--idempotency-key", key]) == 0
    assert (folder / "effects").read_text() == "xx"
    assert main(["call", "app.py", "shop.plain", "--idempotency-key", ""]) == 2


def test_a_key_works_from_one_mcp_server_to_the_next(folder: Path) -> None:
    """An editor starts the server anew: what is not durable is kept beside the tasks, as over HTTP."""
    own = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in own.items()}
    params = {"name": "shop.plain", "arguments": {}, "_meta": {**meta, "enfold/idempotencyKey": "k"}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) + "\n"
    words = [sys.executable, "-m", "enfold", "mcp", "app.py"]
    told = [
        json.loads(subprocess.run(words, cwd=folder, input=line, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert [each["result"]["structuredContent"] for each in told] == [{"result": "plain"}] * 2
    assert (folder / "effects").read_text() == "x"


def test_a_person_is_asked_until_the_answer_fits() -> None:
    form = {
        "type": "object",
        "properties": {
            "age": {"type": "integer"},
            "ok": {"type": "boolean"},
            "name": {"type": "string", "default": "Ann"},
        },
        "required": ["age", "ok"],
    }
    said = io.StringIO()
    person = TerminalPeer(io.StringIO("many\n7\nperhaps\ny\n\n"), said)
    answer = asyncio.run(person.ask({"q": elicitation("Who\x1b[31m?", form)}))["q"]
    assert answer == {"action": "accept", "content": {"age": 7, "ok": True, "name": "Ann"}}
    assert "\x1b" not in said.getvalue()
    assert TerminalPeer(io.StringIO(""), said).answer("elicitation/create", {"requestedSchema": form}) == {
        "action": "cancel"
    }


@pytest.mark.parametrize(
    "params", [{"mode": "url", "url": "https://example.com"}, {"message": "Sure?"}], ids=["a link", "yes or no"]
)
def test_closing_the_input_at_a_question_cancels_it(params: dict[str, Any]) -> None:
    assert TerminalPeer(io.StringIO(""), io.StringIO()).answer("elicitation/create", params) == {"action": "cancel"}


def test_a_number_that_json_cannot_represent_is_asked_again() -> None:
    form = {"type": "object", "properties": {"price": {"type": "number"}}}
    person = TerminalPeer(io.StringIO("nan\n1e999\n1.5\n"), io.StringIO())
    answer = person.answer("elicitation/create", {"requestedSchema": form})
    assert answer == {"action": "accept", "content": {"price": 1.5}}


def test_a_field_takes_one_choice_or_several_and_nothing_that_the_server_would_refuse() -> None:
    titled = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]
    form = {
        "type": "object",
        "properties": {
            "size": {"type": "string", "oneOf": titled},
            "colours": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}, "maxItems": 2},
            "sizes": {"type": "array", "items": {"anyOf": titled}},
            "age": {"type": "integer", "minimum": 18},
            "name": {"type": "string", "minLength": 2},
            "tags": {"type": "array", "items": {"type": "string"}, "default": ["a", "b"]},
        },
        "required": ["size", "colours", "sizes", "age", "name", "tags"],
    }
    said = io.StringIO()
    given = "Small\ns\nred, green\nred,blue\nl\n7\n+18\nA\nAnn\n\n"
    answer = TerminalPeer(io.StringIO(given), said).answer("elicitation/create", {"requestedSchema": form})
    assert answer == {
        "action": "accept",
        "content": {
            "size": "s",
            "colours": ["red", "blue"],
            "sizes": ["l"],
            "age": 18,
            "name": "Ann",
            "tags": ["a", "b"],
        },
    }
    told = said.getvalue()
    assert "size (s (Small)/l (Large)): " in told
    assert "colours (red/blue, separated by commas): " in told
    assert "tags (separated by commas, a,b): " in told
    assert told.count('the answer must be one of "') == 2
    assert "the answer must be at least 18" in told
    assert "the answer must be at least 2 characters" in told


@pytest.mark.parametrize("required", [None, 5, "name", [1]])
def test_a_form_whose_list_of_required_fields_is_odd_can_be_answered(required: Any) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": required}
    answer = TerminalPeer(io.StringIO("Ann\n"), io.StringIO()).answer("elicitation/create", {"requestedSchema": form})
    assert answer == {"action": "accept", "content": {"name": "Ann"}}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (LogMessage("ready"), "info: ready"),
        (LogMessage("", "warning", {"left": 3}), 'warning: {"left":3}'),
        (LogMessage("left", "info", [1, "\x1b[31m"]), 'info: left [1,"\\u001b[31m"]'),
        (LogMessage("left", "info", {1: object}), """info: left {"1":"<class 'object'>"}"""),
    ],
    ids=["text", "data", "both", "no JSON"],
)
def test_a_log_message_is_shown_with_its_data(told: LogMessage, line: str) -> None:
    terminal = Terminal()
    ProgressLine(terminal).hear(told)
    assert terminal.getvalue() == f"{line}\n"


def test_a_bar_shows_how_far_it_is() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.hear(Progress(5, 10, "reading"))
    assert terminal.getvalue() == "\r[############............]  50% reading"
    line.clear()
    assert terminal.getvalue().endswith("\r")


def test_a_configuration_says_how_many_nodes_of_nats_keep_each_entry(tmp_path: Path) -> None:
    file = tmp_path / "enfold.toml"
    for text, replicas in (("", None), ("[nats]\nreplicas = 5\n", 5)):
        file.write_text(text)
        assert task_settings(Target("configuration", str(file))).replicas == replicas
