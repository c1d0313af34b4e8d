"""The NATS topologies of `examples/deploy/topologies`, on real servers: leaf nodes and accounts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.calls.networks import free_port
from tests.serving import is_listening
from tests.waiting import PATIENCE
from tests.waiting import wait_for as wait_until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
SECRETS = {
    "NATS_EDGE": "edge-secret",
    "NATS_WORKER": "worker-secret",
    "NATS_OPERATOR": "operator-secret",
    "NATS_SITE": "site-secret",
    "NATS_ACME": "acme-secret",
    "NATS_GLOBEX": "globex-secret",
}
IDENTITIES = {name: Identity(name, frozenset({"shop:order"})) for name in ("edge", "ACME", "GLOBEX")}


class Node:
    """A nats-server with a file of the examples, at ports of its own."""

    def __init__(self, program: str, name: str, folder: Path, ports: dict[int, int], **variables: str) -> None:
        text = (DEPLOY / "topologies" / f"{name}.conf").read_text().replace("/tmp/hub", str(folder / "streams"))
        for old, new in ports.items():
            text = text.replace(f"port: {old}\n", f'listen: "127.0.0.1:{new}"\n')
        self._file = folder / f"{name}.conf"
        self._file.write_text(text)
        (folder / "permissions.conf").write_text((DEPLOY / "permissions.conf").read_text())
        self._port = ports[4222]
        self._command = [program, "-c", str(self._file)]
        self._environ = {**os.environ, **SECRETS, **variables}
        self.start()

    def start(self) -> None:
        with self._file.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environ, stdout=log, stderr=log)
        wait_until(lambda: is_listening(self._port))

    def address(self, user: str) -> str:
        return f"nats://{user}:{SECRETS[f'NATS_{user.upper()}']}@127.0.0.1:{self._port}"

    def connect(self, user: str) -> NATSTransport:
        return NATSTransport(self.address(user), name=user, identities=IDENTITIES)

    def connect_account(self, user: str) -> NATSTransport:
        return NATSTransport(self.address(user), name=user, identities=IDENTITIES, identity_from="account")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def shop(place: str) -> OperationRegistry:
    """The operations of `examples/deploy/app.py`, which say where they run and for whom."""
    ops = OperationRegistry("shop")

    @ops.query
    async def price(item: str, context: Context) -> list[str | None]:
        return [place, context.identity.id if context.identity else None]

    @ops.mutation(access={"required_scopes": ["shop:order"]})
    async def order(item: str) -> str:
        return place

    return ops


# --- a leaf node --------------------------------------------------------------------------------------------------


class Sites(NamedTuple):
    hub: Node
    leaf: Node


@pytest.fixture
def sites(nats_program: str, tmp_path: Path) -> Iterator[Sites]:
    folders = [tmp_path / name for name in ("hub", "leaf")]
    for folder in folders:
        folder.mkdir()
    joins = free_port()
    hub = Node(nats_program, "hub", folders[0], {4222: free_port(), 7422: joins})
    url = f"nats-leaf://site:{SECRETS['NATS_SITE']}@127.0.0.1:{joins}"
    leaf = Node(nats_program, "leaf", folders[1], {4222: free_port()}, HUB_URL=url)
    yield Sites(hub, leaf)
    hub.kill()
    leaf.kill()


@asynccontextmanager
async def working(node: Node, place: str) -> AsyncIterator[None]:
    async with node.connect("worker") as transport, serve_calls(shop(place), transport):
        yield


async def until(caller: PendingRequestMap, place: str) -> None:
    """Wait until calls are answered there, which servers tell each other after a moment."""
    async with asyncio.timeout(PATIENCE):
        while await answering(caller) != place:  # noqa: ASYNC110  # a call says when
            await asyncio.sleep(0.05)


async def answering(caller: PendingRequestMap) -> str:
    try:
        return str((await caller.call("shop.price", {"item": "tea"}, timeout=5)).data[0])
    except CallError as error:
        return error.code


async def test_a_site_prefers_its_own_workers_and_continues_without_the_centre(sites: Sites) -> None:
    async with (
        sites.leaf.connect("edge") as transport,
        PendingRequestMap(transport) as edge,
        working(sites.hub, "centre"),
    ):
        await until(edge, "centre")
        async with working(sites.leaf, "site"):
            await until(edge, "site")
            assert {await answering(edge) for _ in range(50)} == {"site"}
            sites.hub.kill()
            assert {await answering(edge) for _ in range(50)} == {"site"}
        assert await answering(edge) == "UNAVAILABLE"
        sites.hub.start()
        await until(edge, "centre")


async def test_a_site_calls_operations_of_the_centre_with_a_key(sites: Sites) -> None:
    created = await asyncio.to_thread(enfold, "nats", "init", sites.hub.address("operator"))
    assert created.returncode == 0, created.stderr
    async with sites.leaf.connect("edge") as transport, PendingRequestMap(transport) as edge:
        for place in ("centre", "centre, later"):
            async with working(sites.hub, place):
                await until(edge, place)
                assert await ordered(edge) == "centre"  # the first outcome, whichever worker answers


async def ordered(edge: PendingRequestMap) -> str:
    outcome = await edge.call("shop.order", {"item": "tea"}, idempotency_key="order-1", timeout=PATIENCE)
    return str(outcome.data)


def enfold(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


# --- accounts -----------------------------------------------------------------------------------------------------


async def test_customers_call_from_their_own_accounts_and_see_nothing_of_each_other(
    nats_program: str, tmp_path: Path
) -> None:
    node = Node(nats_program, "accounts", tmp_path, {4222: free_port()})
    heard: list[str] = []
    try:
        async with (
            node.connect_account("worker") as worker,
            serve_calls(shop("here"), worker),
            node.connect_account("acme") as acme,
            node.connect_account("globex") as globex,
            from_calls(acme) as found,
            PendingRequestMap(globex) as other,
        ):
            await acme.subscribe(">", lambda message: heard.append(message.subject))
            mine = OperationRegistry()
            mine.register_all(found)
            assert (await mine.execute("shop.price", {"item": "tea"})).data == ["here", "ACME"]
            heard.clear()
            assert (await other.call("shop.price", {"item": "tea"})).data == ["here", "GLOBEX"]
            assert heard == []
            assert (await mine.execute("shop.order", {"item": "tea"})).data == "here"
            assert heard != []  # it would have heard the other's as well
    finally:
        node.kill()
