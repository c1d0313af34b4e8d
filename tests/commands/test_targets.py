"""What a command is run on: programs, configurations, documents, servers and peers, each recognised as what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.serving import serve
from tests.sources.openapi.documents import documents

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.commands.shared.targets import read_target
from enfold.errors import install_command
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

ROOT = Path(__file__).parents[2]
LITTLE = str(ROOT / "tests" / "sources" / "mcp" / "little_server.py")

PETS: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "https://pets.example"}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "security": [{"key": []}],
    "paths": {
        "/pets": {"get": {"operationId": "pets", "summary": "All pets.", "responses": {"200": {"description": "OK"}}}},
        "/bad": {"get": {"operationId": "bad", "parameters": "none", "responses": {}}},
    },
}


def enfold(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", *words]
    variables = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60, env=variables)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("app.py", "program"),
        ("app.py:ops", "program"),
        ("package.module:ops", "program"),
        ("enfold.toml", "configuration"),
        ("no.json", "configuration"),
        ("openapi.yaml", "document"),
        ("https://a.example/openapi.json", "document"),
        ("https://a.example/v3/api-docs", "document"),
        ("https://a.example/spec.yml?v=2", "document"),
        ("https://a.example/mcp", "server"),
        ("HTTP://a.example", "server"),
        ("nats://a,nats://b", "peers"),
        ("wss://hub.example/calls", "peers"),
    ],
)
def test_a_target_is_recognised_by_its_text(text: str, kind: str) -> None:
    assert read_target(text).kind == kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (json.dumps(PETS), "document"),
        ("\ufeff" + json.dumps(PETS), "document"),
        ('{"paths": {}, "swagger": "2.0"}', "document"),
        ('{"mcpServers": {}}', "configuration"),
        ('{"mcpServers": {} /* mine */}', "configuration"),
        ('{"mcpServers": {"openapi": {"command": "x"}}}', "configuration"),
        ("[]", "configuration"),
        ("{", "configuration"),
        ("[" * 100_000, "configuration"),
    ],
)
def test_a_json_file_is_recognised_by_what_is_in_it(tmp_path: Path, content: str, kind: str) -> None:
    file = tmp_path / "box.json"
    file.write_text(content, encoding="utf-8")
    assert read_target(str(file)).kind == kind


def test_every_json_document_is_recognized() -> None:
    files = [document.path for document in documents() if document.path.suffix == ".json"]
    assert len(files) > 0
    assert [file.name for file in files if read_target(str(file)).kind != "document"] == []


def test_a_document_is_inspected_with_what_was_left_out_and_what_would_fill_its_schemes(tmp_path: Path) -> None:
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(PETS))
    done = enfold("inspect", str(file))
    assert done.returncode == 0
    assert "pets\tquery\tAll pets." in done.stdout
    assert "1 imported, 1 skipped" in done.stdout
    assert "scheme key (header): set ENFOLD_KEY" in done.stdout
    report = json.loads(enfold("inspect", str(file), "--json").stdout)
    assert [scheme["variable"] for scheme in report["schemes"]] == ["ENFOLD_KEY"]
    assert json.loads(enfold("inspect", str(file), "pets").stdout)["name"] == "pets"
    assert enfold("list", str(file)).stdout == "pets\tquery\tAll pets.\n"
    assert "/functions/pets" in json.loads(enfold("openapi", str(file)).stdout)["paths"]


def test_a_server_is_started_by_the_command_after_two_dashes() -> None:
    assert "add\tmutation\tadd" in enfold("list", "--", sys.executable, LITTLE).stdout.splitlines()
    for words in (
        ("call", "--", sys.executable, LITTLE, "add", "x=1", "y=2"),
        ("call", "add", "x=1", "y=2", "--", sys.executable, LITTLE),
        ("call", "--format", "result", "--", sys.executable, LITTLE, "add", "x=1", "y:=2"),
    ):
        done = enfold(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["result"] == {"sum": 3}
    entry = json.loads(enfold("mcp", "--install-json", "--", "npx", "some-server").stdout)["mcpServers"]["npx"]
    assert entry["args"] == ["-m", "enfold", "mcp", "--", "npx", "some-server"]


def test_a_server_is_reached_by_its_address() -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    with serve(to_mcp(ops)) as client:
        done = enfold("call", f"http://127.0.0.1:{client.port}/mcp", "shop_add", "x=1", "y=2")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_is_shown_the_token_of_the_environment(tmp_path: Path) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    with serve(to_mcp(ops, tokens=Tokens({"a-long-secret": Identity("ann", frozenset())}))) as client:
        words = ("call", f"http://127.0.0.1:{client.port}/mcp", "shop_add", "x=1", "y=2")
        let_in = enfold(*words, ENFOLD_TOKEN="a-long-secret")
        refused = enfold(*words, HOME=str(tmp_path))
        wrong = enfold(*words, ENFOLD_TOKEN="a-wrong-guess")
    with serve(to_http(ops)) as web:
        elsewhere = enfold("list", f"http://127.0.0.1:{web.port}/")
    assert (let_in.returncode, let_in.stderr) == (0, "")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr.endswith("Set ENFOLD_TOKEN to a token that is accepted there\n")
    assert wrong.stderr == f"ACCESS_DENIED: {words[1]} does not accept the token in ENFOLD_TOKEN\n"
    address = f"http://127.0.0.1:{web.port}"
    assert elsewhere.stderr == f"EXECUTION_ERROR: {address}/ is not an MCP server (HTTP 404): try {address}/mcp\n"


EMPTY = "VALIDATION_ERROR: The target is empty: pass a Python file, such as app.py\n"
WRONG = [
    *(
        (f"an empty target of {command}", [command, "", *rest], 2, EMPTY)
        for command, *rest in (
            ("list",),
            ("search", "price"),
            ("inspect",),
            ("openapi",),
            ("doctor",),
            ("serve", "--port", "0"),
            ("mcp", "--install-json"),
        )
    ),
    (
        "tokens that are missing",
        ["doctor", "examples/quickstart.py", "--tokens", "{folder}/no.json"],
        2,
        "VALIDATION_ERROR: Cannot read the tokens from ",
    ),
    (
        "a folder for tasks",
        ["serve", "examples/quickstart.py", "--port", "0", "--tasks", "{folder}"],
        2,
        "VALIDATION_ERROR: Cannot store tasks in ",
    ),
    ("nothing after the dashes", ["list", "--"], 2, "VALIDATION_ERROR: -- needs the command"),
    ("no operation after the dashes", ["call", "--", "npx"], 2, "VALIDATION_ERROR: call needs an operation"),
    (
        "no operation",
        ["call", "examples/quickstart.py"],
        2,
        "VALIDATION_ERROR: call needs an operation, as in: enfold call examples/quickstart.py shop.add\n",
    ),
    ("a server that ends", ["list", "--", "false"], 7, "UNAVAILABLE: false has ended"),
    (
        "a server that is not running",
        ["call", "http://127.0.0.1:9/mcp", "add"],
        7,
        "UNAVAILABLE: 127.0.0.1:9 cannot be reached",
    ),
    (
        "a document that is not served",
        ["list", "http://127.0.0.1:9/openapi.json"],
        7,
        "UNAVAILABLE: http://127.0.0.1:9/",
    ),
    ("peers that are not there", ["call", "nats://127.0.0.1:9", "shop.add"], 7, "UNAVAILABLE: "),
    ("an address of nothing", ["list", "gopher://a"], 2, "VALIDATION_ERROR: 'gopher://a' is not an address"),
    ("an invalid document", ["list", "{folder}/empty.yaml"], 2, "VALIDATION_ERROR: "),
    ("a document that is missing", ["list", "{folder}/no.yaml"], 2, "VALIDATION_ERROR: "),
    ("a document for CGI", ["cgi", "{folder}/empty.yaml"], 2, "VALIDATION_ERROR: cgi needs a Python program"),
    ("sources that are all down", ["list", "{folder}/down.json"], 7, "down is down: "),
    ("a call to a source that is down", ["call", "{folder}/down.json", "down.add"], 7, "down is down: "),
    (
        "sources that give nothing",
        ["list", "{folder}/none.json"],
        3,
        "OPERATION_NOT_FOUND: The target has no operations that you may call",
    ),
]


@pytest.mark.parametrize(("words", "code", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_target_that_cannot_be_used_is_one_sentence(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    (tmp_path / "down.json").write_text('{"mcpServers": {"down": {"command": "false"}}}')
    done = enfold(*(word.format(folder=tmp_path) for word in words))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["list", "pets.yaml"], ["inspect", "pets.yaml"], ["serve", "pets.yaml", "--port", "0"]]
)
def test_a_missing_extra_is_reported_with_what_installs_it(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "pets.yaml").write_text("openapi: 3.1.0\n")
    program = (
        "import sys\nsys.modules['yaml'] = None\nfrom enfold.commands.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (
        7,
        f"UNAVAILABLE: pets.yaml needs yaml: {install_command('openapi')}\n",
    )


NOISY = """
print("noise")
import os
os.write(1, b"noise of the file\\n")
from enfold import OperationRegistry
ops = OperationRegistry("shop")
@ops.query
def one() -> int:
    return 1
"""


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "noisy.toml").write_text('[sources.shop]\nfunctions = "noisy.py"\n')
    return tmp_path


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("openapi noisy.py", ""),
        ("openapi noisy.toml", ""),
        ("list noisy.py", "--json"),
        ("inspect noisy.py", ""),
        ("search noisy.py", "one --json"),
        ("doctor noisy.py", "--json"),
    ],
)
def test_output_printed_while_a_target_is_imported_is_not_part_of_the_result(
    noisy: Path, command: str, rest: str
) -> None:
    name, target = command.split()
    done = enfold(name, str(noisy / target), *rest.split())
    assert json.loads(done.stdout)
    assert "noise\n" in done.stderr
    assert "noise of the file\n" in done.stderr


@pytest.mark.parametrize("target", ["noisy.py", "noisy.toml"])
def test_output_printed_while_a_target_is_imported_is_not_an_mcp_message(noisy: Path, target: str) -> None:
    command = [sys.executable, "-m", "enfold", "mcp", str(noisy / target)]
    ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = subprocess.run(command, input=ping, capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_output_printed_while_a_target_is_imported_is_not_a_cgi_header(noisy: Path) -> None:
    done = enfold("cgi", str(noisy / "noisy.py"), PATH_INFO="/one", REQUEST_METHOD="GET")
    assert done.stdout.startswith("Status: 200 OK\nContent-Type: application/json\n")
