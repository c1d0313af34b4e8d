"""The idempotency store in a bucket of NATS: leases, takeovers, what is written over, and how many nodes keep it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.calls.networks import Server, free_port
from tests.waiting import until

from enfold import CallError, OperationRegistry, ResponseEnvelope, local_envelope
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSIdempotencyStore, NATSTransport
from enfold.calls.protocol.settings import CallSettings
from enfold.calls.transports.nats_streams import BUCKET
from enfold.operations.idempotency import EntryKey, KeyedCall, Run
from enfold.operations.outcomes import envelope_of
from enfold.surfaces.calls import serve_calls

LEASE = 1.0
KEY = EntryKey(("ann", None), "shop.pay", "key")


@pytest.fixture
def server(nats_program: str, tmp_path: Path) -> Iterator[Server]:
    server = Server(nats_program, tmp_path, f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n')
    server.wait_until_ready()
    yield server
    server.close()


class Line:
    """A line to the server that can be held: what is sent meanwhile arrives later."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> str:
        self._listening = await asyncio.start_server(self._connect, "127.0.0.1")
        return f"nats://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    async def close(self) -> None:
        self.release()
        self._listening.close()
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [back, writer]
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._is_open.wait()
            writer.write(data)
        writer.close()


@pytest.fixture
async def line(server: Server) -> AsyncIterator[Line]:
    """The line of the first of the two stores."""
    line = Line(server)
    yield line
    await line.close()


@pytest.fixture
async def stores(server: Server, line: Line) -> AsyncIterator[list[NATSIdempotencyStore]]:
    addresses = [await line.listen(), server.url]
    transports = [NATSTransport(address, name=f"w{number}") for number, address in enumerate(addresses)]
    yield [NATSIdempotencyStore(transport, lease=LEASE) for transport in transports]
    for transport in transports:
        await transport.close()


def call(run: Run, seconds: float = 10.0, *, reruns: bool = False) -> KeyedCall:
    return KeyedCall(KEY, "digest", run, time.monotonic() + seconds, reruns=reruns)


class Paying:
    """A handler that takes its time, and counts its runs."""

    def __init__(self, data: str = "paid") -> None:
        self.runs = 0
        self.go_on = asyncio.Event()
        self._data = data

    async def __call__(self) -> ResponseEnvelope[Any]:
        self.runs += 1
        await self.go_on.wait()
        return local_envelope(self._data, "shop.pay")

    async def begun(self) -> None:
        await until(lambda: self.runs)


async def test_a_call_that_runs_longer_than_a_lease_is_not_taken_for_dead(stores: list[NATSIdempotencyStore]) -> None:
    paying, second = Paying(), Paying("second")
    first = asyncio.create_task(stores[0].run_once(call(paying)))
    await paying.begun()
    with pytest.raises(CallError) as raised:
        await stores[1].run_once(call(second, 3 * LEASE, reruns=True))
    assert (raised.value.code, raised.value.details) == ("TIMEOUT", {"reason": "in_progress"})
    paying.go_on.set()
    assert envelope_of(await first).data == "paid"
    assert envelope_of(await stores[1].run_once(call(second))).data == "paid"
    assert (paying.runs, second.runs) == (1, 0)


async def test_an_entry_that_is_not_renewed_has_an_unknown_outcome_until_its_holder_is_back(
    stores: list[NATSIdempotencyStore], line: Line
) -> None:
    paying, second = Paying(), Paying("second")
    first = asyncio.create_task(stores[0].run_once(call(paying, 60)))
    await paying.begun()
    line.hold()
    with pytest.raises(CallError) as raised:
        await stores[1].run_once(call(second, 60))
    assert (raised.value.code, raised.value.retryable, second.runs) == ("OUTCOME_UNKNOWN", False, 0)
    line.release()
    paying.go_on.set()
    assert envelope_of(await first).data == "paid"
    async with asyncio.timeout(30):
        while (found := await told(stores[1], second)) == "OUTCOME_UNKNOWN":  # noqa: ASYNC110  # a call says
            await asyncio.sleep(0.05)
    assert (found, second.runs) == ("paid", 0)


async def test_a_store_that_takes_no_outcome_does_not_use_up_the_grace_of_its_end(
    stores: list[NATSIdempotencyStore], line: Line
) -> None:
    paying = Paying()
    first = asyncio.create_task(stores[0].run_once(call(paying)))
    await paying.begun()
    line.hold()
    paying.go_on.set()
    assert envelope_of(await first).data == "paid"  # the answer does not wait for the store for long
    async with asyncio.timeout(60):
        await stores[0].close(600)
    line.release()


async def test_a_late_outcome_does_not_replace_that_of_who_took_over(
    stores: list[NATSIdempotencyStore], line: Line
) -> None:
    paying, second = Paying("late"), Paying("second")
    second.go_on.set()
    first = asyncio.create_task(stores[0].run_once(call(paying, 60)))
    await paying.begun()
    line.hold()
    assert envelope_of(await stores[1].run_once(call(second, 60, reruns=True))).data == "second"
    line.release()
    paying.go_on.set()
    assert envelope_of(await first).data == "late"  # its own caller has had this effect
    for store in stores:
        assert await told(store, second) == "second"
    assert second.runs == 1


async def test_a_freed_key_that_another_uses_is_not_removed(stores: list[NATSIdempotencyStore], line: Line) -> None:
    """Purging checks the revision."""
    second, begun, ends = Paying("second"), asyncio.Event(), asyncio.Event()
    second.go_on.set()

    async def fail() -> ResponseEnvelope[Any]:
        begun.set()
        await ends.wait()
        raise CallError("UNAVAILABLE", "not now")

    first = asyncio.create_task(stores[0].run_once(call(fail, 60)))
    await begun.wait()
    line.hold()
    assert envelope_of(await stores[1].run_once(call(second, 60, reruns=True))).data == "second"
    line.release()
    ends.set()
    with pytest.raises(CallError, match="not now"):
        await first
    assert await told(stores[1], second) == "second"
    assert second.runs == 1


async def told(store: NATSIdempotencyStore, run: Run) -> str:
    try:
        return str(envelope_of(await store.run_once(call(run))).data)
    except CallError as error:
        return error.code


async def test_workers_in_one_process_share_their_store_without_configuration(server: Server) -> None:
    runs: list[str] = []

    def shop(name: str) -> OperationRegistry:
        ops = OperationRegistry("shop")

        @ops.mutation
        async def pay() -> str:
            runs.append(name)
            return name

        return ops

    async with (
        NATSTransport(server.url, name="w0") as first,
        NATSTransport(server.url, name="w1") as second,
        NATSTransport(server.url, name="caller") as transport,
        PendingRequestMap(transport) as caller,
    ):
        async with serve_calls(shop("first"), first):
            assert (await caller.call("shop.pay", {}, idempotency_key="k")).data == "first"
        async with serve_calls(shop("second"), second):
            assert (await caller.call("shop.pay", {}, idempotency_key="k")).data == "first"
    assert runs == ["first"]


@pytest.mark.parametrize(("given", "kept_by"), [(None, 3), (1, 1)], ids=["by default", "as configured"])
async def test_three_nodes_of_a_cluster_keep_the_entries(
    nats_program: str, tmp_path: Path, given: int | None, kept_by: int
) -> None:
    routes = [free_port() for _ in range(3)]
    addresses = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
    servers = [
        Server(
            nats_program,
            tmp_path,
            f'server_name: "n{number}"\njetstream {{ store_dir: "{tmp_path / f"store{number}"}" }}\n'
            f'cluster {{ name: "c", listen: "127.0.0.1:{port}", routes: [{addresses}] }}\n',
            name=f"n{number}",
        )
        for number, port in enumerate(routes)
    ]
    try:
        for server in servers:
            server.wait_until_ready()
        paying = Paying()
        paying.go_on.set()
        async with NATSTransport(servers[0].url, name="w") as transport:
            store = NATSIdempotencyStore(transport, replicas=given)
            async with asyncio.timeout(60):
                while await told(store, paying) != "paid":  # noqa: ASYNC110  # until the cluster has a leader
                    await asyncio.sleep(0.1)
            info = await transport.client.jetstream().stream_info(f"KV_{BUCKET}")
        assert (info.config.num_replicas, paying.runs) == (kept_by, 1)
    finally:
        for server in servers:
            server.close()


def init(server: Server, *options: str) -> tuple[int, str]:
    """The exit code of `enfold nats init`, and what it says."""
    command = [sys.executable, "-m", "enfold", "nats", "init", server.url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


async def test_keys_are_divided_among_as_many_buckets_as_the_operator_has_created(
    server: Server, stores: list[NATSIdempotencyStore]
) -> None:
    code, said = await asyncio.to_thread(init, server, "--shards", "3")
    names = [BUCKET, f"{BUCKET}_1", f"{BUCKET}_2"]
    assert (code, re.findall(rf"KV_({BUCKET}\S*) is ready", said)) == (0, names)
    paying = Paying()
    paying.go_on.set()
    keys = [EntryKey(("ann", None), "shop.pay", str(number)) for number in range(30)]
    for key in keys:
        calls = (store.run_once(msgspec.structs.replace(call(paying), key=key)) for store in stores)
        assert {envelope_of(outcome).data for outcome in await asyncio.gather(*calls)} == {"paid"}
    assert paying.runs == len(keys)
    async with NATSTransport(server.url, name="operator") as transport:
        found = [await transport.client.jetstream().stream_info(f"KV_{name}") for name in names]
    assert all(each.state.messages for each in found)
    assert sum(each.state.messages for each in found) == len(keys)
    refused, said = await asyncio.to_thread(init, server, "--shards", "2")
    assert refused != 0
    assert "There are 30 idempotency keys in 3 buckets: stop the workers and wait until the keys have expired" in said
    code, said = await asyncio.to_thread(init, server)
    assert (code, said.count("_idempotency")) == (0, 3)


async def test_without_jetstream_a_library_s_worker_says_so_and_keeps_keys_by_itself(
    nats_program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, runs = Server(nats_program, tmp_path), []
    ops = OperationRegistry("shop")

    @ops.mutation
    async def pay() -> int:
        runs.append(1)
        return len(runs)

    try:
        server.wait_until_ready()
        async with (
            NATSTransport(server.url, name="w") as worker,
            NATSTransport(server.url, name="caller") as transport,
            serve_calls(ops, worker),
            PendingRequestMap(transport) as caller,
        ):
            assert "Idempotency keys are not shared between workers: the NATS server has no JetStream" in caplog.text
            assert [(await caller.call("shop.pay", {}, idempotency_key="k")).data for _ in range(2)] == [1, 1]
    finally:
        server.close()


async def test_a_keyed_call_whose_worker_falls_silent_is_not_sent_again(server: Server) -> None:
    """The library does not know whether the workers share what they keep."""
    requests: list[bytes] = []
    async with (
        NATSTransport(server.url, name="w") as worker,
        NATSTransport(server.url, name="caller") as transport,
        PendingRequestMap(transport, settings=CallSettings(silence=0.3)) as caller,
    ):
        await worker.subscribe("op.*.shop.pay", lambda message: requests.append(message.data), queue="workers")
        with pytest.raises(CallError) as raised:
            await caller.call("shop.pay", {}, timeout=20, idempotency_key="k")
    assert (raised.value.code, raised.value.retryable, len(requests)) == ("UNAVAILABLE", True, 1)
