"""A setup that cannot work is refused with a message that says what to do: programs, tokens, credentials, hosts."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.served import Served, serving

APP = """
from enfold import OperationRegistry

ops = OperationRegistry("shop")
empty = OperationRegistry("empty")
number = 5

@ops.query
def add(x: int, y: int) -> int:
    return x + y
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def enfold(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "enfold", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
    )


# --- programs that a configuration names --------------------------------------------------------------------------

NOTHING = {
    "no file": ("nope.py:ops", "There is no file nope.py"),
    "no file, no name": ("nope.py", "There is no file nope.py"),
    "no module": ("no.such.module:ops", "There is no module no.such.module"),
    "no attribute": ("app.py:nope", "there is no nope in"),
    "an empty registry": ("app.py:empty", "app.py:empty has no operations"),
    "no registry": ("app.py:number", "has no operations"),
    "no choice": ("app.py", "has several registries: name one of ops, empty"),
}
COMMANDS = {
    "serve": ["serve", "enfold.toml", "--port", "0"],
    "mcp": ["mcp", "enfold.toml"],
    "list": ["list", "enfold.toml"],
    "call": ["call", "enfold.toml", "shop.add", "x=1", "y=2"],
    "openapi": ["openapi", "enfold.toml"],
}


@pytest.mark.parametrize(("functions", "sentence"), NOTHING.values(), ids=NOTHING)
def test_functions_that_name_nothing_are_an_error(folder: Path, functions: str, sentence: str) -> None:
    (folder / "enfold.toml").write_text(f'[sources.shop]\nfunctions = "{functions}"\n')
    done = enfold(folder, "serve", "enfold.toml", "--port", "0")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("VALIDATION_ERROR: enfold.toml, line 1: ")
    assert sentence in last
    assert "0 operations" not in done.stderr


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_refuses_functions_that_name_nothing_beside_other_sources(folder: Path, words: list[str]) -> None:
    text = '[sources.shop]\nfunctions = "app.py:ops"\n[sources.other]\nfunctions = "nope.py:ops"\n'
    (folder / "enfold.toml").write_text(text)
    done = enfold(folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "VALIDATION_ERROR: enfold.toml, line 3: There is no file nope.py"


# --- tokens -------------------------------------------------------------------------------------------------------

SHAPES = {
    "an object": '{"ann": "secret"}',
    "a list inside": '{"tokens": []}',
    "texts": '["secret"]',
    "no token": '[{"id": "ann"}]',
    "an unknown field": '[{"id": "ann", "token": "sha256:0", "scope": "a"}]',
    "plain text": "secret",
    "nothing": "",
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_a_list_of_tokens_of_the_wrong_shape_says_how_to_make_one(folder: Path, text: str) -> None:
    (folder / "tokens.json").write_text(text)
    told = [enfold(folder, "serve", "app.py:ops", "--port", "0", "--tokens", "tokens.json")]
    if text:
        told.append(enfold(folder, "serve", "app.py:ops", "--port", "0", ENFOLD_TOKENS=text))
    for done, where in zip(told, ("tokens.json", "ENFOLD_TOKENS"), strict=False):
        assert done.returncode == 2
        assert done.stderr.startswith(f"VALIDATION_ERROR: {where}: ")
        assert "`enfold token new --id ann --file tokens.json`" in done.stderr
        assert '[{"id": "ann", "token": "sha256:…", "scopes": []}]' in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "secret" not in done.stderr


def ask(served: Served, path: str = "/functions/shop.add?x=1&y=2", **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection(served.base.removeprefix("http://"), timeout=60)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    found = reply.status, reply.read().decode(), reply.headers.get("www-authenticate", "")
    connection.close()
    return found


def test_basic_authentication_is_answered_with_what_to_send(folder: Path) -> None:
    basic = base64.b64encode(b"ann:secret").decode()
    with serving("app.py:ops", "--token", "secret", cwd=folder) as served:
        answers = {scheme: ask(served, Authorization=scheme) for scheme in (f"Basic {basic}", "secret", "Bearer")}
        wrong = ask(served, Authorization="Bearer wrong")
        mcp = ask(served, "/mcp", Authorization=f"Basic {basic}")
        right = ask(served, Authorization="Bearer secret")
    assert [status for status, _, _ in (*answers.values(), wrong, mcp)] == [401] * 5
    sentence = "Basic authentication is not supported. Send Authorization: Bearer TOKEN."
    assert json.loads(answers[f"Basic {basic}"][1]) == {"error": sentence}
    assert sentence in mcp[1]
    for scheme in ("secret", "Bearer"):
        assert json.loads(answers[scheme][1]) == {"error": "No bearer token. Send Authorization: Bearer TOKEN."}
    assert json.loads(wrong[1]) == {"error": "The token is not valid"}
    assert all(challenge.startswith("Bearer ") for _, _, challenge in answers.values())
    assert (right[0], json.loads(right[1])) == (200, {"result": 3})


# --- hosts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/functions/shop.add?x=1&y=2", "/mcp", "/"])
def test_a_refused_host_is_answered_with_the_option_that_allows_it(folder: Path, path: str) -> None:
    with serving("app.py:ops", cwd=folder) as served:
        status, text, _ = ask(served, path, Host="shop.example:8000")
        strange = ask(served, path, Host="<b>\xff")[1]
    assert status == 403
    assert "Host 'shop.example' is not allowed. Add it with --allow-host shop.example." in text
    assert "is not allowed. Add it with --allow-host." in strange
    with serving("app.py:ops", "--allow-host", "shop.example", cwd=folder) as served:
        assert ask(served, "/functions/shop.add?x=1&y=2", Host="shop.example:8000")[0] == 200


def test_a_refused_origin_is_answered_with_the_option_that_allows_it(folder: Path) -> None:
    with serving("app.py:ops", cwd=folder) as served:
        status, text, _ = ask(served, Origin="https://shop.example")
    assert status == 403
    assert "Origin 'https://shop.example' is not allowed. Add it with --allow-origin." in text
