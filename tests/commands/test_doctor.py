"""`enfold doctor TARGET`: what is wrong with a target, for people and for a build."""

import json
from pathlib import Path

import pytest
from tests.calls.networks import Server, nats_server_program

from enfold.commands.doctor import broker
from enfold.commands.main import main

APP = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
def price(item: str) -> int: return 1
"""
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "http://127.0.0.1:9"}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "security": [{"key": []}],
    "paths": {
        "/pets": {"get": {"operationId": "pets", "responses": {"200": {"description": "OK"}}}},
        "/broken": {"get": {"operationId": "broken", "parameters": [{"$ref": "#/nowhere"}], "responses": {}}},
    },
}
CONFIGURATION = """
[sources.shop]
functions = "app.py"
[sources.pets]
openapi = "pets.json"
[sources.dead]
command = "no-such-server-anywhere"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "pets.json").write_text(json.dumps(DOCUMENT))
    (tmp_path / "enfold.toml").write_text(CONFIGURATION)
    return tmp_path


def test_a_healthy_program_ends_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(folder / "app.py")]) == 0
    out = capsys.readouterr().out
    assert "functions, up, 1 operation" in out
    assert out.endswith("0 errors, 0 warnings\n")


def test_sources_that_are_down_skipped_or_lack_a_credential_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(folder / "enfold.toml"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    found = {(each["level"], each["where"]): each["what"] for each in reversed(told["findings"])}
    assert found["note", "shop"] == "functions, up, 1 operation"
    assert "no-such-server-anywhere" in found["error", "dead"]
    warnings = [each["what"] for each in told["findings"] if (each["level"], each["where"]) == ("warning", "pets")]
    assert warnings[0] == "no credentials: set ENFOLD_PETS_KEY"
    assert any(each.startswith("skipped ") for each in warnings[1:])


async def test_a_broker_is_asked_what_it_is(tmp_path: Path) -> None:
    server = Server(nats_server_program(), tmp_path, f'jetstream {{ store_dir: "{tmp_path}" }}\n')
    try:
        server.wait_until_ready()
        found = [each async for each in broker(server.url)]
    finally:
        server.close()
    assert [each.level for each in found] == ["note"]
    assert "sync_interval" in found[0].what
