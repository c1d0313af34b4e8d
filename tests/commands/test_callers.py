"""Options of the commands for authentication, the caller's identity and recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from enfold import CallError, Identity
from enfold.auth.token_file import add_token
from enfold.auth.tokens import AnyOf, Tokens
from enfold.commands.shared.callers import LOCAL, current_rights


def enfold(*words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command with these variables, and what it reads."""
    command = [sys.executable, "-m", "enfold", *words]
    environ = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, input=stdin, timeout=60, env=environ)


APP = """
from enfold import Context, OperationRegistry

ops = OperationRegistry("shop")

@ops.query
def price() -> int:
    return 3

@ops.query(access={"public": True})
def hours() -> str:
    return "9 to 5"

@ops.mutation(access={"required_scopes": ["write"]})
def order(context: Context) -> str:
    return context.identity.id
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text(APP)
    return str(tmp_path / "app.py")


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "tokens.json"
    made = {name: add_token(path, name, scopes=scopes) for name, scopes in [("ann", ["write"]), ("bob", [])]}
    return {**made, "old": add_token(path, "old", seconds=-10), "file": str(path)}


# --- the shell and stdio ------------------------------------------------------------------------------------------


def test_the_shell_runs_as_local_who_may_do_everything(app: str) -> None:
    assert json.loads(enfold("call", app, "order").stdout) == {"result": "local"}
    assert len(enfold("list", app).stdout.splitlines()) == 3


def test_with_tokens_the_caller_of_the_shell_is_who_the_token_stands_for(app: str, tokens: dict[str, str]) -> None:
    words = ("--tokens", tokens["file"])
    assert json.loads(enfold("call", app, "order", *words, ENFOLD_TOKEN=tokens["ann"]).stdout) == {"result": "ann"}
    hidden, missing = (enfold("call", app, name, *words, ENFOLD_TOKEN=tokens["bob"]) for name in ("order", "nothing"))
    assert (hidden.returncode, hidden.stderr.replace("order", "nothing")) == (3, missing.stderr)
    assert enfold("list", app, *words, ENFOLD_TOKEN=tokens["bob"]).stdout.count("shop.") == 2
    for wrong in ("", "guessed", tokens["old"]):
        refused = enfold("call", app, "price", *words, ENFOLD_TOKEN=wrong)
        assert (refused.returncode, refused.stdout) == (4, "")


def over_stdio(*words: str, **variables: str) -> list[Any]:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    asked = [("tools/list", {}), ("tools/call", {"name": "shop_order"})]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}})
        for number, (method, params) in enumerate(asked)
    ]
    done = enfold("mcp", *words, stdin="\n".join(lines) + "\n", **variables)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_stdio_runs_as_local_or_as_who_the_token_stands_for(app: str, tokens: dict[str, str]) -> None:
    listed, called = over_stdio(app)
    assert (len(listed["result"]["tools"]), called["result"]["structuredContent"]) == (3, {"result": "local"})
    listed, called = over_stdio(app, "--tokens", tokens["file"], ENFOLD_TOKEN=tokens["bob"])
    assert (len(listed["result"]["tools"]), called["error"]["code"]) == (2, -32602)


# --- serve --------------------------------------------------------------------------------------------------------


@contextmanager
def served(*words: str) -> Iterator[tuple[str, str]]:
    """The address of a server, and what it said at its start."""
    command = [sys.executable, "-m", "enfold", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            said = [server.stderr.readline()]
            while "Ctrl-C" not in said[-1] and said[-1]:
                said.append(server.stderr.readline())
            yield (
                next(line for line in said if "calls" in line).split()[1].removesuffix("/functions/{id}"),
                "".join(said),
            )
        finally:
            server.kill()


def status(url: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=30) as reply:  # noqa: S310  # our own server
            return int(reply.status)
    except HTTPError as error:
        return error.code


def test_serve_prints_who_may_call_and_what_is_open(app: str, tokens: dict[str, str]) -> None:
    with served(app, "--tokens", tokens["file"]) as (base, said):
        assert [status(f"{base}/functions/{name}") for name in ("hours", "price")] == [200, 401]
    assert "2 identities" in said
    assert "open      shop.hours\n" in said
    with served(app) as (_, said):
        assert "open      shop.price, shop.hours\n" in said
        assert "blocked   shop.order: access rules apply" in said


def test_serve_accepts_callers_of_an_issuer(app: str, tmp_path: Path) -> None:
    issuer = little_issuer(tmp_path)
    (tmp_path / "enfold.toml").write_text(
        f'[auth]\nissuer = "{ISSUER}"\naudiences = ["shop"]\njwks = "keys.json"\n\n[sources.shop]\nfunctions = "app.py"\n'
    )
    with served(str(tmp_path / "enfold.toml")) as (base, said):
        price = f"{base}/functions/shop.price"
        answers = [status(price, token) for token in ("", "wrong", issuer("shop"), issuer("other"))]
        assert answers == [401, 401, 200, 401]
        with urlopen(f"{base}/.well-known/oauth-protected-resource", timeout=30) as reply:  # noqa: S310  # our own
            assert json.load(reply)["authorization_servers"] == [ISSUER]
    assert f"tokens of {ISSUER}" in said


def test_serve_takes_an_issuer_by_its_options(app: str) -> None:
    with served(app, "--issuer", "http://127.0.0.1:9/realm", "--audience", "shop") as (base, said):
        assert status(f"{base}/functions/shop.price") == 401
    assert "tokens of http://127.0.0.1:9/realm" in said
    refused = enfold("serve", app, "--issuer", "http://127.0.0.1:9/realm")
    assert (refused.returncode, "audiences" in refused.stderr) == (2, True)


ISSUER = "https://login.example.com/realm"


def little_issuer(folder: Path) -> Any:
    """An issuer whose keys are in `keys.json`; the answer makes tokens for an audience."""
    import time

    from joserfc import jwt
    from joserfc.jwk import ECKey

    key = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
    (folder / "keys.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))

    def make(audience: str, seconds: float = 600) -> str:
        claims = {"iss": ISSUER, "aud": audience, "sub": "ann", "exp": int(time.time() + seconds), "scope": "write"}
        return jwt.encode({"alg": "ES256", "kid": "one"}, claims, key)

    return make


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[auth]\nissuer = 'https://x.example'", "audiences"),
        ("auth = 3", "a list of issuers"),
        ("auth = 'x'", '"auth" must be a table, or a list of tables'),
        ("[auth]\nissuer = 'http://x.example'\naudiences = ['a']", "https URL"),
        ("[auth]\nisuer = 'https://x.example'", "auth"),
        ("record = 'some'", '"record" must be mutations or all'),
    ],
)
def test_a_wrong_auth_table_is_reported_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "enfold.toml").write_text(text)
    refused = enfold("serve", str(tmp_path / "enfold.toml"))
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert "enfold.toml, line 1" in refused.stderr
    assert "Traceback" not in refused.stderr


# --- doctor -------------------------------------------------------------------------------------------------------


def test_doctor_says_what_a_token_is_and_which_check_refuses_it(tmp_path: Path, tokens: dict[str, str]) -> None:
    make = little_issuer(tmp_path)
    (tmp_path / "enfold.toml").write_text(
        f'[auth]\nissuer = "{ISSUER}"\naudiences = ["shop"]\njwks = "keys.json"\n[sources]\n'
    )
    said = {
        name: enfold("doctor", str(tmp_path / "enfold.toml"), "--token", "-", stdin=token)
        for name, token in {"good": make("shop"), "other": make("other"), "late": make("shop", -600)}.items()
    }
    assert (said["good"].returncode, "accepted: ann write" in said["good"].stdout) == (0, True)
    assert (said["other"].returncode, "check 'audience'" in said["other"].stdout) == (4, True)
    assert "check 'expired'" in said["late"].stdout
    assert make("shop").split(".")[2] not in said["good"].stdout
    listed = [
        enfold("doctor", "--token", "-", "--tokens", tokens["file"], stdin=tokens[name]) for name in ("ann", "old")
    ]
    assert "accepted: ann write" in listed[0].stdout
    assert "the token of old expired" in listed[1].stdout
    assert enfold("doctor", "--token", "-", "--tokens", tokens["file"], stdin="guess").returncode == 4
    assert enfold("doctor", "--token", "secret").returncode == 2
    assert "nothing to check it against" in enfold("doctor", "--token", "-", stdin="\x1b[2J.e30.x").stdout


# --- records ------------------------------------------------------------------------------------------------------


def test_the_shell_prints_the_run_id_on_stderr(app: str, tmp_path: Path) -> None:
    done = enfold("call", app, "price", "--provenance", "full", "--store", str(tmp_path / "s.db"))
    assert json.loads(done.stdout) == {"result": 3}
    assert done.stderr.startswith("recorded as run ")


def test_serve_records_mutations_by_default(app: str, tmp_path: Path) -> None:
    (tmp_path / "enfold.toml").write_text('record = "mutations"\n\n[sources.shop]\nfunctions = "app.py"\n')
    for words in ((app, "--record", "mutations"), (str(tmp_path / "enfold.toml"),)):
        with served(*words, "--token", "mine") as (base, _):
            sent = Request(  # noqa: S310  # our own server
                f"{base}/functions/shop.order",
                b"{}",
                {"Authorization": "Bearer mine", "Content-Type": "application/json"},
            )
            with urlopen(sent, timeout=30) as reply:  # noqa: S310  # our own server
                assert reply.headers["Enfold-Run-Id"]
            with urlopen(f"{base}/functions/shop.hours", timeout=30) as reply:  # noqa: S310  # our own server
                assert reply.headers["Enfold-Run-Id"] is None


def test_stdio_records_by_default(app: str) -> None:
    _, called = over_stdio(app, "--record", "all")
    assert called["result"]["_meta"]["enfold/runId"]


def test_a_task_of_the_shell_needs_no_token_and_no_other_caller_is_taken_for_the_shell() -> None:
    known = current_rights(AnyOf([Tokens({"secret": Identity("ann", frozenset({"read"}))})]))
    assert known is not None
    assert known(LOCAL) is None  # it keeps what it had
    assert known(Identity("ann", frozenset({"*"}))) == Identity("ann", frozenset({"read"}))
    for unknown in (Identity("local"), Identity("bob", frozenset({"*"}))):
        with pytest.raises(CallError, match="no longer has a token"):
            known(unknown)
    assert current_rights(None) is None
