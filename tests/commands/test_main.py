import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import pytest

from enfold.commands.main import main

ROOT = Path(__file__).parents[2]
SHOP = str(ROOT / "examples" / "shop" / "app.py")


def enfold(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "enfold", *words], capture_output=True, text=True, check=False, cwd=cwd, timeout=60
    )


def test_list_inspect_and_openapi_show_the_operations() -> None:
    assert "shop.price\tquery\tCalculate the price of a number of items." in enfold("list", SHOP).stdout.splitlines()
    assert {spec["name"] for spec in json.loads(enfold("list", SHOP, "--json").stdout)} >= {"add", "order", "events"}
    assert json.loads(enfold("inspect", SHOP, "order").stdout)["access_control"]["required_scopes"] == ["shop:order"]
    assert "/functions/shop.order" in json.loads(enfold("openapi", SHOP).stdout)["paths"]


def test_the_command_says_what_it_can_do_and_what_is_installed() -> None:
    assert "usage: enfold COMMAND TARGET" in enfold("--help").stdout
    assert enfold("--version").stdout.startswith("enfold ")
    assert "uvicorn" in enfold("doctor").stdout


WRONG = [
    ("no command", [], 2, ""),
    ("an unknown command", ["sing"], 2, "VALIDATION_ERROR: Unknown command 'sing'"),
    ("a command nearly right", ["lits"], 2, "VALIDATION_ERROR: Unknown command 'lits': did you mean list?"),
    ("an operation nearly right", ["inspect", SHOP, "ordr"], 3, "OPERATION_NOT_FOUND: Operation not found: ordr. Did"),
    ("no target", ["call"], 2, "VALIDATION_ERROR: call needs a target"),
    ("a missing file", ["list", "nothing.py"], 2, "VALIDATION_ERROR: There is no file nothing.py"),
    ("a missing module", ["list", "no_such_module"], 2, "VALIDATION_ERROR: There is no module no_such_module"),
    (
        "no target before an operation",
        ["call", "shop.add", "x=1"],
        2,
        "VALIDATION_ERROR: There is no module shop.add: the target comes first",
    ),
    (
        "an identity that the client names",
        ["cgi", SHOP, "--identity-variable=HTTP_X_USER"],
        2,
        "VALIDATION_ERROR: HTTP_X_USER is set by the client",
    ),
    ("no such registry", ["list", f"{SHOP}:nothing"], 2, "VALIDATION_ERROR:"),
    (
        "an unknown option",
        ["list", SHOP, "--loud"],
        2,
        "VALIDATION_ERROR: enfold list does not accept --loud: see enfold list",
    ),
    (
        "an option nearly right",
        ["serve", SHOP, "--prot=1"],
        2,
        "VALIDATION_ERROR: enfold serve does not accept --prot: did",
    ),
    (
        "a word too many",
        ["list", SHOP, "shop"],
        2,
        "VALIDATION_ERROR: enfold list does not accept shop: see enfold list --help",
    ),
    ("beyond loopback without tokens", ["serve", SHOP, "--host", "0.0.0.0"], 2, "VALIDATION_ERROR: Serving on 0.0.0.0"),
    (
        "beyond loopback with a list of no tokens",
        ["serve", SHOP, "--host", "0.0.0.0", "--tokens", "{empty}"],
        2,
        "VALIDATION_ERROR: Serving on 0.0.0.0 without tokens",
    ),
    (
        "tokens that are not there",
        ["serve", SHOP, "--tokens", "nothing.json"],
        2,
        "VALIDATION_ERROR: Cannot read the tokens",
    ),
    (
        "a limit that there is not",
        ["serve", SHOP, "--limit", "header=1"],
        2,
        "VALIDATION_ERROR: Unknown limit header",
    ),
    (
        "a limit without a number",
        ["serve", SHOP, "--limit", "headers"],
        2,
        "VALIDATION_ERROR: headers must be NAME=NUM",
    ),
    (
        "a port that there is not",
        ["serve", SHOP, "--port", "99999"],
        2,
        "VALIDATION_ERROR: --port must be a number from 0",
    ),
    (
        "a grace that is no time",
        ["serve", SHOP, "--grace", "nan"],
        2,
        "VALIDATION_ERROR: --grace must be a number from 0",
    ),
    (
        "a grace before the end",
        ["serve", SHOP, "--grace", "-1"],
        2,
        "VALIDATION_ERROR: --grace must be a number from 0",
    ),
    (
        "no room for a body",
        ["serve", SHOP, "--max-body", "-1"],
        2,
        "VALIDATION_ERROR: --max-body must be a number of at",
    ),
    (
        "results of no length",
        ["mcp", SHOP, "--max-result-tokens", "0"],
        2,
        "VALIDATION_ERROR: --max-result-tokens must be a number of at least 1, not 0",
    ),
    (
        "no results",
        ["search", SHOP, "add", "--limit", "0"],
        2,
        "VALIDATION_ERROR: --limit must be a number of at least 1",
    ),
    ("no tasks", ["tasks", "list", "--limit", "few"], 2, "VALIDATION_ERROR: --limit must be a number from 1 to 1000"),
    (
        "no calls",
        ["work", SHOP, "--hub", "ws://x", "--running", "0"],
        2,
        "VALIDATION_ERROR: --running must be a number of",
    ),
    (
        "no patience",
        ["peers", "--hub", "ws://x", "--patience", "-1"],
        2,
        "VALIDATION_ERROR: --patience must be a number",
    ),
    ("no runs", ["prov", "list", "--store", "x", "--limit", "-1"], 2, "VALIDATION_ERROR: --limit must be a number of"),
    (
        "a limit for fewer workers",
        ["serve", SHOP, "--port", "0", "--workers", "4", "--limit", "calls_at_once=2"],
        2,
        "VALIDATION_ERROR: The limit calls_at_once=2 cannot be divided among 4 workers: raise it to at least 4 or",
    ),
    ("nothing to serve", ["serve"], 2, "VALIDATION_ERROR: serve needs a target"),
    ("an entry for no server", ["mcp", "--install-json"], 2, "VALIDATION_ERROR: mcp needs a target"),
    ("an entry for a missing file", ["mcp", "--install-json", "no.py"], 2, "VALIDATION_ERROR: There is no file no.py"),
    ("a configuration for CGI", ["cgi", "enfold.toml"], 2, "VALIDATION_ERROR: cgi needs a Python program"),
    ("NATS without a word", ["nats", SHOP], 2, "VALIDATION_ERROR: nats needs a subcommand: enfold nats permissions"),
    ("permissions without a role", ["nats", "permissions", SHOP], 2, "usage: enfold nats permissions"),
    (
        "a place without a scheme",
        ["peers", "--nats", "localhost"],
        2,
        "VALIDATION_ERROR: 'localhost' is not an address",
    ),
]


@pytest.mark.parametrize(("words", "code", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_mistake_is_one_sentence_with_its_exit_code(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    empty = tmp_path / "tokens.json"
    empty.write_text("[]")
    done = enfold(*(word.format(empty=empty) for word in words))
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        *((name, "") for name in ("serve", "mcp", "cgi", "list", "search", "openapi", "inspect", "work")),
        ("call", " OPERATION name=value"),
        ("diff", " NEW-TARGET"),
        ("nats permissions", ""),
    ],
)
def test_a_command_without_a_target_explains_targets_and_suggests_one(
    command: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likeliest of the folder is named, fit to be pasted; CGI takes programs alone; no file is run, none can disturb."""
    only_programs = command == "cgi"
    steps = {
        "notes.py": ("print()", "app.py"),  # not a file of ours: then any name will do
        "\x1b[31mred.py": ("import enfold", "app.py"),
        "openapi.json": ("{", "app.py" if only_programs else "openapi.json"),
        "my shop.py": ("from enfold import OperationRegistry\nraise SystemExit(9)", "'my shop.py'"),
        "app.py": ("", "app.py"),
        "enfold.toml": ("", "app.py" if only_programs else "enfold.toml"),
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    for name, (text, expected) in steps.items():
        (tmp_path / name).write_text(text)
        assert main(command.split()) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"VALIDATION_ERROR: {command} needs a target, as in: enfold {command} {expected}{rest}")
        assert ("is in this folder" in told) is (name not in list(steps)[: 3 if only_programs else 2])
        assert "A target is a Python program (app.py, app.py:ops, package.module)" in told
        assert ("enfold.toml, or" in told) is not only_programs


@pytest.mark.parametrize("command", ["serve", "mcp", "cgi", "call", "list", "openapi", "inspect", "work", "nats"])
def test_every_command_helps(command: str) -> None:
    done = enfold(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: enfold {command}")


@pytest.mark.parametrize("words", [["--install-json", SHOP], [SHOP, "--install-json"]], ids=["first", "last"])
def test_an_editors_entry_starts_the_server_from_anywhere(words: list[str]) -> None:
    entry = json.loads(enfold("mcp", *words).stdout)
    assert entry == {"mcpServers": {"app": {"command": sys.executable, "args": ["-m", "enfold", "mcp", SHOP]}}}


def test_a_script_of_ones_own_has_an_editors_entry(tmp_path: Path) -> None:
    script = tmp_path / "tools.py"
    script.write_text("from enfold import OperationRegistry\nOperationRegistry().run()\n")
    done = subprocess.run(
        [sys.executable, str(script), "mcp", "--install-json"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == {
        "mcpServers": {"tools": {"command": sys.executable, "args": [str(script), "mcp"]}}
    }


@pytest.mark.parametrize("words", [["permissions", SHOP], [SHOP, "permissions"]], ids=["first", "last"])
def test_permissions_are_made_for_a_target(words: list[str], tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    users.write_text('[{"id": "ann", "scopes": ["shop:order"]}]')
    assert '"op.ann.shop.order"' in enfold("nats", *words, "--users", str(users)).stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", [["list"], ["call", "shop.add", "x=1", "y=2"]], ids=["list", "call"])
def test_a_command_runs_with_standard_streams_that_are_closed(words: list[str], closed: str) -> None:
    line = shlex.join([sys.executable, "-m", "enfold", words[0], SHOP, *words[1:]])
    done = subprocess.run(f"{line} {closed}", shell=True, capture_output=True, check=False, timeout=60)  # noqa: S602
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_of_the_handlers_own_fails_the_call_and_not_the_command(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    text = "from enfold import OperationRegistry\nops = OperationRegistry()\n@ops.query\ndef stop() -> int:\n    raise {}\n"
    app.write_text(text.format("KeyboardInterrupt('enough')"))
    done = enfold("call", str(app), "stop")
    assert (done.returncode, done.stderr) == (1, "EXECUTION_ERROR: enough\n")


def test_a_list_of_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    assert enfold("list", str(tmp_path / "mcp.json")).stdout == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "invalid syntax"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)\n", "called exit (3) while it was imported"),
    ],
    ids=["syntax", "failure", "import", "exit"],
)
def test_an_app_that_cannot_be_imported_is_reported_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "app.py").write_text(text)
    done = enfold("list", str(tmp_path / "app.py"))
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = enfold("serve", SHOP, "--port", str(port))
    assert (done.returncode, done.stderr) == (
        7,
        f"UNAVAILABLE: Port {port} on 127.0.0.1 is in use: choose another with --port\n",
    )


def test_serve_prints_its_address_answers_and_ends_on_a_signal() -> None:
    words = [
        "serve",
        SHOP,
        "--port",
        "0",
        "--tokens",
        str(ROOT / "examples" / "shop" / "tokens.json"),
    ]
    with subprocess.Popen([sys.executable, "-m", "enfold", *words], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = list(iter(server.stderr.readline, "Press Ctrl-C to stop.\n"))
        base = said[1].split()[1].removesuffix("/functions/{id}")
        try:
            with urlopen(f"{base}/functions/shop.add?x=1&y=2", timeout=30) as reply:  # noqa: S310  # our own server
                assert json.load(reply) == {"result": 3}
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
            assert "Traceback" not in server.stderr.read()
        finally:
            server.kill()
    assert said[0] == "Enfold serves 7 operations\n"
    assert any("2 identities" in line for line in said)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "terminated"])
def test_a_reloading_server_takes_up_a_change_and_ends_whole(tmp_path: Path, end: signal.Signals) -> None:
    # A job in the background ignores what Ctrl-C sends, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    app = tmp_path / "app.py"
    app.write_text("def one() -> int:\n    return 1\n")
    command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", "--reload"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stderr is not None
        try:
            assert next(server.stderr) == "Enfold serves 1 operation\n"
            app.write_text("def one() -> int:\n    return 1\n\n\ndef two() -> int:\n    return 2\n")
            assert "Enfold serves 2 operations\n" in server.stderr
            server.send_signal(end)
            # Its standard error ends with the last process that has it: the server itself has ended too.
            assert "Traceback" not in server.stderr.read()
            assert server.wait(30) == 0
        finally:
            server.kill()


@pytest.fixture
def nats(program: Callable[[str], str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([program("nats-server"), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    yield f"nats://127.0.0.1:{port}"
    server.terminate()
    server.wait()


@contextmanager
def running(*words: str, cwd: Path = ROOT) -> Iterator[IO[str]]:
    """What a command says while it runs."""
    command = [sys.executable, "-m", "enfold", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stderr is not None
        try:
            yield process.stderr
        finally:
            process.kill()


def answer(said: IO[str], call: str) -> object:
    """The answer to a call, at the address that a server has said."""
    line = next(line for line in said if "/functions/" in line)
    address = line.split()[1].replace("{id}", call)
    with urlopen(address, timeout=30) as reply:  # noqa: S310  # our own server
        return json.load(reply)


def test_a_worker_and_an_edge_are_two_commands(nats: str) -> None:
    with running("work", SHOP, "--nats", nats) as worker:
        assert worker.readline().startswith("Enfold serves 7 operations")
        with running("serve", "--nats", nats, "--port", "0") as edge:
            assert answer(edge, "shop.add?x=1&y=2") == {"result": 3}
        assert "shop.add" in enfold("peers", "--nats", nats).stdout


def test_a_configuration_can_work_and_be_served_beside_what_peers_serve(nats: str, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(f'[sources.shop]\nfunctions = "{SHOP}"\n')
    (tmp_path / "two.toml").write_text('[sources.mine]\nfunctions = "app.py"\n')
    (tmp_path / "app.py").write_text("def two() -> int:\n    return 2\n")
    with running("work", "one.toml", "--nats", nats, cwd=tmp_path) as worker:
        assert worker.readline().startswith("Enfold serves 7 operations")
        with running("serve", "two.toml", "--nats", nats, "--port", "0", cwd=tmp_path) as edge:
            assert edge.readline() == "mine: up, 1 operation\n"
            assert edge.readline() == "Enfold serves 5 operations\n"
            assert answer(edge, "shop.add?x=1&y=2") == {"result": 3}
