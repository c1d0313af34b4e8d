"""The commands' building blocks, and the page's code."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import nats
import pytest
from tests.calls.networks import PASSWORD, Server, free_port, shop

from enfold import CallError, Identity
from enfold.calls import PendingRequestMap
from enfold.calls.caller.peers import PeerOperation, RunningPeer
from enfold.calls.nats import NATSTransport
from enfold.calls.transports.addresses import open_transport
from enfold.calls.transports.nats_streams import NATSUser, nats_permissions
from enfold.calls.websocket import WebSocketTransport
from enfold.commands import nats as nats_command
from enfold.commands.main import main
from enfold.commands.peers import describe_peers
from enfold.surfaces.calls import serve_calls

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys
from tests.calls.networks import shop
shop().run(["work", *sys.argv[1:]])
"""


def test_the_page_s_code_runs() -> None:
    page = (ROOT / "docs" / "calls.md").read_text(encoding="utf-8")
    events = ["call.requested", "call.responded"] * 2
    for code, said in zip(
        re.findall(r"```python\n(.*?)```", page, re.DOTALL), ("3\n", f"3\n8\n{events}\n"), strict=True
    ):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout == said


@pytest.mark.parametrize(
    ("address", "kind"),
    [("nats://a,nats://b", NATSTransport), ("ws://a/calls", WebSocketTransport), ("wss://a", WebSocketTransport)],
)
def test_an_address_says_which_transport(address: str, kind: type) -> None:
    assert isinstance(open_transport(address), kind)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(CallError, match="not an address of peers"):
        open_transport("http://a")


def test_peers_are_shown_in_a_table() -> None:
    peers = [RunningPeer("w1", "b", "enfold", "1", "", (PeerOperation("shop.add", "1.0.0", 12, 1, 0.25),))]
    assert describe_peers(peers).splitlines() == [
        "peer  operation  version  calls  errors  average",
        "w1    shop.add   1.0.0    12     1       0.2 ms",
    ]


def start_worker(url: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, "--nats", url, *words]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


async def test_a_worker_serves_until_it_is_asked_to_stop(
    nats_program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(nats_program, tmp_path)
    server.wait_until_ready()
    worker = start_worker(server.url, "--name", "w1")
    try:
        assert worker.stderr is not None
        assert "serves 11 operations as w1" in await asyncio.to_thread(worker.stderr.readline)
        hint = "Cannot be called: shop.pay, because the server does not identify callers"
        assert hint in await asyncio.to_thread(worker.stderr.readline)
        async with NATSTransport(server.url) as transport, PendingRequestMap(transport) as caller:
            assert (await caller.call("shop.add", {"x": 1, "y": 2})).data == 3
            shell = [sys.executable, "-m", "enfold", "call", server.url, "shop.add", "x=1", "y=2"]
            done = await asyncio.to_thread(subprocess.run, shell, capture_output=True, text=True, check=False)
            assert (done.stdout, done.stderr) == ('{"result":3}\n', "")
            call = asyncio.create_task(caller.call("shop.wait", {"seconds": 1.0}))
            arguments = ["peers", "--nats", server.url, "--patience", "0.3"]
            assert await asyncio.to_thread(main, arguments) == 0
            assert re.search(r"w1 +shop\.add +1\.0\.0 +2 +0", capsys.readouterr().out)
            worker.send_signal(signal.SIGTERM)
            assert (await call).data == "done"
        assert await asyncio.to_thread(worker.wait, 20) == 0
    finally:
        worker.kill()
        worker.communicate()
        server.close()


def with_user(url: str, name: str) -> str:
    return url.replace("://", f"://{name}:{PASSWORD}@")


async def test_a_worker_knows_from_a_file_what_each_user_may_do(nats_url: str, tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    users.write_text('[{"id": "alice", "scopes": ["pay"]}, {"id": "bob"}]')
    worker = start_worker(with_user(nats_url, "worker"), "--users", str(users))
    try:
        assert worker.stderr is not None
        assert "as worker" in await asyncio.to_thread(worker.stderr.readline)
        async with NATSTransport(with_user(nats_url, "alice")) as transport, PendingRequestMap(transport) as alice:
            assert (await alice.call("shop.pay", {"amount": 3})).data == 3
    finally:
        worker.kill()
        worker.communicate()


def test_a_worker_without_permission_to_serve_says_so(nats_url: str) -> None:
    worker = start_worker(with_user(nats_url, "bob"))
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 4
    assert said.startswith("ACCESS_DENIED: The server does not permit bob to subscribe to ")
    assert said.count("\n") == 1


def test_a_server_that_is_not_there_or_refuses_us_is_reported(nats_url: str) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    absent = f"UNAVAILABLE: NATS at nats://{nowhere} cannot be reached within 5 s"
    refused = f"ACCESS_DENIED: NATS at {nats_url} refuses the connection: check the user, password or token"
    commands = {
        ("work", "tests/parity_app.py", "--nats", f"nats://{nowhere}"): (absent, 7),
        ("serve", "--port", "0", "--nats", f"nats://ann:{PASSWORD}@{nowhere}"): (absent, 7),
        ("peers", "--nats", nats_url): (refused, 4),
    }
    started = {words: start_command(*words) for words in commands}  # side by side, because each of them waits
    for words, process in started.items():
        _, said = process.communicate(timeout=60)
        assert (said.startswith(commands[words][0]), said.count("\n"), process.returncode) == (
            True,
            1,
            commands[words][1],
        )
        assert PASSWORD not in said


def start_command(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "enfold", *words]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_permissions_are_printed_from_a_file_of_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = tmp_path / "users.json"
    users.write_text('[{"id": "alice", "scopes": ["pay"]}, {"id": "bob"}, {"id": "w", "serves": ["shop"]}]')
    assert nats_command.run(["permissions", "--users", str(users)], shop()) == 0
    text = capsys.readouterr().out
    assert '"op.alice.shop.pay"' in text
    assert '"op.bob.shop.pay"' not in text
    assert '"op.*.shop.pay workers"' in text
    assert "password: $NATS_ALICE" in text


@pytest.mark.parametrize("ids", [("ann-x", "ann_x"), ("ann", "Ann"), ("ann", "ann")])
def test_users_who_would_share_a_password_are_refused(tmp_path: Path, ids: tuple[str, str]) -> None:
    users = tmp_path / "users.json"
    users.write_text(json.dumps([{"id": each} for each in ids]))
    with pytest.raises(CallError, match="would share"):
        nats_command.run(["permissions", "--users", str(users)], shop())


@pytest.mark.parametrize("content", ["", "{}", '[{"id": 1}]', '[{"id": "owner"}]', '[{"id": "a", "secret": "x"}]'])
def test_an_invalid_file_of_users_is_reported(tmp_path: Path, content: str) -> None:
    users = tmp_path / "users.json"
    users.write_text(content)
    with pytest.raises(CallError) as raised:
        nats_command.run(["permissions", "--users", str(users)], shop())
    assert raised.value.code == "VALIDATION_ERROR"


def test_a_name_cannot_break_out_of_the_file() -> None:
    evil = NATSUser(Identity('a", permissions: {publish: ">"} #'), password='"\\')
    text = nats_permissions(shop().list(), [evil])
    assert 'publish: ">"' not in text


async def test_operators_see_services_as_nats_tools_do(nats_url: str) -> None:
    async with (
        NATSTransport(nats_url, user="worker", password=PASSWORD) as transport,
        serve_calls(shop(), transport, service="shop"),
    ):
        client = await nats.connect(nats_url, user="operator", password=PASSWORD, inbox_prefix="_INBOX.operator")
        for verb in ("PING", "INFO", "STATS"):
            answer = await client.request(f"$SRV.{verb}.shop", b"", timeout=5)
            assert f"io.nats.micro.v1.{verb.lower()}_response".encode() in answer.data
        await client.close()
