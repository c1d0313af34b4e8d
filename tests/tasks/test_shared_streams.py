"""The streams that processes share on NATS: their creator could read what others write, so every process checks them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server, nats_server_program

from enfold.calls.nats import NATSTransport

APP = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.mutation(durable=True)
async def pay(amount: int) -> int: return amount
"""
USERS = [
    {"id": "worker", "serves": ["shop"], "password": "w"},
    {"id": "operator", "operator": True, "password": "o"},
]
QUEUE, BUCKET, KEYS = "enfold_tasks_queue", "KV_enfold_tasks", "KV_enfold_idempotency"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "users.json").write_text(json.dumps(USERS))
    return tmp_path


@pytest.fixture
def open_server(folder: Path) -> Iterator[Server]:
    yield from served(folder, "")


@pytest.fixture
def closed_server(folder: Path) -> Iterator[Server]:
    rules = enfold(folder, "nats", "permissions", "app.py", "--users", "users.json")
    assert rules.returncode == 0, rules.stderr
    yield from served(folder, rules.stdout)


def served(folder: Path, rules: str) -> Iterator[Server]:
    server = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder}/js" }}\n{rules}')
    server.wait_until_ready()
    yield server
    server.close()


def test_a_worker_waits_for_the_operator_to_create_the_streams_where_nats_has_authentication(
    folder: Path, closed_server: Server
) -> None:
    as_worker, as_operator = (address(closed_server, each) for each in ("worker:w", "operator:o"))
    refused = enfold(folder, "work", "app.py", "--nats", as_worker)
    assert refused.returncode != 0
    assert f"The stream {QUEUE} does not exist on the NATS server: create it with `enfold nats init`" in refused.stderr
    assert enfold(folder, "nats", "init", as_worker).returncode != 0
    made = enfold(folder, "nats", "init", as_operator)
    assert (made.returncode, made.stdout.split()[::3]) == (0, [QUEUE, BUCKET, KEYS]), made.stderr
    assert enfold(folder, "nats", "init", as_operator).returncode == 0  # again
    assert "serves" in begun(folder, as_worker)


async def test_no_worker_may_create_change_or_purge_a_shared_stream(folder: Path, closed_server: Server) -> None:
    from nats.errors import Error
    from nats.js.api import RePublish, StreamConfig

    async with NATSTransport(closed_server.url, user="worker", password="w") as transport:
        jetstream = transport.client.jetstream(timeout=0.3)
        for bucket in (BUCKET, KEYS):
            spy = RePublish(src="$KV.>", dest="_INBOX.worker.spy.>")
            config = StreamConfig(name=bucket, subjects=[f"$KV.{bucket[3:]}.>"], republish=spy)
            with pytest.raises((Error, TimeoutError)):
                await jetstream.add_stream(config)
        made = await asyncio.to_thread(enfold, folder, "nats", "init", address(closed_server, "operator:o"))
        assert made.returncode == 0, made.stderr
        for attempt in (
            jetstream.update_stream(StreamConfig(name=BUCKET, subjects=["$KV.enfold_tasks.>"])),
            jetstream.purge_stream(BUCKET),
            jetstream.purge_stream(QUEUE),
            jetstream.delete_stream(KEYS),
            jetstream.delete_msg(BUCKET, 1),
        ):
            with pytest.raises((Error, TimeoutError)):
                await attempt


SPY = {"src": "$KV.>", "dest": "_INBOX.eve.>"}


@pytest.mark.parametrize(
    ("stream", "changes", "told"),
    [
        (BUCKET, {"republish": SPY}, "it republishes messages to _INBOX.eve.>"),
        (BUCKET, {"republish": None}, "it republishes messages no longer"),
        (BUCKET, {"sources": [{"name": "ORDERS"}]}, "it has sources"),
        (BUCKET, {"subjects": ["$KV.enfold_tasks.>", "op.>"]}, "it stores the subjects $KV.enfold_tasks.>, op.>"),
        (BUCKET, {"max_age": 1_000_000_000, "duplicate_window": 1_000_000_000}, "it keeps messages for 1 s"),
        (BUCKET, {"allow_rollup_hdrs": True}, "allow_rollup_hdrs is on"),
        (BUCKET, {"allow_direct": False}, "allow_direct is off"),
        (BUCKET, {"discard": "old"}, "discard is old instead of new"),
        (BUCKET, {"max_msgs_per_subject": -1}, "max_msgs_per_subject is -1 instead of 1"),
        (QUEUE, {"retention": "limits"}, "retention is limits instead of workqueue"),
        (QUEUE, {"republish": {"src": ">", "dest": "_INBOX.eve.>"}}, "it republishes messages to _INBOX.eve.>"),
        (KEYS, {"republish": SPY}, "it republishes messages to _INBOX.eve.>"),
        (KEYS, {"max_age": 5_000_000_000, "duplicate_window": 5_000_000_000}, "it keeps messages for 5 s"),
        (KEYS, {"mirror": {"name": "ORDERS"}, "subjects": None}, "it has mirror"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_worker_does_not_start_on_a_stream_with_a_wrong_configuration(
    folder: Path, open_server: Server, stream: str, changes: dict[str, Any], told: str
) -> None:
    assert enfold(folder, "nats", "init", open_server.url).returncode == 0
    asyncio.run(remade(open_server.url, stream, changes))
    refused = enfold(folder, "work", "app.py", "--nats", open_server.url)
    assert refused.returncode != 0
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert f"The stream {stream} on the NATS server is not used: " in refused.stderr, refused.stderr
    assert told in refused.stderr, refused.stderr


def test_without_authentication_a_worker_creates_the_streams_itself(folder: Path, open_server: Server) -> None:
    assert "serves" in begun(folder, open_server.url)


def test_init_repairs_a_stream(folder: Path, open_server: Server) -> None:
    assert enfold(folder, "nats", "init", open_server.url).returncode == 0
    asyncio.run(remade(open_server.url, BUCKET, {"republish": SPY}))
    repaired = enfold(folder, "nats", "init", open_server.url)
    assert repaired.returncode == 0, repaired.stderr
    assert "serves" in begun(folder, open_server.url)


async def remade(url: str, stream: str, changes: dict[str, Any]) -> None:
    """Delete a stream and create it with other settings, in the words of the server."""
    async with NATSTransport(url) as transport:
        jetstream, client = transport.client.jetstream(), transport.client
        await client.request("$JS.API.STREAM.CREATE.ORDERS", b'{"name": "ORDERS", "subjects": ["orders"]}')
        found = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", b"")).data)["config"]
        await jetstream.delete_stream(stream)
        config = {key: value for key, value in {**found, **changes}.items() if value is not None}
        if "mirror" in changes:
            config = {key: config[key] for key in ("name", "mirror", "storage", "max_msgs_per_subject")}
        made = await client.request(f"$JS.API.STREAM.CREATE.{stream}", json.dumps(config).encode())
        assert "error" not in json.loads(made.data), made.data


def address(server: Server, user: str) -> str:
    return server.url.replace("nats://", f"nats://{user}@")


def begun(folder: Path, url: str) -> str:
    """The first line of a worker that has started."""
    command = [sys.executable, "-m", "enfold", "work", "app.py", "--nats", url]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        try:
            return worker.stderr.readline()
        finally:
            worker.terminate()


def enfold(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
