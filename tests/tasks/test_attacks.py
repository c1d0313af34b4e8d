"""Tasks under attack: others' ids, forged and replayed words, direct writes on NATS, lost scopes, files that are locked or full."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.calls.networks import Server, nats_server_program
from tests.calls.processes import IS_FULL, ROOT

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.calls.transports.nats_permissions import NATSUser, nats_permissions
from enfold.mcp.asking import elicit
from enfold.provenance import Recorder
from enfold.tasks import Status, Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.nats import NATSTasks
from enfold.tasks.nats_names import Names, owner_token
from enfold.tasks.runner import narrower
from enfold.tasks.sqlite import SQLiteTasks

ANN = Identity("ann", frozenset({"write"}))
EVE = Identity("eve", frozenset({"write"}))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
YES = {"action": "accept", "content": {"name": "Ann"}}

ops = OperationRegistry("shop")
ran: list[str] = []
wording = ["Who signs?"]


@ops.mutation(durable=True, access={"required_scopes": ["write"]})
async def sign(year: int, context: Context) -> str:
    ran.append(str(context.task and context.task.id))
    name = await elicit(context, wording[0], FORM, key="name")
    return f"{year} {name.content['name']}"


@ops.mutation(durable=True)
async def large(size: int) -> str:
    return "x" * size


async def refused(call: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await call
    return raised.value


async def asked(tasks: Tasks, handle: Any) -> Any:
    async with asyncio.timeout(20):
        async for task in handle.watch():
            if task.status is Status.INPUT_REQUIRED:
                return task
    raise AssertionError("it asks for nothing")


async def test_nobody_guesses_an_id_or_says_anything_to_anothers_task(tmp_path: Path) -> None:
    async with Tasks(ops, SQLiteTasks(tmp_path / "t.db")) as tasks:
        handle = await tasks.start("shop.sign", {"year": 1}, identity=ANN)
        before = await asked(tasks, handle)
        (key,) = before.questions
        guesses = 100_000 if IS_FULL else 500
        found = await asyncio.gather(*(tasks.store.get(None, f"{n:032d}") for n in range(guesses)))
        assert not any(found)
        for other in (EVE, None, Identity("ann", frozenset({"write"}), on_behalf_of="eve"), Identity('["ann"]')):
            assert (await refused(tasks.get(str(handle.id), identity=other))).code == "TASK_NOT_FOUND"
        for wrong in ("", "x", "a" * 33, "../../etc/passwd", "' OR 1=1 --", "ä" * 32, "a" * 32 + "\n"):
            assert (await refused(tasks.get(wrong, identity=ANN))).code == "TASK_NOT_FOUND"
        assert await handle.state() == before
        await handle.answer({key: YES})
        assert (await handle.result()).data == "1 Ann"
        ended = await handle.state()
        await handle.answer({key: {"action": "accept", "content": {"name": "Eve"}}})  # replayed, with other words
        await handle.cancel()
        assert await handle.state() == ended


async def test_a_question_that_was_changed_gets_a_new_key_and_no_old_answer() -> None:
    store = MemoryTasks()
    async with Tasks(ops, store) as tasks:
        handle = await tasks.start("shop.sign", {"year": 2}, identity=ANN)
        (first,) = (await asked(tasks, handle)).questions
        wording[0] = "Who pays?"
        try:
            await handle.answer({first: YES})
            async with asyncio.timeout(10):
                async for task in handle.watch():
                    if task.questions and first not in task.questions:
                        break
            (second,) = task.questions
        finally:
            wording[0] = "Who signs?"
        assert second != first
        assert task.questions[second].params["message"] == "Who pays?"


async def test_a_scope_lost_between_start_and_run_is_recorded_and_nothing_runs() -> None:
    store = MemoryTasks()
    edge = Tasks(ops, store, at_once=0)
    handle = await edge.start("shop.sign", {"year": 3}, identity=ANN)
    async with Tasks(ops, store, current=lambda identity: Identity(identity.id)):
        assert (await refused(handle.result())).code == "ACCESS_DENIED"
    assert handle.id not in ran
    boss = Identity("ann", frozenset({"*"}), {"p:1": ["read", "write"]})
    known = narrower(boss, Identity("ann", frozenset({"read"}), {"p:1": ["read"], "p:2": ["read"]}))
    assert (known.scopes, known.resources) == (frozenset({"read"}), {"p:1": ["read"]})


async def test_a_record_of_provenance_names_the_task() -> None:
    async with Tasks(ops, MemoryTasks(), recorder=Recorder()) as tasks:
        handle = await tasks.start("shop.large", {"size": 1}, provenance={"mode": "full"})
        record = (await handle.result()).provenance
    assert record is not None
    named = [each for each in record["inputs"] if each["artifact_id"] == "enfold:task"]
    assert [each["labels"]["id"] for each in named] == [handle.id]


async def test_expiry_comes_after_the_promised_time_and_not_before(tmp_path: Path) -> None:
    for store in (MemoryTasks(), SQLiteTasks(tmp_path / "t.db")):
        async with Tasks(ops, store, keep=0.4, deadline=0.4) as tasks:
            handle = await tasks.start("shop.large", {"size": 1})
            waiting = await tasks.start("shop.sign", {"year": 1}, identity=ANN)
            await handle.result()
            assert (await handle.state()).ttl_ms == 800
            await store.expire()
            assert (await handle.state()).status is Status.COMPLETED
            await asyncio.sleep(0.5)
            await store.expire()
            assert (await refused(waiting.result())).code == "TIMEOUT"
            assert (await handle.state()).status is Status.COMPLETED
            await asyncio.sleep(0.5)
            await store.expire()
            assert (await refused(handle.state())).code == "TASK_NOT_FOUND"


async def test_a_result_is_equal_by_its_digest_or_too_large() -> None:
    async with Tasks(ops, MemoryTasks(), max_result=1000) as tasks:
        assert (await (await tasks.start("shop.large", {"size": 500})).result()).data == "x" * 500
        error = await refused((await tasks.start("shop.large", {"size": 2000})).result())
        assert (error.code, error.details["limit"]) == ("PAYLOAD_TOO_LARGE", 1000)


# --- SQLite -------------------------------------------------------------------------------------------------------


async def test_a_file_that_is_locked_full_or_broken_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    tasks = Tasks(ops, SQLiteTasks(path), at_once=0)
    kept = await tasks.start("shop.large", {"size": 1})
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        error = await refused(tasks.start("shop.large", {"size": 1}))
        assert (error.code, error.details) == ("UNAVAILABLE", {"reason": "store"})
        other.rollback()
    other.close()
    await kept.state()
    pages = tasks.store._thread.submit(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchone())  # type: ignore[attr-defined]
    await pages  # as on a disk that is full
    assert (await refused(tasks.start("shop.large", {"size": 1}, request_id="r" * 500_000))).code == "UNAVAILABLE"
    again = await tasks.start("shop.large", {"size": 1})  # the connection was opened anew
    assert {task.id for task in await tasks.store.list("")} == {kept.id, again.id}
    await tasks.close()
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 1000)
    tasks = Tasks(ops, SQLiteTasks(broken), at_once=0)
    assert (await refused(tasks.start("shop.large", {"size": 1}))).code == "UNAVAILABLE"
    await tasks.close()
    assert broken.read_bytes() == b"no database" * 1000


async def test_two_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from tests.tasks.fault_process import *\n"
        "async def main():\n"
        "    tasks = Tasks(operations(Log('/dev/null')), SQLiteTasks(sys.argv[1]), at_once=0)\n"
        "    print((await tasks.start('shop.again', {'n': 1}, idempotency_key='one')).id)\n"
        "asyncio.run(main())"
    )
    words, pipe = (sys.executable, "-c", code, str(tmp_path / "new" / "t.db")), asyncio.subprocess.PIPE
    both = [await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=pipe) for _ in range(2)]
    told = await asyncio.gather(*(process.communicate() for process in both))
    assert len({out for out, _ in told}) == 1
    assert len(told[0][0]) == 33


async def test_the_file_holds_no_token_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with Tasks(ops, SQLiteTasks(tmp_path / "t.db")) as tasks:
        handle = await tasks.start("shop.sign", {"year": 1}, identity=ANN, request_id="r-1")
        await asked(tasks, handle)
    files = [each for each in await asyncio.to_thread(lambda: list(tmp_path.rglob("*"))) if each.is_file()]
    assert {oct(each.stat().st_mode & 0o777) for each in files} == {"0o600"}
    assert not any(word in each.read_bytes() for each in files for word in (b"Bearer", b"secret-token"))


# --- NATS ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("guarded")
    users = [
        NATSUser(Identity("edge"), is_edge=True, password="p"),
        NATSUser(Identity("worker"), serves=("shop",), password="p"),
        NATSUser(EVE, password="p"),
    ]
    rules = nats_permissions(ops.list(), users, more=Names().rights)
    server = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder / "store"}" }}\n{rules}')
    server.wait_until_ready()
    yield server
    server.close()


@pytest.fixture
async def peers(guarded: Server) -> AsyncIterator[dict[str, NATSTransport]]:
    made = {name: NATSTransport(guarded.url, user=name, password="p", name=name) for name in ("edge", "worker", "eve")}
    for transport in made.values():
        await transport.connect()
    yield made
    for transport in made.values():
        await transport.close()


async def test_a_caller_of_the_server_reaches_no_task_however_they_try(peers: dict[str, NATSTransport]) -> None:
    from nats.errors import Error

    names = Names()
    edge = Tasks(ops, NATSTasks(peers["edge"]), at_once=0)
    async with Tasks(ops, NATSTasks(peers["worker"], ack_wait=2)):
        handle = await edge.start("shop.sign", {"year": 5}, identity=ANN)
        before = await asked(edge, handle)
        (key,) = before.questions
        eve, heard = peers["eve"].client, []
        place = f"{owner_token(before.owner)}.{before.id}"

        async def hear(message: Any) -> None:
            heard.append(message.subject)

        await eve.subscribe(f"{names.changed}.>", cb=hear)
        await eve.subscribe("$KV.>", cb=hear)
        forged = msgspec.json.encode(before.order)
        for subject, data in (
            (names.key(f"{place}.state"), b"{}"),
            (names.key(f"{place}.cancel"), b"1"),
            (names.key(f"{place}.answer.{'0' * 32}"), msgspec.json.encode({"key": key, "answer": YES})),
            (names.queued(owner_token(before.owner), "shop.sign"), forged),
            (f"$JS.ACK.{names.queue}.x.1.1.1.1.1", b"+ACK"),
        ):
            await eve.publish(subject, data)
        jetstream = eve.jetstream(timeout=0.3)
        for attempt in (
            jetstream.stream_info(names.bucket),
            jetstream.get_msg(names.bucket, subject=names.key(f"{place}.state"), direct=True),
            jetstream.purge_stream(names.bucket),
            jetstream.delete_stream(names.queue),
            jetstream.consumers_info(names.queue),
        ):
            with pytest.raises((Error, TimeoutError)):
                await attempt
        assert await handle.state() == before
        assert heard == []
        await handle.answer({key: YES})
        assert (await handle.result()).data == "5 Ann"


async def test_garbage_in_the_queue_is_kept_aside_and_the_others_go_on(peers: dict[str, NATSTransport]) -> None:
    names = Names()
    edge = Tasks(ops, NATSTasks(peers["edge"]), at_once=0)
    async with Tasks(ops, NATSTasks(peers["worker"], ack_wait=2)) as tasks:
        streams = tasks.store._streams  # type: ignore[attr-defined]
        context = await streams.open()
        for data in (b"", b"garbage", b"\xff\xfe", b'{"id": 1}', os.urandom(1000)):
            await context.publish(names.queued("x", "shop.large"), data)
        assert (await (await edge.start("shop.large", {"size": 300_000})).result()).data == "x" * 300_000
        async with asyncio.timeout(10):
            while len(await streams.keys("dead.*")) < 5:  # noqa: ASYNC110  # of the server
                await asyncio.sleep(0.02)
        with suppress(CallError):
            assert (await context.stream_info(names.queue)).state.messages == 0
