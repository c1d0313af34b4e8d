"""Callers never see secrets of a source, wherever its server repeats them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TELLTALE = Path(__file__).with_name("telltale_server.py")
FIXED = "fixed/s3cret+of=ann"
DIGITS = "8675309123"
SECRETS = {
    "fix": FIXED,
    "digits": DIGITS,
    "variable": "env-t0ken-1234567890",
    "word": "key-on-the-command-line",
    "url": "pa55word-of-the-database",
    "reference": "held-by-a-variable",
}
CONFIG = f"""
[sources.telltale]
command = {json.dumps([sys.executable, str(TELLTALE), "--api-key", SECRETS["word"], "${MY_SECRET}"])}
env = {{ SERVICE_TOKEN = "{SECRETS["variable"]}", DATABASE_URL = "postgres://ann:{SECRETS["url"]}@db/x" }}
fix = {{ token = "{FIXED}", pin_code = "{DIGITS}" }}
"""


class Client:
    """An MCP client that speaks to `enfold mcp` in lines, answers what it is asked, and keeps all it has read."""

    def __init__(self, config: Path, stderr: Path) -> None:
        command = [sys.executable, "-m", "enfold", "mcp", str(config)]
        self._log = stderr.open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "MY_SECRET": SECRETS["reference"]},
        )
        self.read: list[Any] = []
        self._id = 0
        capabilities: dict[str, Any] = {"elicitation": {}, "sampling": {}}
        info = {"name": "test", "version": "1"}
        self.request("initialize", protocolVersion="2025-06-18", capabilities=capabilities, clientInfo=info)
        self._write({"method": "notifications/initialized"})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def request(self, method: str, **params: Any) -> Any:
        assert self._process.stdout is not None
        self._id += 1
        self._write({"id": self._id, "method": method, "params": params})
        for line in self._process.stdout:
            self.read.append(line)
            message = json.loads(line)
            if message.get("id") == self._id and "method" not in message:
                return message
            if message.get("method") == "elicitation/create":
                self._write({"id": message["id"], "result": {"action": "accept", "content": {"ok": True}}})
            elif message.get("method") == "sampling/createMessage":
                said = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}
                self._write({"id": message["id"], "result": said})
        raise AssertionError(f"{method} was not answered")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.stdout.close()
            self._log.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    (tmp_path / "enfold.toml").write_text(CONFIG)
    made = Client(tmp_path / "enfold.toml", tmp_path / "stderr")
    try:
        yield made
    finally:
        made.close()


def test_nothing_that_reaches_a_client_or_the_log_has_a_secret(client: Client, tmp_path: Path) -> None:
    told = {
        "tools": client.request("tools/list"),
        "resources": client.request("resources/list"),
        "resource": client.request("resources/read", uri="note://one"),
        "prompts": client.request("prompts/list"),
        "prompt": client.request("prompts/get", name="telltale_hello", arguments={}),
        "result": client.request(
            "tools/call", name="telltale_tell", arguments={"text": "mine"}, _meta={"progressToken": 1}
        ),
        "failure": client.request("tools/call", name="telltale_fail", arguments={"text": "mine"}),
    }
    client.request("tools/call", name="telltale_die", arguments={})
    client.close()
    for name, answer in told.items():
        assert "[hidden]" in json.dumps(answer), name
    asked = {message["method"]: message for line in client.read if "method" in (message := json.loads(line))}
    for method in ("notifications/message", "notifications/progress", "elicitation/create", "sampling/createMessage"):
        assert "[hidden]" in json.dumps(asked[method]), method
    for text in ("".join(client.read), (tmp_path / "stderr").read_text()):
        assert leaks(text) == []
    assert "stderr" in (tmp_path / "stderr").read_text()
    assert "mine" in json.dumps(told["result"])  # what the caller sent is not a secret of the source
    structured = told["result"]["result"]["structuredContent"]
    assert structured["numbers"] == [int("9" * len(DIGITS))]
    assert b"and more" in b64decode(structured["base64"][0])  # it is base64 still


def leaks(text: str) -> list[str]:
    """The secrets in a text, also where they stand in base64 or with escapes."""
    plain = text.replace("\\", "").replace("%2F", "/").replace("%2B", "+").replace("%3D", "=")
    encoded = [
        b64encode(b"x" * pad + secret.encode())[4:-4].decode() for secret in SECRETS.values() for pad in (0, 1, 2)
    ]
    return [each for each in (*SECRETS.values(), *encoded) if each in plain]


def test_a_secret_that_is_too_short_to_be_hidden_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "enfold.toml").write_text(CONFIG.replace(FIXED, "sh0rt"))
    client = Client(tmp_path / "enfold.toml", tmp_path / "stderr")
    client.close()
    said = (tmp_path / "stderr").read_text()
    assert "telltale: the secret fix.token has fewer than 8 characters" in said
    assert "sh0rt" not in said
