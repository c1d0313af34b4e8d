"""Completion in real shells: commands, options, operations and arguments of a target, and files where those belong."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import not_run

from enfold.commands.completion import SCRIPTS

APP = """
from typing import Literal, TypedDict
from enfold import OperationRegistry
ops = OperationRegistry("shop")
print("a program may say something when it is loaded")

@ops.query
def price(item: str, currency: Literal["euro", "pound"] | None = None, net: bool = False) -> int:
    \"\"\"What it costs.\"\"\"
    return 1

@ops.query
def prices() -> None: ...

class Place(TypedDict):
    town: str
    near: Literal["sea", "lake"]

@ops.query
def move(place: Place) -> None: ...
"""
HERE = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def candidates(folder: Path, *words: str) -> list[str]:
    command = [sys.executable, "-m", "enfold", "completion", "--for", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


def test_candidates_at_the_end_of_a_line(folder: Path) -> None:
    assert candidates(folder, "ca") == ["call"]
    assert candidates(folder, "call", "") == [":files"]
    assert candidates(folder, "call", "app.py", "shop.pr") == ["shop.price", "shop.prices"]
    assert candidates(folder, "call", "app.py", "price", "item=tea", "") == ["currency=", "net="]
    assert candidates(folder, "call", "app.py", "price", "currency=") == ["currency=euro", "currency=pound"]
    assert candidates(folder, "call", "app.py", "price", "net=t") == ["net=true"]
    assert candidates(folder, "call", "app.py", "price", "--format", "env") == ["envelope"]
    assert candidates(folder, "call", "app.py", "price", "--cu") == ["--currency"]
    assert candidates(folder, "call", "app.py", "price", "--item", "tea", "--i") == ["--idempotency-key"]
    assert candidates(folder, "call", "app.py", "price", "--currency", "p") == ["pound"]
    assert candidates(folder, "call", "app.py", "price", "--currency=") == ["--currency=euro", "--currency=pound"]
    assert candidates(folder, "call", "app.py", "move", "pl") == ["place="]
    assert candidates(folder, "call", "app.py", "move", "place") == ["place=", "place.town=", "place.near="]
    assert candidates(folder, "call", "app.py", "move", "place.near") == ["place.near="]
    assert candidates(folder, "call", "app.py", "move", "--place.t") == ["--place.town"]
    assert candidates(folder, "call", "app.py", "move", "place.near=") == ["place.near=sea", "place.near=lake"]
    assert "--tokens" in candidates(folder, "serve", "--t")
    assert candidates(folder, "call", "nothing.py", "") == []
    assert candidates(folder, "call", "", "shop.pr") == []
    assert candidates(folder, "nonsense", "") == []


ODD = """
from enfold import OperationRegistry, OperationSpec
ops = OperationRegistry()
schema = {"properties": {"a": {"enum": 5}, "b": {"anyOf": 5}, "c": {"enum": ["x"]}}}
ops.register_spec(OperationSpec(name="odd", input_schema=schema))
ops.register_handler("odd", lambda input, context: 1)
"""


def test_odd_values_of_a_schema_are_no_candidates(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    assert candidates(tmp_path, "call", "odd.py", "odd", "a=") == []
    assert candidates(tmp_path, "call", "odd.py", "odd", "b=") == []
    assert candidates(tmp_path, "call", "odd.py", "odd", "c=") == ["c=x"]


def found(shell: str) -> str:
    return shutil.which(shell) or not_run(shell)


def test_bash_completes(folder: Path) -> None:
    script = """
    source <(enfold completion bash)
    try() { COMP_LINE="$1"; COMP_POINT=${#1}; _enfold; echo "${COMPREPLY[*]}"; }
    try "enfold cal"; try "enfold call ap"; try "enfold call app.py shop.pr"; try "enfold call app.py price currency=p"
    """
    done = subprocess.run(
        [found("bash"), "-c", script], capture_output=True, text=True, check=True, cwd=folder, env=HERE
    )
    assert done.stdout.splitlines() == ["call", "app.py", "shop.price shop.prices", "pound"]


def test_fish_completes(folder: Path) -> None:
    script = """
    enfold completion fish | source
    for line in "enfold cal" "enfold call ap" "enfold call app.py shop.pr" "enfold call app.py price currency=p"
        complete -C $line
    end
    """
    done = subprocess.run(
        [found("fish"), "-c", script], capture_output=True, text=True, check=True, cwd=folder, env=HERE
    )
    told = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert told == ["call", "app.py", "shop.price", "shop.prices", "currency=pound"]


def test_zsh_completes(folder: Path) -> None:
    """A real zsh in a terminal of its own, where the tab key is pressed."""
    (folder / ".zshrc").write_text(
        "PS1='READY> '\nautoload -U compinit; compinit -u -D\nsource <(enfold completion zsh)\n"
    )
    zsh = found("zsh")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(zsh, ["zsh", "-i"], {**HERE, "ZDOTDIR": str(folder), "TERM": "dumb"})  # noqa: S606
    try:
        read_until(terminal, "READY> ")
        for typed, wanted in (("enfold cal\t", "call "), ("app.py shop.pr\t", "shop.price"), ("\t", "What it costs")):
            os.write(terminal, typed.encode())
            read_until(terminal, wanted)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def read_until(terminal: int, wanted: str) -> None:
    seen = ""
    while wanted not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x08", "", seen):
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, f"{wanted!r} did not come: {seen!r}"
        seen += os.read(terminal, 4096).decode(errors="replace")


# --- what an upstream says ----------------------------------------------------------------------------------------

HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    ";touch pwned",
    "|touch pwned",
    "&touch pwned",
    "<(touch pwned)",
    " b",
    "*",
    "{a,b}",
    "'it's'",
    '"quoted"',
    "\\",
    "!!",
    "#x",
    "$HOME",
    "(touch pwned)",
    ">pwned",
    "%s",
    "[a-z]",
    "=b:c",
]
ODD_NAME = "n$(touch pwned)"


@pytest.fixture
def hostile(folder: Path) -> Path:
    """A folder with the document of an upstream whose values are commands, and an `enfold` that keeps what it is called with."""
    lists = {f"p{number}": [f"v{each}"] for number, each in enumerate(HOSTILE)} | {ODD_NAME: ["x"]}
    parameters = [
        {"name": name, "in": "query", "schema": {"enum": values}, "description": "$(touch pwned) `touch pwned`"}
        for name, values in lists.items()
    ]
    operation = {"operationId": "op", "summary": "$(touch pwned)", "parameters": parameters}
    (folder / "api.json").write_text(
        json.dumps(
            {
                "openapi": "3.1.0",
                "info": {"title": "a", "version": "1"},
                "servers": [{"url": "http://127.0.0.1:9"}],
                "paths": {"/x": {"get": {**operation, "responses": {"200": {"description": "ok"}}}}},
            }
        )
    )
    program = folder / "bin" / "enfold"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = completion ]; then exec {sys.executable} -m enfold "$@"; fi\n'
        "for last; do :; done; printf '%s' \"$last\" > got.new; mv got.new got\n"
    )
    program.chmod(0o755)
    return folder


def start_shell(folder: Path, shell: str) -> tuple[int, int]:
    """A real shell in a terminal of its own, with our completion loaded; its process and its terminal."""
    (folder / ".zshrc").write_text("PS1='READY> '\nautoload -U compinit; compinit -u -D\nsource ./script\n")
    (folder / "rc").write_text("PS1='READY> '\nsource ./script\n")
    (folder / "script").write_text(SCRIPTS[shell])
    fish = "function fish_prompt; echo -n 'READY> '; end; function fish_greeting; end; source ./script"
    words = {
        "bash": ["bash", "--noprofile", "--rcfile", "rc", "-i"],
        "zsh": ["zsh", "-i"],
        "fish": ["fish", "--no-config", "-i", "-C", fish],
    }[shell]
    path, home = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", str(folder)
    program = found(shell)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(program, words, {**HERE, "PATH": path, "ZDOTDIR": home, "HOME": home, "TERM": "dumb"})  # noqa: S606
    return pid, terminal


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_runs_nothing_that_an_upstream_says(hostile: Path, shell: str) -> None:
    """The tab key is pressed and the line is run: the argument is what the upstream listed, and nothing else happens."""
    pid, terminal = start_shell(hostile, shell)
    try:
        read_until(terminal, "READY> ")
        for typed, wanted in [(f"p{number}=v", f"p{number}=v{each}") for number, each in enumerate(HOSTILE)]:
            assert run_completed(hostile, terminal, f"enfold call api.json op {typed}\t\r") == wanted
        assert run_completed(hostile, terminal, "enfold call api.json op n\t\r") == f"{ODD_NAME}="
        (hostile / "w$(touch pwned);touch pwned.py").touch()
        assert run_completed(hostile, terminal, "enfold call w\t\r") == "w$(touch pwned);touch pwned.py"
        assert not (hostile / "pwned").exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)


def run_completed(folder: Path, terminal: int, typed: str) -> str:
    """Type a line, and give the last word of what it called."""
    os.write(terminal, typed.encode())
    seen = ""
    for _ in range(600):
        ready, _, _ = select.select([terminal], [], [], 0.1)
        seen += os.read(terminal, 4096).decode(errors="replace") if ready else ""
        if (folder / "got").exists():
            word = (folder / "got").read_text()
            (folder / "got").unlink()
            return word
    raise AssertionError(f"{typed!r} was not run: {seen!r}")
