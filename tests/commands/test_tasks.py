"""Tasks from the shell: ordered and printed, followed and answered, kept beside the target, and nothing made without need."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from enfold.commands.main import main
from enfold.commands.targets import Target
from enfold.commands.task_store import open_tasks, task_settings
from enfold.config import read_config
from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import CallError
from enfold.idempotency.sqlite_results import SQLiteOnceStore
from enfold.mcp.asking import elicitation
from enfold.operation import Progress
from enfold.operation.repeats import EntryKey
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

@ops.mutation
async def plain() -> str:
    with open("effects", "a") as file:
        file.write("x")
    return "plain"
"""


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
    assert main(["tasks", "wait", ids[1]]) == 7  # nobody is there to be asked
    assert main(["tasks", "get", ids[1]]) == 0
    key = next(iter(json.loads(capfd.readouterr().out)["inputRequests"]))
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
        (["call", "app.py", "shop.plain", "--detach"], 2),
        (["call", "app.py", "shop.report", "year=x", "--detach"], 2),
    ],
)
def test_what_cannot_be_is_told(folder: Path, words: list[str], code: int) -> None:
    assert main(words) == code


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


async def test_processes_share_first_results_in_a_file(tmp_path: Path) -> None:
    ran, go_on = 0, asyncio.Event()
    one, two = (SQLiteOnceStore(tmp_path / "results.db", per_identity=2) for _ in range(2))

    async def run() -> ResponseEnvelope[Any]:
        nonlocal ran
        ran += 1
        await go_on.wait()
        return local_envelope(ran, "shop.pay")

    def key(owner: str, name: str) -> EntryKey:
        return EntryKey((owner, None), "shop.pay", name)

    first = asyncio.create_task(one.once(key("ann", "k"), "digest", 30, run))
    while not ran:  # noqa: ASYNC110  # until it runs
        await asyncio.sleep(0.01)
    first.cancel()  # its caller has gone; the call goes on
    with pytest.raises(CallError, match="has not ended yet"):
        await two.once(key("ann", "k"), "digest", 0.1, run)
    with pytest.raises(CallError, match="another input"):
        await two.once(key("ann", "k"), "other", 1, run)
    again = asyncio.create_task(two.once(key("ann", "k"), "digest", 30, run))
    go_on.set()
    assert ((await again).data, ran) == (1, 1)
    assert (await two.once(key("bob", "k"), "digest", 1, run)).data == 2
    await two.once(key("ann", "k2"), "digest", 1, run)
    with pytest.raises(CallError) as full:
        await one.once(key("ann", "k3"), "digest", 1, run)
    assert (full.value.code, ran) == ("RESOURCE_EXHAUSTED", 3)
    assert (await one.once(key("bob", "k"), "digest", 1, run)).data == 2


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


def test_a_bar_shows_how_far_it_is() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    line = ProgressLine(terminal)
    line.hear(Progress(5, 10, "reading"))
    assert terminal.getvalue() == "\r[############............]  50% reading"
    line.clear()
    assert terminal.getvalue().endswith("\r")
