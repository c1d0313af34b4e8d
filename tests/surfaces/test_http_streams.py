import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any, Self

import msgspec
import pytest
from tests.serving import Client, serve

from enfold import CallError, Context, OperationRegistry, http_envelope
from enfold.surfaces.http import HTTPApp, HTTPSettings, to_http


def counter() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.subscription
    async def count(to: int, fail_at: int | None = None) -> AsyncIterator[int]:
        for number in range(to):
            if number == fail_at:
                raise CallError("SOLD_OUT", "no more numbers")
            yield number

    @ops.subscription(resumable=True)
    async def numbers(context: Context, to: int = 3) -> AsyncIterator[int]:
        for number in range(int(context.last_event_id or 0), to):
            context.event_id = str(number + 1)
            yield number

    @ops.subscription(resumable=True)
    async def relayed() -> AsyncIterator[Any]:
        yield http_envelope("a", last_event_id="first")
        yield http_envelope("b")

    @ops.subscription
    async def forgetful(context: Context) -> AsyncIterator[str | None]:
        context.event_id = "1"
        yield context.last_event_id

    @ops.subscription(access={"required_scopes": ["count"]})
    async def guarded() -> AsyncIterator[int]:
        yield 1

    @ops.subscription
    async def silent() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    return ops


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(to_http(counter(), HTTPSettings(heartbeat=0.05))) as client:
        yield client


class Event(msgspec.Struct, frozen=True):
    """One block of an event stream, field by field."""

    fields: dict[str, str]

    @property
    def data(self) -> Any:
        return json.loads(self.fields["data"])


def events(body: bytes) -> list[Event]:
    """The blocks of a stream; each must be complete."""
    assert body.endswith(b"\n\n")
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    return [Event(dict(line.split(": ", 1) for line in block.split("\n"))) for block in blocks if block != ":"]


def lines(body: bytes) -> list[Any]:
    assert body.endswith(b"\n")
    return [json.loads(line) for line in body.splitlines()]


# --- events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [None, "*/*", "text/event-stream", "application/json, text/event-stream", "text/*"])
def test_a_subscription_is_sent_as_events_with_a_marked_end(client: Client, accept: str | None) -> None:
    answer = client.get("/functions/count?to=2", **({} if accept is None else {"Accept": accept}))
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert [event.fields for event in events(answer.body)] == [
        {"retry": "2000"},
        {"data": '{"result":0}'},
        {"data": '{"result":1}'},
        {"event": "complete", "data": '{"complete":true}'},
    ]


def test_a_stream_can_be_asked_for_by_post_and_in_another_format(client: Client) -> None:
    answer = client.post("/functions/count?format=envelope", {"to": 1})
    first = events(answer.body)[1].data
    assert (first["data"], first["meta"]["operationId"]) == (0, "shop.count")


def test_a_failure_in_the_middle_is_reported_as_such(client: Client) -> None:
    *_, last = events(client.get("/functions/count?to=3&fail_at=1").body)
    assert (last.fields["event"], last.data) == ("error", {"error": "Function error: no more numbers"})
    *_, last = events(client.get("/functions/count?to=3&fail_at=1", Enfold_Format="envelope").body)
    assert last.data["error"]["code"] == "SOLD_OUT"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/functions/count", 400, "VALIDATION_ERROR"),
        ("/functions/count?to=3&fail_at=0", 500, "SOLD_OUT"),
        ("/functions/guarded", 401, "ACCESS_DENIED"),
    ],
)
def test_a_failure_before_the_first_item_has_its_status(client: Client, path: str, status: int, code: str) -> None:
    answer = client.get(path)
    assert (answer.status, answer.headers["enfold-code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"


def test_an_empty_stream_only_ends(client: Client) -> None:
    assert [event.fields.get("event") for event in events(client.get("/functions/count?to=0").body)] == [
        None,
        "complete",
    ]


@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/event-stream;q=0"])
def test_a_caller_who_takes_no_stream_is_refused(client: Client, accept: str) -> None:
    answer = client.get("/functions/count?to=1", Accept=accept)
    assert (answer.status, answer.headers["enfold-code"]) == (406, "VALIDATION_ERROR")


def test_a_head_of_a_stream_does_not_start_it(client: Client) -> None:
    answer = client.request("HEAD", "/functions/silent")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")


# --- lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/x-ndjson, */*", "application/*"])
def test_a_subscription_is_sent_as_lines_where_they_are_preferred(client: Client, accept: str) -> None:
    answer = client.get("/functions/count?to=2", Accept=accept)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert lines(answer.body) == [{"result": 0}, {"result": 1}, {"complete": True}]


def test_lines_end_with_the_failure_there_was(client: Client) -> None:
    body = client.get("/functions/count?to=2&fail_at=1", Accept="application/x-ndjson").body
    assert lines(body) == [{"result": 0}, {"complete": False, "error": "Function error: no more numbers"}]


# --- ids ----------------------------------------------------------------------------------------------------------


def test_a_resumable_stream_has_ids_and_continues_after_the_last(client: Client) -> None:
    assert [event.fields.get("id") for event in events(client.get("/functions/numbers").body)] == [
        None,
        "1",
        "2",
        "3",
        None,
    ]
    rest = events(client.get("/functions/numbers", Last_Event_ID="2").body)
    assert [event.data for event in rest[1:]] == [{"result": 2}, {"complete": True}]


def test_an_id_that_came_with_the_envelope_is_passed_on_and_not_given_twice(client: Client) -> None:
    assert [event.fields.get("id") for event in events(client.get("/functions/relayed").body)[1:3]] == ["first", None]


def test_a_stream_that_cannot_be_resumed_has_no_ids_and_ignores_given_ones(client: Client) -> None:
    answer = client.get("/functions/forgetful", Last_Event_ID="7")
    assert [event.fields for event in events(answer.body)][1] == {"data": '{"result":null}'}


def test_a_client_that_is_cut_off_twenty_times_sees_every_item_once(client: Client) -> None:
    seen: list[int] = []
    last_id, cuts, ended = "0", 0, False
    while not ended:
        with open_stream(client, "/functions/numbers?to=2000", {"Last-Event-ID": last_id}) as stream:
            taken = 0
            for event in stream:
                ended = event.fields.get("event") == "complete"
                if "id" in event.fields:
                    seen.append(event.data["result"])
                    last_id, taken = event.fields["id"], taken + 1
                if cuts < 20 and taken == 37:
                    cuts += 1
                    break
    assert cuts == 20
    assert seen == list(range(2_000))


class OpenStream:
    """A stream that is read as it comes."""

    def __init__(self, client: Client, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        self._connection.request("GET", path, headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        while (block := self.block()) is not None:
            if block != [":"]:
                yield Event(dict(line.split(": ", 1) for line in block))

    def block(self) -> list[str] | None:
        found: list[str] = []
        for line in iter(self._response.readline, b""):
            if line == b"\n":
                return found
            found.append(line.decode().removesuffix("\n"))
        return None


def open_stream(client: Client, path: str, headers: dict[str, str] | None = None) -> OpenStream:
    return OpenStream(client, path, headers or {})


# --- time ---------------------------------------------------------------------------------------------------------


def test_a_stream_without_items_opens_and_sends_heartbeats(client: Client) -> None:
    with open_stream(client, "/functions/silent") as stream:
        assert [stream.block() for _ in range(3)] == [["retry: 2000"], [":"], [":"]]


def test_a_caller_can_limit_the_time_of_a_stream(client: Client) -> None:
    answer = client.get("/functions/silent", Enfold_Timeout_Ms="20")
    assert (answer.status, answer.headers["enfold-code"]) == (504, "TIMEOUT")


def test_when_the_server_stops_streams_end_with_a_reason() -> None:
    app = to_http(counter(), HTTPSettings(heartbeat=0.05))
    with serve(app) as client:
        with open_stream(client, "/functions/silent") as stream:
            stream.block()
            client.server.run_there(app.stop)
            *_, last = list(stream)
        assert (last.fields["event"], last.data) == ("error", {"error": "The server is shutting down"})
        assert client.get("/functions/count?to=1").status == 503
        assert client.get("/healthz").status == 200


# --- clients that leave, and clients that do not read -------------------------------------------------------------


class Life:
    """Counts the streams that have begun and ended, and what the last one has produced."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.begun = self.ended = self.produced = 0

    def tell(self, **changes: int) -> None:
        with self._changed:
            for name, by in changes.items():
                setattr(self, name, getattr(self, name) + by)
            self._changed.notify_all()

    def wait(self, ended: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.ended >= ended, 30)


def endless(life: Life) -> HTTPApp:
    ops = OperationRegistry("shop")

    @ops.subscription
    async def flood(size: int = 10, idle: float = 0.0) -> AsyncIterator[str]:
        life.tell(begun=1)
        try:
            while True:
                life.tell(produced=1)
                yield "x" * size
                await asyncio.sleep(idle)
        finally:
            life.tell(ended=1)

    return to_http(ops)


@pytest.mark.parametrize("path", ["/functions/flood", "/functions/flood?idle=60"], ids=["busy", "waiting"])
def test_when_the_client_goes_the_producer_is_stopped(path: str) -> None:
    life = Life()
    with serve(endless(life)) as client:
        with open_stream(client, path) as stream:
            stream.block()
        assert life.wait(1)


def test_a_client_that_does_not_read_slows_the_producer_down() -> None:
    life = Life()
    with serve(endless(life)) as client:
        with closing(_asking(client, "/functions/flood?size=100000")):
            produced = -1
            # Buffers fill up, then nothing more is produced, however often one looks.
            while produced != life.produced or not produced:
                produced = life.produced
                threading.Event().wait(0.2)
            assert produced < 1_000
        assert life.wait(1)


def test_many_abrupt_ends_leave_nothing_behind() -> None:
    life = Life()
    with serve(endless(life)) as client:
        tasks = client.server.task_count()
        for _ in range(100):
            connection = _asking(client, "/functions/flood?idle=0.001")
            connection.recv(10)
            # A reset, not a farewell.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        assert life.wait(100)
        assert (life.begun, life.ended) == (100, 100)
        # Each look lets the loop turn once, and with it the last tasks end.
        assert any(client.server.task_count() <= tasks for _ in range(1_000))


def _asking(client: Client, path: str) -> socket.socket:
    connection = client.connect()
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection
