import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO, StringIO
from typing import Any

import pytest
from tests.waiting import PATIENCE, wait_for

from enfold import App, CallError, Context, OperationRegistry
from enfold.calls.memory import MemoryTransport
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.command_line import to_command_line
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp


class Shop:
    """A registry with something to open and close, and what happened to it."""

    def __init__(self, *, is_async: bool) -> None:
        self.events: list[str] = []
        self.ops = ops = OperationRegistry("shop")

        @ops.query
        def stock() -> int:
            self.events.append("call")
            return 3

        async def open_later() -> None:
            await asyncio.sleep(0)
            self.events.append("open")

        ops.on_start(open_later if is_async else lambda: self.events.append("open"))
        ops.on_stop(lambda: self.events.append("close"))


@pytest.fixture(params=[False, True], ids=["def", "async def"])
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop(is_async=request.param)


async def test_resources_are_opened_once_before_the_first_call(shop: Shop) -> None:
    await asyncio.gather(*(shop.ops.execute("shop.stock") for _ in range(3)))
    assert shop.events == ["open", "call", "call", "call"]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_resources_are_opened_once_for_calls_of_several_threads(is_async: bool) -> None:
    ops, events, may_open = OperationRegistry("shop"), list[str](), threading.Event()

    def open_slowly() -> None:
        events.append("opening")
        assert may_open.wait(PATIENCE)
        events.append("open")

    async def open_later() -> None:
        await asyncio.to_thread(open_slowly)

    ops.on_start(open_later if is_async else open_slowly)

    @ops.query
    def stock() -> list[str]:
        return [*events]

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(ops.execute_now, "shop.stock") for _ in range(4)]
        wait_for(lambda: "opening" in events)
        may_open.set()
        assert [call.result(PATIENCE).data for call in calls] == [["opening", "open"]] * 4


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
async def test_on_start_and_on_stop_may_call_operations(is_async: bool) -> None:
    ops, seen = OperationRegistry("shop"), list[Any]()

    @ops.query
    def stock() -> int:
        return len(seen)

    async def call_later() -> None:
        seen.append((await ops.execute("shop.stock")).data)

    def call() -> None:
        seen.append(ops.execute_now("shop.stock").data)

    ops.on_start(call_later if is_async else call)
    ops.on_stop(call_later if is_async else call)
    for expected in ([0, 1], [0, 1, 2, 3]):
        async with asyncio.timeout(PATIENCE):
            await live(to_http(ops), ["startup", "shutdown"])
        assert seen == expected


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("take", ["register_all", "view", "chain", "late hooks"])
async def test_a_registry_starts_and_stops_with_one_that_takes_its_operations(is_async: bool, take: str) -> None:
    shop, whole = Shop(is_async=is_async), OperationRegistry()
    whole.on_start(lambda: shop.events.append("whole open"))
    whole.on_stop(lambda: shop.events.append("whole close"))
    if take == "chain":
        middle = OperationRegistry()
        middle.register_all(shop.ops)
        whole.register_all(middle)
    elif take == "late hooks":
        part = OperationRegistry("part")
        whole.register_all(part)
        part.on_start(lambda: shop.events.append("open"))
        part.on_stop(lambda: shop.events.append("close"))
        whole.register(shop.ops.get("shop.stock"))
    else:
        whole.register_all(
            shop.ops if take == "register_all" else shop.ops.mount("north").rename({"north.shop.stock": "shop.stock"})
        )
    for _ in range(2):
        shop.events.clear()
        async with App(whole):
            await whole.execute("shop.stock")
        assert shop.events == ["open", "whole open", "call", "whole close", "close"]


async def test_a_registry_that_two_others_have_taken_starts_once_and_stops_with_the_last(shop: Shop) -> None:
    first, second = OperationRegistry(), OperationRegistry()
    first.register_all(shop.ops)
    second.register_all(shop.ops)
    async with App(first):
        for other in (second, shop.ops):
            async with App(other):
                assert shop.events == ["open"]
        assert shop.events == ["open"]
    assert shop.events == ["open", "close"]


async def test_a_registry_that_is_taken_later_starts_with_the_next_call(shop: Shop) -> None:
    whole = OperationRegistry()
    async with App(whole):
        whole.register_all(shop.ops)
        await whole.execute("shop.stock")
        assert shop.events == ["open", "call"]
    assert shop.events == ["open", "call", "close"]


def test_a_command_opens_and_closes(shop: Shop) -> None:
    assert to_command_line(shop.ops, ["shop.stock"], stdout=StringIO()) == 0
    assert shop.events == ["open", "call", "close"]


def test_a_cgi_program_opens_and_closes(shop: Shop) -> None:
    out = BytesIO()
    to_cgi(shop.ops, environ={"PATH_INFO": "/stock"}, stdin=BytesIO(b""), stdout=out)
    assert json.loads(out.getvalue().partition(b"\r\n\r\n")[2]) == {"result": 3}
    assert shop.events == ["open", "call", "close"]


async def test_calls_from_afar_open_and_close(shop: Shop) -> None:
    async with serve_calls(shop.ops, MemoryTransport()):
        assert shop.events == ["open"]
    assert shop.events == ["open", "close"]


async def live(app: Any, messages: list[str]) -> None:
    """One lifespan of an ASGI app."""
    todo, done = asyncio.Queue[dict[str, Any]](), list[str]()
    for message in messages:
        todo.put_nowait({"type": f"lifespan.{message}"})

    async def send(message: dict[str, Any]) -> None:
        done.append(message["type"])

    await app({"type": "lifespan"}, todo.get, send)
    assert done == [f"lifespan.{message}.complete" for message in messages]


async def test_two_apps_of_one_server_share_what_is_opened(shop: Shop) -> None:
    await live(to_http(shop.ops, mounts={"/mcp": to_mcp(shop.ops)}), ["startup", "shutdown"])
    assert shop.events == ["open", "close"]


async def test_a_start_that_fails_is_reported_and_tried_again() -> None:
    ops, tries = OperationRegistry("t"), list[int]()

    @ops.on_start
    async def connect() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no database")

    @ops.query
    async def ask() -> int:
        return 1

    with pytest.raises(CallError, match="no database"):
        await ops.execute("t.ask")
    assert (await ops.execute("t.ask")).data == 1


async def test_on_start_functions_registered_after_the_start_are_refused() -> None:
    shop = Shop(is_async=False)
    await shop.ops.execute("shop.stock")
    with pytest.raises(RuntimeError, match="before the first call"):
        shop.ops.on_start(lambda: None)


# options, streams and failures of composed calls


def test_a_misspelt_option_is_reported_with_the_right_one() -> None:
    ops = OperationRegistry()
    with pytest.raises(TypeError, match="Unknown option timout for f: did you mean timeout"):

        @ops.query(timout=5)  # type: ignore[call-overload, untyped-decorator]  # which mypy refuses, too
        def f() -> int:
            return 1


async def test_a_generator_that_blocks_is_a_stream() -> None:
    ops, closed = OperationRegistry("t"), list[str]()

    @ops.subscription
    def lines(context: Context) -> Iterator[int]:
        try:
            for number in range(3):
                context.progress(number)
                yield number
        finally:
            closed.append("closed")

    assert [item.data async for item in ops.subscribe("t.lines")] == [0, 1, 2]
    stream = ops.subscribe("t.lines")
    assert (await anext(stream)).data == 0
    await stream.aclose()
    assert closed == ["closed", "closed"]


async def test_a_failure_inside_a_composition_names_the_operation_that_failed() -> None:
    ops = OperationRegistry("t")

    @ops.query
    async def pay() -> int:
        raise ValueError("card refused")

    @ops.query
    async def order(context: Context) -> Any:
        return (await context.env.t.pay()).data

    @ops.query
    async def shop(context: Context) -> Any:
        return (await context.env.t.order()).data

    with pytest.raises(CallError, match=r"^t\.pay: card refused$"):
        await ops.execute("t.shop")


def test_the_description_of_the_result_in_a_docstring_is_in_its_schema() -> None:
    ops = OperationRegistry("t")

    @ops.query
    def area(side: float) -> float:
        """The area of a square.

        Args:
            side: In metres.

        Returns:
            The area in square metres.
        """
        return side * side

    assert ops.get_spec("t.area").output_schema == {"type": "number", "description": "The area in square metres."}
