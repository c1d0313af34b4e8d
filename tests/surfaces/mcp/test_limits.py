"""Limits of one client of a server: sessions, resumable bytes, subscriptions, batches; other clients are not affected."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.surfaces.mcp.conftest import BOTH, HANDSHAKE, Client

from enfold import Context, OperationRegistry
from enfold.mcp.json_rpc import ProtocolError, RPCNotification, parse_batch
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.limits import Limits
from enfold.surfaces.mcp import MCPSettings, to_mcp
from enfold.surfaces.mcp.request import MCPEndpoint, MCPRequest
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.sessions import EventStream, ResumeBuffer, Sessions

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import MakeClient

    from enfold.auth.tokens import Tokens

SMALL = Limits(
    sessions=6,
    sessions_per_identity=4,
    resume_bytes=300_000,
    resume_bytes_per_identity=100_000,
    subscriptions=3,
    batch_entries=5,
    batch_bytes=1_000,
)


@pytest.fixture
def calls(ops: OperationRegistry) -> asyncio.Event:
    """Set when `shop_wait` has begun, which never ends."""
    begun = asyncio.Event()

    @ops.query
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    @ops.query
    async def text(context: Context, length: int) -> str:
        context.progress(1)
        return "x" * length

    return begun


# --- sessions -----------------------------------------------------------------------------------------------------


async def test_opening_many_sessions_evicts_only_the_same_identity_s_sessions(
    ops: OperationRegistry, tokens: Tokens
) -> None:
    app = to_mcp(ops, tokens=tokens, limits=SMALL)
    ann = Client(app, HANDSHAKE, "ann-token")
    await ann.initialize()
    bobs = [Client(app, HANDSHAKE, "bob-token") for _ in range(20)]
    for bob in bobs:
        await bob.initialize()
    assert await ann.result("ping") == {}
    statuses = [(await bob.begin("ping").began()).status for bob in bobs]
    assert statuses == [404] * 16 + [200] * 4


async def test_the_session_that_is_used_stays(ops: OperationRegistry) -> None:
    app = to_mcp(ops, limits=SMALL)
    used = Client(app, HANDSHAKE)
    await used.initialize()
    for _ in range(20):
        await Client(app, HANDSHAKE).initialize()
        assert await used.result("ping") == {}


async def test_a_session_with_a_running_call_goes_last(ops: OperationRegistry, calls: asyncio.Event) -> None:
    app = to_mcp(ops, limits=SMALL)
    busy = Client(app, HANDSHAKE)
    await busy.initialize()
    running = busy.begin("tools/call", {"name": "shop_wait"})
    await calls.wait()
    for _ in range(20):
        await Client(app, HANDSHAKE).initialize()
    assert await busy.result("ping") == {}
    await busy.send("DELETE").body()
    await running.messages()


@pytest.mark.parametrize("accept", [BOTH, "application/json", "text/event-stream, application/json"])
async def test_a_running_call_is_answered_when_its_session_ends(
    ops: OperationRegistry, calls: asyncio.Event, accept: str
) -> None:
    client = Client(to_mcp(ops, limits=SMALL), HANDSHAKE)
    await client.initialize()
    message = client.message("tools/call", {"name": "shop_wait"})
    running = client.post(message, {**client.headers(), "accept": accept})
    await calls.wait()
    await client.send("DELETE").body()
    [answer] = await running.messages()
    assert answer["id"] == message["id"]
    assert answer["error"]["message"] == "The session was closed before the response: initialize again"
    assert answer["error"]["data"]["enfold/error"]["code"] == "ABORTED"


async def test_where_all_sessions_are_taken_a_new_client_gets_retry_after(
    ops: OperationRegistry, tokens: Tokens
) -> None:
    app = to_mcp(ops, tokens=tokens, limits=Limits(sessions=2))
    for _ in range(2):
        await Client(app, HANDSHAKE, "ann-token").initialize()
    bob = Client(app, HANDSHAKE, "bob-token")
    refused = await bob.begin("initialize", {"protocolVersion": HANDSHAKE}).began()
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    assert (await refused.json())["error"]["message"] == "Too many sessions: retry later"


# --- bytes to come back for ---------------------------------------------------------------------------------------


def kept_bytes() -> int:
    """How much is kept for resuming in this process."""
    gc.collect()
    return sum(each.size for each in gc.get_objects() if isinstance(each, ResumeBuffer))


async def test_stored_streams_are_limited_over_all_sessions(
    ops: OperationRegistry, tokens: Tokens, calls: asyncio.Event
) -> None:
    app = to_mcp(ops, tokens=tokens, limits=SMALL)
    for token in ("ann-token", "bob-token"):
        for _ in range(3):
            client = Client(app, HANDSHAKE, token)
            await client.initialize()
            for _ in range(5):
                message = client.message(
                    "tools/call", {"name": "shop_text", "arguments": {"length": 20_000}}, {"progressToken": 1}
                )
                assert len((await client.post(message, client.headers()).messages())[-1]["result"]["content"]) == 1
    assert 50_000 < kept_bytes() <= 200_000


async def test_an_answer_larger_than_what_may_be_kept_arrives_anyway(
    ops: OperationRegistry, calls: asyncio.Event
) -> None:
    client = Client(to_mcp(ops, limits=SMALL), HANDSHAKE)
    await client.initialize()
    arguments = {"name": "shop_text", "arguments": {"length": 400_000}}
    answer = await client.ask("tools/call", arguments, {"progressToken": 1})
    assert len(answer["result"]["structuredContent"]["result"]) == 400_000
    assert kept_bytes() < 1_000


async def test_a_client_that_resumes_after_eviction_gets_new_messages(
    ops: OperationRegistry, calls: asyncio.Event
) -> None:
    client = Client(to_mcp(ops, limits=SMALL), HANDSHAKE)
    await client.initialize()
    arguments = {"name": "shop_text", "arguments": {"length": 90_000}}
    first = [event_id async for event_id, _ in client.begin("tools/call", arguments, {"progressToken": 1}).answers()]
    await client.ask("tools/call", arguments, {"progressToken": 1})
    again = client.get(last_event_id=first[0])
    await again.began()
    ops.query(name="new")(lambda: 1)
    async for _, message in again.answers():
        if message is not None:
            assert message["method"] == "notifications/tools/list_changed"
            return
    pytest.fail("there were no news")


def test_the_largest_owner_is_evicted_first() -> None:
    kept = ResumeBuffer(Limits(resume_bytes=100_000, resume_bytes_per_identity=80_000))
    large = [EventStream(kept, "ann") for _ in range(4)]
    for stream in large:
        stream.send(RPCNotification("text", "x" * 19_000))
    small = EventStream(kept, "bob")
    small.send(RPCNotification("text", "x" * 40_000))
    assert kept.size <= 100_000
    assert small.size > 40_000
    assert large[0].size == 0
    for stream in [*large, small]:
        stream.release()
    assert kept.size == 0
    again = EventStream(kept, "ann")  # nothing counts against its owner any more
    again.send(RPCNotification("text", "x" * 70_000))
    assert again.size > 70_000


def test_unread_notifications_are_limited_in_bytes() -> None:
    stream = EventStream()
    for _ in range(500):
        stream.send(RPCNotification("text", "x" * 100_000))
    assert stream.size < 1_100_000
    stream.send(RPCNotification("text", "y" * 2_000_000), is_last=True)
    assert stream.size > 2_000_000


# --- subscriptions ------------------------------------------------------------------------------------------------


async def test_the_followed_resources_of_a_session_are_limited(make_client: MakeClient, ops: OperationRegistry) -> None:
    for number in range(5):
        ops.resource(f"shop://{number}", name=f"page{number}")(lambda: "text")
    client = make_client(ops, HANDSHAKE, limits=SMALL)
    await client.initialize()
    for number in range(3):
        assert await client.result("resources/subscribe", {"uri": f"shop://{number}"}) == {}
    refused = await client.ask("resources/subscribe", {"uri": "shop://3"})
    assert refused["error"]["message"] == "At most 3 subscriptions are allowed"
    assert refused["error"]["data"]["enfold/error"]["code"] == "RESOURCE_EXHAUSTED"
    await client.result("resources/unsubscribe", {"uri": "shop://0"})
    assert await client.result("resources/subscribe", {"uri": "shop://3"}) == {}


async def test_the_resources_of_a_listen_request_are_limited(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.resource("shop://{number}", name="page")(lambda number: number)
    client = make_client(ops, limits=SMALL)
    asked = {"resourceSubscriptions": [f"shop://{number}" for number in range(4)]}
    refused = await client.ask("subscriptions/listen", {"notifications": asked})
    assert refused["error"]["message"] == "At most 3 subscriptions are allowed"
    asked = {"resourceSubscriptions": ["shop://" + "x" * 10_000]}
    refused = await client.ask("subscriptions/listen", {"notifications": asked})
    assert refused["error"]["message"] == "The URI of a subscription may have at most 8192 characters"


# --- batches ------------------------------------------------------------------------------------------------------


def batch(*requests: dict[str, Any]) -> bytes:
    return json.dumps(list(requests)).encode()


async def test_the_messages_of_a_batch_are_limited(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops, "2025-03-26", limits=SMALL)
    await client.initialize()
    refused = await client.post(batch(*[client.message("ping")] * 6)).began()
    assert refused.status == 400
    assert (await refused.json())["error"]["message"] == "An array may have at most 5 messages: send several arrays"
    assert len(await client.post(batch(*[client.message("ping")] * 5)).json()) == 5


async def test_the_answers_to_a_batch_end_at_a_size(
    make_client: MakeClient, ops: OperationRegistry, calls: asyncio.Event
) -> None:
    client = make_client(ops, "2025-03-26", limits=SMALL)
    await client.initialize()
    call = {"name": "shop_text", "arguments": {"length": 600}}
    answers = await client.post(batch(*[client.message("tools/call", call) for _ in range(5)])).json()
    codes = [answer.get("error", {}).get("data", {}).get("enfold/error", {}).get("code") for answer in answers]
    assert codes[0] is None
    assert codes[2:] == ["PAYLOAD_TOO_LARGE"] * 3


@pytest.mark.parametrize(
    "text",
    [b"[" + b"1," * 1_000_000 + b"1]", b"[" + b"{}," * 1_000_000 + b"{}]", b"[{}]"],
    ids=["numbers", "objects", "one"],
)
def test_an_array_of_anything_else_is_not_even_counted(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="Not an array of messages"):
        parse_batch(text)


# --- a listening client -------------------------------------------------------------------------------------------


async def test_a_stream_that_has_begun_is_not_begun_again_to_break_the_silence(ops: OperationRegistry) -> None:
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    authentication = Authentication(ops, None, Hosts(), allow_anonymous=False)
    endpoint = MCPEndpoint(MCPServer(ops, MCPSettings()), authentication, 1_000, Sessions(SMALL))
    headers = {b"accept": b"text/event-stream"}
    scope = {"type": "http", "method": "POST"}
    request = MCPRequest(receive, scope=scope, send=send, headers=headers, endpoint=endpoint, identity=None)
    stream = EventStream()
    carrying = asyncio.create_task(request.carry(stream))
    await asyncio.sleep(0)
    request.begin_heartbeats()
    await asyncio.sleep(0)
    stream.end()
    await carrying
    await request.abandon()
    assert sent == ["http.response.start", "http.response.body"]
