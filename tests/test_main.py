import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parent.parent
SHOP = str(ROOT / "examples" / "shop" / "app.py")


def enfold(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "enfold", *words], capture_output=True, text=True, check=False, cwd=cwd, timeout=60
    )


def test_list_inspect_and_openapi_show_the_operations() -> None:
    assert "shop.price\tquery\tSay what a number of items costs." in enfold("list", SHOP).stdout.splitlines()
    assert {spec["name"] for spec in json.loads(enfold("list", SHOP, "--json").stdout)} >= {"add", "order", "events"}
    assert json.loads(enfold("inspect", SHOP, "order").stdout)["access_control"]["required_scopes"] == ["shop:order"]
    assert "/functions/shop.order" in json.loads(enfold("openapi", SHOP).stdout)["paths"]


def test_the_command_says_what_it_can_do_and_what_is_installed() -> None:
    assert "usage: enfold COMMAND TARGET" in enfold("--help").stdout
    assert enfold("--version").stdout.startswith("enfold ")
    assert "uvicorn" in enfold("doctor").stdout


WRONG = [
    ("no command", [], 2, ""),
    ("an unknown command", ["sing"], 2, "VALIDATION_ERROR: There is no command 'sing'"),
    ("no target", ["call"], 2, ""),
    ("a missing file", ["list", "nothing.py"], 2, "VALIDATION_ERROR: There is no file nothing.py"),
    ("a missing module", ["list", "no_such_module"], 2, "VALIDATION_ERROR: There is no module no_such_module"),
    (
        "an identity that the client names",
        ["cgi", SHOP, "--identity-variable=HTTP_X_USER"],
        2,
        "VALIDATION_ERROR: HTTP_X_USER is what the client says",
    ),
    ("no such registry", ["list", f"{SHOP}:nothing"], 2, "VALIDATION_ERROR:"),
    ("an unknown option", ["list", SHOP, "--loud"], 2, "usage: enfold list"),
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
        "VALIDATION_ERROR: The tokens cannot",
    ),
]


@pytest.mark.parametrize(("words", "code", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_is_wrong_is_one_sentence_with_its_exit_code(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    empty = tmp_path / "tokens.json"
    empty.write_text("[]")
    done = enfold(*(word.format(empty=empty) for word in words))
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "invalid syntax"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)\n", "ended the program itself (3)"),
    ],
    ids=["syntax", "failure", "import", "exit"],
)
def test_an_app_that_cannot_be_imported_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "app.py").write_text(text)
    done = enfold("list", str(tmp_path / "app.py"))
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = enfold("serve", SHOP, "--port", str(port))
    assert (done.returncode, done.stderr) == (7, f"UNAVAILABLE: Port {port} on 127.0.0.1 is in use\n")


def test_serve_says_where_it_is_answers_and_ends_when_it_is_told_to() -> None:
    words = ["serve", SHOP, "--port", "0", "--tokens", str(ROOT / "examples" / "shop" / "tokens.json")]
    with subprocess.Popen([sys.executable, "-m", "enfold", *words], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = [server.stderr.readline() for _ in range(7)]
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
    assert "2 identities" in said[5]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "terminated"])
def test_a_reloading_server_takes_up_a_change_and_ends_whole(tmp_path: Path, end: signal.Signals) -> None:
    app = tmp_path / "app.py"
    app.write_text("def one() -> int:\n    return 1\n")
    command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", "--reload"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stderr is not None
        try:
            assert next(server.stderr) == "Enfold serves 1 operations\n"
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


def test_a_worker_and_an_edge_are_two_commands(nats: str) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "enfold", "work", SHOP, "--nats", nats], stderr=subprocess.PIPE, text=True
    )
    edge = None
    try:
        assert worker.stderr is not None
        assert worker.stderr.readline().startswith("Enfold serves")
        words = ["serve", "--nats", nats, "--port", "0"]
        edge = subprocess.Popen([sys.executable, "-m", "enfold", *words], stderr=subprocess.PIPE, text=True)
        assert edge.stderr is not None
        said = [edge.stderr.readline() for _ in range(7)]
        base = said[1].split()[1].removesuffix("/functions/{id}")
        with urlopen(f"{base}/functions/shop.add?x=1&y=2", timeout=30) as reply:  # noqa: S310  # our own server
            assert json.load(reply) == {"result": 3}
        assert "shop.add" in enfold("peers", "--nats", nats).stdout
    finally:
        for process in (worker, edge):
            if process is not None:
                process.kill()
                process.communicate()
