"""Headers that a handler or middleware adds: a repeated call and a task give those of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from enfold import Call, CallError, Context, MediaType, Next, OperationRegistry, Outcome
from enfold.middleware.idempotency_store import MemoryIdempotencyStore
from enfold.middleware.sqlite_store import SQLiteIdempotencyStore
from enfold.operations.idempotency import IdempotencyStore
from enfold.surfaces.http import to_http
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import TaskStore
from enfold.testing.asgi import Conversation, living

NAME = 'attachment; filename="order.pdf"'

STORES: dict[str, Callable[[Path], IdempotencyStore]] = {
    "memory": lambda _: MemoryIdempotencyStore(),
    "SQLite": lambda folder: SQLiteIdempotencyStore(folder / "keys.db"),
}
TASKS: dict[str, Callable[[Path], TaskStore]] = {
    "memory": lambda _: MemoryTasks(),
    "SQLite": lambda folder: SQLiteTasks(folder / "tasks.db"),
}


def shop(*, durable: Any = False) -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.middleware
    async def tagged(call: Call, next: Next) -> Outcome:
        call.context.set_header("X-Tag", call.operation.spec.name)
        return await next(call)

    @ops.mutation(durable=durable)
    async def order(number: int, context: Context) -> Annotated[bytes, MediaType("application/pdf")]:
        await asyncio.sleep(0)
        if number == 13:
            raise CallError("SOLD_OUT", "Nothing left")
        context.set_header("Content-Disposition", NAME)
        return b"%PDF"

    return ops


class Shop:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def ask(self, path: str, number: int, method: str = "POST", **headers: str) -> Conversation:
        sent = {"host": "localhost", "content-type": "application/json", "accept": "application/pdf"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = msgspec.json.encode({"number": number}) if method == "POST" else b""
        answer = await Conversation(self._app, method, path, sent, body).began()
        await answer.body()
        return answer


@asynccontextmanager
async def open_shop(ops: OperationRegistry, store: TaskStore | None = None) -> AsyncIterator[Shop]:
    tasks = None if store is None else Tasks(ops, store)
    app = to_http(ops, tasks=tasks)
    async with living(app):
        if tasks is None:
            yield Shop(app)
        else:
            async with tasks:
                yield Shop(app)


def headers_of(answer: Conversation) -> tuple[int, str | None, str | None]:
    return answer.status, answer.headers.get("content-disposition"), answer.headers.get("x-tag")


@pytest.mark.parametrize("store", STORES)
async def test_a_repeat_has_the_headers_of_the_first_call(store: str, tmp_path: Path) -> None:
    ops = shop()
    ops.services.idempotency_store = STORES[store](tmp_path)
    async with open_shop(ops) as client:
        for _ in range(2):
            assert headers_of(await client.ask("/functions/shop.order", 1, idempotency_key="a")) == (200, NAME, "order")
            assert headers_of(await client.ask("/functions/shop.order", 13, idempotency_key="b")) == (
                500,
                None,
                "order",
            )


async def test_calls_with_one_key_at_the_same_time_all_have_the_headers() -> None:
    async with open_shop(shop()) as client:
        asked = (client.ask("/functions/shop.order", 1, idempotency_key="a") for _ in range(3))
        assert {headers_of(answer) for answer in await asyncio.gather(*asked)} == {(200, NAME, "order")}


@pytest.mark.parametrize("store", TASKS)
async def test_a_call_that_waits_for_its_task_has_the_headers_of_the_task(store: str, tmp_path: Path) -> None:
    async with open_shop(shop(durable="required"), TASKS[store](tmp_path)) as client:
        assert headers_of(await client.ask("/functions/shop.order", 1)) == (200, NAME, "order")
        assert headers_of(await client.ask("/functions/shop.order", 13)) == (500, None, "order")


@pytest.mark.parametrize("store", TASKS)
async def test_the_result_of_a_task_has_the_headers_of_a_call(store: str, tmp_path: Path) -> None:
    async with open_shop(shop(durable=True), TASKS[store](tmp_path)) as client:
        for number, expected in ((1, (200, NAME, "order")), (13, (500, None, "order"))):
            begun = await client.ask("/functions/shop.order", number, prefer="respond-async")
            place = begun.headers["location"]
            await client.ask(f"{place}?wait=10", 0, "GET")
            assert headers_of(await client.ask(f"{place}/result", 0, "GET")) == expected
        waited = await client.ask("/functions/shop.order", 1, prefer="respond-async, wait=10")
        assert headers_of(waited) == (200, NAME, "order")
