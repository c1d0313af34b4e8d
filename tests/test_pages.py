"""Every block of code on a page is run, or checked as far as it can be, or says in a comment above it why not.

| block | what is done with it |
|---|---|
| between `<!-- example: … -->` and the like | made from code that `test_documentation` runs |
| `console`, and files with a title | typed by `test_tutorial`; those about mounting and moving by `test_documentation` |
| `toml` | read as a configuration by `test_config_keys` |
| `python` | run here, after the prelude of its page |
| `json` | read here |
| `sh` | every command and option of `enfold` is looked for here |
| anything below `<!-- not run: why -->` | nothing; `python` is still compiled |
"""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from enfold.app.syntax import plain_json
from enfold.commands.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "DESCRIPTION.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = re.compile(r"<!-- (?:example|file|output|picture|steps|reference|figures): \S+ -->\n.*?<!-- end -->", re.DOTALL)
FENCED = re.compile(r"^(?P<why><!-- not run: [^\n]+ -->\n\n?)?```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)  # fmt: skip
TYPED = {"README.md", "DESCRIPTION.md", "docs/tutorial.md", "docs/howto/secure.md", "docs/howto/why-failed.md"}
FILES = {"docs/howto/mount.md", "docs/howto/move.md"}

# What a fragment takes for granted, by its page.
PRELUDE = """
import os, sys, uvicorn
from enfold import CallError, Context, Identity, OperationRegistry
from enfold.app.reconciler import open_config
from enfold.auth.tokens import Tokens
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
ops = registry = OperationRegistry("shop")
app = to_http(ops)
tokens = Tokens({"secret": Identity("ann")})
command = [sys.executable, "server.py"]
async def list_tasks() -> list[str]: return []
"""


class Block(NamedTuple):
    page: str
    kind: str
    text: str
    is_run: bool


def blocks() -> list[Block]:
    found: list[Block] = []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        fenced = FENCED.finditer(MADE.sub("", path.read_text(encoding="utf-8")))
        found += [Block(page, block["kind"], block["text"], block["why"] is None) for block in fenced]
    return found


def of_kind(*kinds: str, is_run: bool = True) -> Any:
    chosen = [each for each in blocks() if each.kind in kinds and (each.is_run or not is_run)]
    return [pytest.param(each, id=f"{each.page}-{number}") for number, each in enumerate(chosen)]


def is_covered(block: Block) -> bool:
    if block.kind == "console":
        return block.page in TYPED
    if "title=" in block.kind:
        return block.page in TYPED | FILES
    return block.kind in ("toml", "python", "json") or (block.kind == "sh" and "enfold " in block.text)


def test_a_block_is_run_or_says_why_not() -> None:
    assert [block for block in blocks() if block.is_run and not is_covered(block)] == []
    assert len(blocks()) > 80


@pytest.mark.parametrize("block", of_kind("python", is_run=False))
def test_python_on_a_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile(block.text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not block.is_run:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PETSTORE_KEY", "x")
    monkeypatch.setenv("PETSTORE_SECRET", "x")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    (tmp_path / "petstore.yaml").write_text("{openapi: 3.1.0, info: {title: Pets, version: '1'}, paths: {}}")
    names: dict[str, Any] = {}
    exec(PRELUDE, names)  # noqa: S102  # our own page
    done = eval(program, names)  # noqa: S307  # a program that awaits is given as a coroutine
    if inspect.iscoroutine(done):
        asyncio.run(done)


@pytest.mark.parametrize("block", of_kind("json"))
def test_json_on_a_page_can_be_read(block: Block) -> None:
    msgspec.json.decode(plain_json(block.text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_on_a_page_is_there(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text(encoding="utf-8")
    fenced = [
        line for block in FENCED.finditer(text) if block["kind"] in ("sh", "console") for line in lines(block["text"])
    ]
    inline = re.findall(r"`(enfold [^`]+)`", FENCED.sub("", text))
    wrong = [part for line in [*fenced, *inline] for part in commands(line) if unknown(part, capsys)]
    assert wrong == []


def lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def commands(line: str) -> list[str]:
    """The calls of `enfold` in a line of a shell, without comments and redirections."""
    return [found[0] for found in re.finditer(r"\benfold [a-z]+(?: [^|;&<>()#`]+)?", line)]


def unknown(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The options of a command that it does not know."""
    _, name, *words = command.partition(" -- ")[0].split()
    if name not in COMMANDS:
        return [name]
    sub = [word for word in words[:1] if word.isalpha() and name in ("token", "tasks", "prov", "nats")]
    known = help_of(name, capsys) + help_of(" ".join([name, *sub]), capsys)
    return [word for word in words if word.startswith("--") and word.partition("=")[0].strip("…,") not in known]


HELP: dict[str, str] = {}


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    if command not in HELP:
        main([*command.split(), "--help"])
        HELP[command] = capsys.readouterr().out
    return HELP[command]
