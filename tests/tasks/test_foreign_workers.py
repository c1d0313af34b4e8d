"""A worker of one namespace on a NATS server with the generated permissions reaches no task of another namespace."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.calls.networks import Server, nats_server_program
from tests.waiting import wait_for

from enfold import Identity, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.commands.main import main
from enfold.tasks import TaskHandle, Tasks
from enfold.tasks.model import Order, new_task_id
from enfold.tasks.nats import NATSTasks
from enfold.tasks.nats_streams import Names, first_key, operation_token, slot_key, task_key, token_of

MUCH = msgspec.Raw(b'{"amount":1000000}')
APP = """
from pathlib import Path
from enfold import Context, OperationRegistry
shop = OperationRegistry("shop")

@shop.mutation(durable=True, access={"required_scopes": ["pay"]})
async def pay(amount: int, context: Context) -> str:
    with open("paid", "a") as paid:
        paid.write(f"{context.identity.id} {amount}\\n")
    return f"paid {amount}"

@shop.mutation(durable=True)
async def confirm(context: Context) -> str:
    return (await context.ask("Sure?")).action

ops = OperationRegistry()
ops.register_all(shop)
evil = OperationRegistry("evil")

@evil.mutation(durable=True)
async def run(n: int) -> int: return n

ops.register_all(evil)
"""
ALICE = Identity("alice", frozenset({"pay"}))
NAMES = Names()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    for name in ("edge", "shop"):
        assert main(["prov", "keygen", f"{name}.key"]) == 0
    return tmp_path


def users(*, keys: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"id": "edge", "edge": True, "password": "p"},
        {"id": "shop", "serves": ["shop"], "password": "p"},
        {"id": "evil", "serves": ["evil"], "password": "p"},
        {"id": "root", "operator": True, "password": "p"},
    ]
    if keys:
        for user in found[:2]:
            user["key"] = f"{user['id']}.key.pub"
    return found


@pytest.fixture(params=[False, True], ids=["unsigned", "signed"])
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    (folder / "users.json").write_text(json.dumps(users(keys=request.param)))
    rules = enfold("nats", "permissions", "app.py:ops", "--users", "users.json")
    # The administrator is not an identity of Enfold: it writes where no other may.
    rules = rules.replace("users = [", 'users = [\n    { user: "admin", password: "p" }')
    found = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder}/js" }}\n{rules}')
    found.wait_until_ready()
    enfold("nats", "init", address(found, "root"))
    yield found
    found.close()


@pytest.fixture
def worker(server: Server, folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "enfold", "work", "app.py:shop", "--nats", address(server, "shop")]
    words += ["--users", "users.json", "--order-key", "shop.key"]
    with (folder / "log").open("w") as log, subprocess.Popen(words, stderr=log, text=True) as process:
        wait_for(lambda: "serves" in (folder / "log").read_text())
        yield process
        process.kill()


@pytest.fixture
async def evil(server: Server) -> AsyncIterator[NATSTransport]:
    async with NATSTransport(server.url, user="evil", password="p") as transport:
        yield transport


@pytest.fixture
async def edge(server: Server, folder: Path) -> AsyncIterator[Tasks]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from enfold.sources.functions import load_target
    from enfold.tasks.nats_streams import order_signer

    key = load_pem_private_key((folder / "edge.key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    registry = load_target("app.py:ops")
    assert isinstance(registry, OperationRegistry)
    async with NATSTransport(server.url, user="edge", password="p") as transport:
        tasks = Tasks(registry, NATSTasks(transport, sign=order_signer(key, "edge")), at_once=0)
        yield tasks
        await tasks.close()


async def asked(handle: TaskHandle) -> Order:
    async with asyncio.timeout(40):
        async for task in handle.watch():
            if task.questions:
                return task.order
    raise AssertionError


@pytest.mark.usefixtures("worker")
async def test_it_orders_reads_writes_acknowledges_and_purges_nothing_of_the_shop(
    edge: Tasks, evil: NATSTransport, folder: Path
) -> None:
    from nats.errors import Error
    from nats.js.api import AckPolicy, ConsumerConfig

    waiting = await edge.start("shop.confirm", {}, identity=ALICE)
    order = await asked(waiting)
    before = await waiting.state()
    paying = msgspec.structs.replace(order, id=new_task_id(), operation="shop.pay", input_json=MUCH, identity=ALICE)
    pay = operation_token("shop.pay")
    client, heard = evil.client, []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    for subject in (f"{NAMES.changed}.>", f"{NAMES.changed}.task.{pay}.>", "$KV.>", f"{NAMES.name}.run.>"):
        await client.subscribe(subject, cb=hear)
    for subject, data in (
        (NAMES.queued(token_of(order.owner), "shop.pay"), msgspec.json.encode(paying)),
        (NAMES.queued(token_of(order.owner), "shop.confirm"), msgspec.json.encode(order)),
        (NAMES.key(task_key(order)), b"{}"),
        (NAMES.key(slot_key(paying)), b"1"),
        (NAMES.key(first_key(order.owner, "shop.pay", "k")), b"{}"),
        (NAMES.key(f"worker.shop.{'0' * 16}"), b"1"),
        (f"$JS.ACK.{NAMES.queue}.{pay}.1.1.1.1.1", b"+ACK"),
        (f"$KV.enfold_idempotency.shop.pay.{'0' * 64}", b"{}"),
    ):
        await client.publish(subject, data)
    # One who may write a key of its own purges the others with it, where the stream allows rollups.
    own = NAMES.key(f"task.{operation_token('evil.run')}.{token_of('x')}.{'0' * 32}.state")
    await client.publish(own, b"{}", headers={"Nats-Rollup": "all"})
    jetstream = client.jetstream(timeout=0.3)
    mine = operation_token("evil.run")
    spy: dict[str, Any] = {"ack_policy": AckPolicy.EXPLICIT, "filter_subject": NAMES.queued("*", "shop.pay")}
    attempts: list[Awaitable[Any]] = [
        jetstream.get_msg(NAMES.bucket, subject=NAMES.key(task_key(order)), direct=True),
        jetstream.get_msg(NAMES.bucket, 1, direct=True),
        jetstream.get_msg(NAMES.bucket, 1),
        jetstream.get_msg(NAMES.queue, 1),
        jetstream.purge_stream(NAMES.bucket),
        jetstream.purge_stream(NAMES.queue),
        jetstream.delete_msg(NAMES.bucket, 1),
        jetstream.delete_stream(NAMES.bucket),
        jetstream.delete_consumer(NAMES.queue, operation_token("shop.confirm")),
        jetstream.add_consumer(NAMES.queue, ConsumerConfig(name=mine, durable_name=mine, **spy)),
        jetstream.add_consumer(NAMES.queue, ConsumerConfig(durable_name=mine, **spy)),
        jetstream.add_consumer(NAMES.queue, ConsumerConfig(**spy)),
        jetstream.add_consumer(NAMES.bucket, ConsumerConfig(durable_name="spy", ack_policy=AckPolicy.EXPLICIT)),
        client.request(f"$JS.API.CONSUMER.MSG.NEXT.{NAMES.queue}.{pay}", b"", timeout=0.3),
    ]
    for attempt in attempts:
        with pytest.raises((Error, TimeoutError)):
            await attempt
    assert await waiting.state() == before
    assert (await (await edge.start("shop.pay", {"amount": 1}, identity=ALICE)).result()).data == "paid 1"
    assert (folder / "paid").read_text() == "alice 1\n"
    assert heard == []


async def test_an_order_that_the_server_copies_into_the_queue_for_it_is_not_run(
    edge: Tasks, evil: NATSTransport, worker: subprocess.Popen[str], folder: Path
) -> None:
    """NATS lets everybody name any subject for an answer: that of a direct read is what the asker has written before."""
    del worker
    waiting = await edge.start("shop.confirm", {}, identity=ALICE)
    paying = msgspec.structs.replace(
        await asked(waiting), id=new_task_id(), operation="shop.pay", input_json=MUCH, signature=""
    )
    own = NAMES.key(f"task.{operation_token('evil.run')}.{token_of('x')}.{'0' * 32}.state")
    await evil.client.jetstream(timeout=2).publish(own, msgspec.json.encode(paying))
    read = f"$JS.API.DIRECT.GET.{NAMES.bucket}.{own}"
    await evil.client.publish(read, b"", reply=NAMES.queued(token_of(paying.owner), "shop.pay"))
    await asyncio.to_thread(wait_for, lambda: "is not a task" in (folder / "log").read_text())
    assert (await (await edge.start("shop.pay", {"amount": 1}, identity=ALICE)).result()).data == "paid 1"
    assert (folder / "paid").read_text() == "alice 1\n"


@pytest.mark.usefixtures("worker")
async def test_lists_of_keys_reveal_no_task_ids(edge: Tasks, evil: NATSTransport) -> None:
    """A worker has to look at the configuration of the streams, and with it comes the list of their subjects."""
    waiting = await edge.start("shop.confirm", {}, identity=ALICE)
    await asked(waiting)
    shown = await evil.client.jetstream(timeout=2).stream_info(NAMES.bucket, subjects_filter=">")
    assert shown.state.subjects
    assert waiting.id is not None
    assert waiting.id not in str(shown)
    assert "shop" not in str([subject for subject in shown.state.subjects if ".worker." not in subject])


@pytest.mark.usefixtures("worker")
async def test_its_own_tasks_run_with_the_rights_that_it_has(edge: Tasks, evil: NATSTransport) -> None:
    from enfold.sources.functions import load_target

    registry = load_target("app.py:evil")
    async with Tasks(registry, NATSTasks(evil)) as own:
        handle = await own.start("evil.run", {"n": 4}, identity=ALICE)
        assert (await handle.result()).data == 4
        assert (await (await edge.start("evil.run", {"n": 5}, identity=ALICE)).result()).data == 5


@pytest.mark.parametrize("server", [True], indirect=True, ids=["signed"])
async def test_an_order_without_the_signature_of_an_edge_is_not_run(
    edge: Tasks, server: Server, worker: subprocess.Popen[str], folder: Path
) -> None:
    """Even by a writer to the queue: unsigned, changed after it was signed, signed by another, or for another operation."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from enfold.tasks.nats_streams import order_signer

    del worker
    handle = await edge.start("shop.pay", {"amount": 1}, identity=ALICE)
    assert (await handle.result()).data == "paid 1"
    good = (await handle.state()).order
    assert good.signature.startswith("edge:")
    other = Ed25519PrivateKey.generate()
    new = msgspec.structs.replace(good, id=new_task_id())
    forged = [
        msgspec.structs.replace(new, signature=""),
        new,
        msgspec.structs.replace(good, input_json=MUCH),
        msgspec.structs.replace(good, signature=good.signature.replace("edge:", "shop:")),
        order_signer(other, "edge")(new),
        order_signer(other, "evil")(new),
        order_signer(other, "")(new),
        msgspec.structs.replace(new, signature="edge:!"),
    ]
    async with NATSTransport(server.url, user="admin", password="p", name="admin") as admin:
        jetstream = admin.client.jetstream()
        for order in forged:
            await jetstream.publish(NAMES.queued(token_of(order.owner), "shop.pay"), msgspec.json.encode(order))
        async with asyncio.timeout(40):
            while (await jetstream.stream_info(NAMES.queue)).state.messages:  # noqa: ASYNC110  # of the server
                await asyncio.sleep(0.02)
        dead = (await jetstream.stream_info(NAMES.bucket, subjects_filter=NAMES.key("dead.>"))).state.subjects
    assert len(dead or {}) == len(forged)
    assert (folder / "log").read_text().count("it is not signed by a user with permission to submit it") == len(forged)
    assert (folder / "paid").read_text() == "alice 1\n"


def address(server: Server, user: str) -> str:
    return server.url.replace("nats://", f"nats://{user}:p@")


def enfold(*words: str) -> str:
    command = [sys.executable, "-m", "enfold", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout
