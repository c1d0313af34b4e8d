"""Middleware of users: what it sees, what it may do, where it runs, and that it changes nothing when it does nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.calls.networks import Server, nats_server_program
from tests.serving import serve
from tests.waiting import wait_for

from enfold import (
    Call,
    CallError,
    Context,
    Identity,
    Middleware,
    Next,
    OperationRegistry,
    Outcome,
    ResponseEnvelope,
    local_envelope,
    testing,
)
from enfold.app.reconciler import open_config
from enfold.calls.memory import MemoryTransport
from enfold.envelope import to_wire
from enfold.operations.call import NextStream
from enfold.operations.outcomes import envelope_of
from enfold.runtime.reserved import reserved_operation
from enfold.sources.calls import from_calls
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

SURFACES = {
    "direct": "process",
    "http": "http",
    "mcp": "mcp",
    "mcp_session": "mcp",
    "cgi": "cgi",
    "command_line": "shell",
    "calls": "calls",
}


class Point(msgspec.Struct):
    x: int
    label: str = "a"


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    def add(x: int, y: int = 0) -> int:
        return x + y

    @ops.query
    async def point(x: int) -> Point:
        return Point(x)

    @ops.mutation(durable=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @ops.query
    async def outer(context: Context) -> Any:
        return (await context.env.shop.add(x=1, y=2)).data

    @ops.query
    async def fails() -> None:
        raise CallError("SOLD_OUT", "nothing left")

    @ops.subscription
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    return ops


class Seen:
    """Notes the calls that pass."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def __call__(self, call: Call, next: Next) -> Outcome:
        self.calls.append(call)
        return await next(call)

    @property
    def ids(self) -> list[str]:
        return [call.operation.spec.id for call in self.calls]


async def nothing(call: Call, next: Next) -> Outcome:
    return await next(call)


# --- where it runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", SURFACES)
async def test_middleware_sees_the_typed_call_on_every_surface(surface: str) -> None:
    ops, seen = shop(), Seen()
    ops.middleware(seen)
    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.add", {"x": 1, "y": 2}, identity=Identity("ann"))).data == 3
    (call,) = seen.calls
    assert (call.operation.spec.id, dict(call.input), call.surface) == ("shop.add", {"x": 1, "y": 2}, SURFACES[surface])
    assert call.identity is not None
    assert call.identity.id in ("ann", "local")  # a shell runs as its user
    assert call.deadline is not None


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_nested_call_passes_the_middleware_too(surface: str) -> None:
    ops, seen = shop(), Seen()
    ops.middleware(seen)
    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.outer", {})).data == 3
    assert seen.ids == ["shop.outer", "shop.add"]


async def test_a_task_passes_the_middleware_once_where_its_handler_runs() -> None:
    ops, seen = shop(), Seen()
    ops.middleware(seen)
    async with Tasks(ops, MemoryTasks()) as tasks:
        handle = await tasks.start("shop.pay", {"amount": 3})
        assert (await handle.result()).data == "paid 3"
        by_key = Context(idempotency_key="k")
        assert (await ops.execute("shop.pay", {"amount": 4}, by_key)).data == "paid 4"
    assert seen.ids == ["shop.pay", "shop.pay"]
    assert [call.context.task is not None for call in seen.calls] == [True, True]


async def test_a_repeat_with_the_same_key_does_not_pass_the_middleware_again() -> None:
    ops, seen = shop(), Seen()
    ops.middleware(seen)
    for _ in range(2):
        await ops.execute("shop.pay", {"amount": 3}, Context(idempotency_key="k"))
    assert len(seen.calls) == 1


async def test_over_the_call_protocol_it_runs_in_the_worker_and_that_of_the_source_at_the_caller() -> None:
    worker, at_worker, at_caller = shop(), Seen(), Seen()
    worker.middleware(at_worker)
    transport = MemoryTransport()
    edge = OperationRegistry()
    async with serve_calls(worker, transport), from_calls(transport, middleware=[at_caller]) as remote:
        edge.register_all(remote)
        assert (await edge.execute("shop.add", {"x": 1})).data == 1
    assert (at_worker.ids, at_caller.ids) == (["shop.add"], ["shop.add"])
    assert [call.surface for call in (*at_worker.calls, *at_caller.calls)] == ["calls", "process"]


WORKER = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.middleware
async def mark(call, next):
    envelope = await next(call)
    return envelope.replace(data=f"{call.surface}: {envelope.data}")

@ops.query
async def hello() -> str:
    return "hello"
"""


def test_over_nats_it_runs_in_the_worker_process(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKER)
    nats = Server(nats_server_program(), tmp_path)
    nats.wait_until_ready()
    enfold = [sys.executable, "-m", "enfold"]
    worker = subprocess.Popen([*enfold, "work", "app.py", "--nats", nats.url], cwd=tmp_path, stderr=subprocess.DEVNULL)

    def answer() -> str:
        call = [*enfold, "call", nats.url, "shop.hello"]
        return subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    try:
        assert wait_for(answer) == '{"result":"calls: hello"}\n'
    finally:
        worker.terminate()
        worker.wait(60)
        nats.kill()


async def test_operations_taken_by_another_registry_keep_their_middleware() -> None:
    ops, inner, outer = shop(), Seen(), Seen()
    ops.middleware(inner)
    whole = OperationRegistry()
    whole.middleware(outer)
    whole.register_all(ops)
    assert (await whole.mount("all").execute("all.shop.add", {"x": 1})).data == 1
    assert (inner.ids, outer.ids) == (["all.shop.add"], ["all.shop.add"])


async def test_operations_of_enfold_itself_are_not_wrapped() -> None:
    ops, seen = shop(), Seen()
    ops.middleware(seen)
    ops.reserved.offer("test", lambda: [reserved_operation(answer, "enfold.answer")])
    assert (await ops.execute("enfold.answer")).data == 42
    assert seen.calls == []


# --- its order ------------------------------------------------------------------------------------------------------


def named(name: str, order: list[str]) -> Middleware:
    async def middleware(call: Call, next: Next) -> Outcome:
        order.append(name)
        return await next(call)

    return middleware


async def test_the_first_of_the_registry_is_the_outermost_and_those_of_the_operation_are_inside() -> None:
    order: list[str] = []
    ops = OperationRegistry()

    @ops.query(middleware=[named("c", order), named("d", order)])
    async def get() -> int:
        order.append("handler")
        return 1

    ops.middleware(named("a", order))  # also after the operation
    ops.middleware(named("b", order))
    await ops.execute("get")
    assert order == ["a", "b", "c", "d", "handler"]


async def test_access_is_checked_before_any_middleware() -> None:
    ops, seen = OperationRegistry(), Seen()
    ops.middleware(seen)

    @ops.mutation(access={"required_scopes": ["write"]})
    async def write() -> None: ...

    async with testing.http(ops) as client:
        assert (await client.call("write", {})).status == 401
        assert (await client.call("write", {}, identity=Identity("ann"))).status == 404  # hidden
    assert seen.calls == []


# --- what it may do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", SURFACES)
async def test_it_may_change_the_input_before_it_is_validated(surface: str) -> None:
    ops = shop()

    @ops.middleware
    async def renamed(call: Call, next: Next) -> Outcome:
        return await next(call.replace(input={"x": call.input["ex"]}))

    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.add", {"ex": 4})).data == 4 if surface != "command_line" else True


async def test_options_of_the_caller_cannot_be_replaced() -> None:
    ops = shop()

    @ops.middleware
    async def selecting(call: Call, next: Next) -> Outcome:
        return await next(call.replace(select="id"))

    with pytest.raises(CallError, match="can replace the input and the context of a call, not select"):
        await ops.execute("shop.add", {"x": 4})


async def test_the_input_that_it_changes_in_place_is_not_the_callers_own() -> None:
    ops = shop()

    @ops.middleware
    async def changed(call: Call, next: Next) -> Outcome:
        call.input["y"] = 2
        return await next(call)

    given = {"x": 1}
    assert (await ops.execute("shop.add", given)).data == 3
    assert given == {"x": 1}


@pytest.mark.parametrize("surface", SURFACES)
async def test_it_may_respond_without_the_handler(surface: str) -> None:
    ops = shop()

    @ops.middleware
    async def answer(call: Call, next: Next) -> Outcome:
        return local_envelope(42, call.operation.spec.id)

    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.add", {"x": 1})).data == 42


async def test_the_result_of_a_middleware_is_repaired_like_any_other() -> None:
    ops = shop()

    @ops.middleware
    async def answer(call: Call, next: Next) -> Outcome:
        return local_envelope({"x": "7", "label": "b", "secret": 1}, call.operation.spec.id)

    envelope = await ops.execute("shop.point", {"x": 1})
    assert envelope.data == {"x": 7, "label": "b"}
    assert {warning.code for warning in envelope.warnings} == {"convert", "strip"}


@pytest.mark.parametrize("surface", ["http", "mcp", "direct"])
async def test_it_sees_plain_data_although_the_surface_writes_structs(surface: str) -> None:
    ops, seen = shop(), []

    @ops.middleware
    async def look(call: Call, next: Next) -> Outcome:
        envelope = envelope_of(await next(call))
        seen.append(envelope.data)
        return envelope

    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.point", {"x": 1})).data == {"x": 1, "label": "a"}
    assert seen == [{"x": 1, "label": "a"}]


async def test_it_may_run_the_call_again_within_the_time_of_one() -> None:
    ops, attempts = OperationRegistry(), itertools.count(1)

    async def retry(call: Call, next: Next) -> Outcome:
        while True:
            try:
                return await next(call)
            except CallError as error:
                if not error.retryable:
                    raise

    @ops.query(middleware=[retry], timeout=0.3)
    async def get(until: int, context: Context) -> float | None:
        if next(attempts) < until:
            raise CallError("UNAVAILABLE", "not yet", retryable=True)
        return context.remaining()

    left = (await ops.execute("get", {"until": 3})).data
    assert 0 < left <= 0.3
    with pytest.raises(CallError) as failed:
        await ops.execute("get", {"until": 10**9})
    assert (failed.value.code, failed.value.operation_id) == ("TIMEOUT", "get")


async def test_a_deadline_of_the_caller_ends_a_middleware_that_waits() -> None:
    ops = shop()

    @ops.middleware
    async def wait(call: Call, next: Next) -> Outcome:
        await asyncio.Event().wait()
        return await next(call)

    with pytest.raises(CallError) as failed:
        await ops.execute("shop.add", {"x": 1}, Context(timeout=0.05))
    assert failed.value.code == "TIMEOUT"


async def test_a_caller_who_leaves_cancels_the_middleware() -> None:
    ops, ended = shop(), asyncio.Event()

    @ops.middleware
    async def wait(call: Call, next: Next) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return await next(call)

    call = asyncio.create_task(ops.execute("shop.add", {"x": 1}))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


async def test_an_exception_in_a_middleware_is_an_error_like_in_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    ops = shop()

    @ops.middleware
    async def broken(call: Call, next: Next) -> Outcome:
        raise ValueError("no such tenant")

    async with testing.http(ops) as client:
        reply = await client.call("shop.add", {"x": 1})
    assert (reply.status, reply.message) == (500, "no such tenant")
    with pytest.raises(CallError) as failed:
        await ops.execute("shop.add", {"x": 1})
    assert (failed.value.code, failed.value.operation_id) == ("EXECUTION_ERROR", "shop.add")
    assert "no such tenant" in caplog.text


async def test_an_outer_one_sees_the_errors_of_an_inner_one_as_call_errors() -> None:
    ops, seen = shop(), []

    @ops.middleware
    async def outer(call: Call, next: Next) -> Outcome:
        try:
            return await next(call)
        except CallError as error:
            seen.append(error.code)
            raise

    @ops.middleware
    async def inner(call: Call, next: Next) -> Outcome:
        if call.operation.spec.name == "add":
            raise RuntimeError("broken")
        return await next(call)

    for name in ("add", "fails"):
        with pytest.raises(CallError):
            await ops.execute(f"shop.{name}", {"x": 1} if name == "add" else {})
    assert seen == ["EXECUTION_ERROR", "SOLD_OUT"]


async def test_middleware_that_returns_no_envelope_fails_with_advice() -> None:
    ops = shop()

    @ops.middleware
    async def forgets(call: Call, next: Next) -> Any:
        await next(call)

    with pytest.raises(CallError, match=r"the middleware forgets returned NoneType: return what next\(call\) gives"):
        await ops.execute("shop.add", {"x": 1})


@pytest.mark.parametrize("surface", SURFACES)
async def test_middleware_that_neither_returns_nor_calls_next_fails_with_advice(surface: str) -> None:
    ops = shop()

    @ops.middleware
    async def forgets(call: Call, next: Next) -> Any: ...

    async with testing.open_client(surface, ops) as client:
        reply = await client.call("shop.add", {"x": 1})
    assert reply.code == "EXECUTION_ERROR"
    assert "the middleware forgets returned NoneType" in str(reply.message)


def test_a_stream_method_without_yield_is_refused_at_registration() -> None:
    class Late:
        async def __call__(self, call: Call, next: Next) -> Outcome:
            return await next(call)

        async def stream(self, call: Call, next: Any) -> Any:
            return next(call)

    with pytest.raises(TypeError, match="the method stream of Late has no yield"):
        OperationRegistry().middleware(Late())


async def test_it_may_add_warnings() -> None:
    ops = shop()

    @ops.middleware
    async def warn(call: Call, next: Next) -> Outcome:
        from enfold.envelope import ResultWarning

        envelope = envelope_of(await next(call))
        return envelope.replace(warnings=(*envelope.warnings, ResultWarning("stale", "")))

    async with testing.http(ops) as client:
        reply = await client.call("shop.add", {"x": 1})
    assert reply.headers["enfold-warnings"] == '1; first="stale"'


@pytest.mark.parametrize("surface", ["http", "cgi"])
async def test_it_may_set_a_header_of_the_answer_also_of_a_failure(surface: str) -> None:
    ops = shop()

    @ops.middleware
    async def header(call: Call, next: Next) -> Outcome:
        call.context.set_header("X-Tenant", "north")
        return await next(call)

    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.add", {"x": 1})).headers["x-tenant"] == "north"
        assert (await client.call("shop.fails", {})).headers["x-tenant"] == "north"


@pytest.mark.parametrize(
    ("name", "value"), [("Content-Length", "1"), ("x y", "1"), ("", "1"), ("X", "a\r\nSet-Cookie: b"), ("X", "ö")]
)
def test_a_header_that_would_break_the_answer_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="header"):
        Context().set_header(name, value)


# --- results: selected, checked once --------------------------------------------------------------------------------


class Copied:
    """Returns other envelopes with the same content."""

    async def __call__(self, call: Call, next: Next) -> Outcome:
        outcome = await next(call)
        return outcome.replace(data=outcome.data) if isinstance(outcome, ResponseEnvelope) else outcome

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        async for envelope in next(call):
            yield envelope.replace(data=envelope.data)


def points(*middleware: Middleware, **options: Any) -> OperationRegistry:
    ops = wrapped(*middleware)

    @ops.query(**options)
    async def line(x: int) -> Point:
        return Point(x)

    @ops.query
    async def wrong() -> int:
        return "x"  # type: ignore[return-value]

    @ops.subscription
    async def path(to: int) -> AsyncIterator[Point]:
        for number in range(to):
            yield Point(number)

    @ops.subscription
    async def wrong_path() -> AsyncIterator[int]:
        yield "x"  # type: ignore[misc]

    return ops


def selected(text: str) -> Context:
    context = Context()
    context.select = text
    return context


@pytest.mark.parametrize("strict", [False, True])
async def test_fields_that_were_not_selected_do_not_come_back_in_a_changed_result(strict: bool) -> None:
    ops = points(Copied(), strict_output=strict)
    for field, expected in (("label", {"label": "a"}), ("x", {"x": 3})):
        envelope = await ops.execute("shop.line", {"x": 3}, selected(field))
        assert (envelope.data, [each.code for each in envelope.warnings]) == (expected, ["left_out"])
    items = [item async for item in ops.subscribe("shop.path", {"to": 2}, selected("x"))]
    assert [item.data for item in items] == [{"x": 0}, {"x": 1}]


async def test_the_default_selection_of_an_operation_applies_to_a_changed_result() -> None:
    envelope = await points(Copied(), select="x").execute("shop.line", {"x": 3})
    assert (envelope.data, [each.code for each in envelope.warnings]) == ({"x": 3}, ["left_out"])


async def test_a_result_of_a_middleware_has_only_the_selected_fields() -> None:
    ops = points()

    @ops.middleware
    async def answer(call: Call, next: Next) -> Outcome:
        return local_envelope(Point(7, "b"), call.operation.spec.id)

    assert (await ops.execute("shop.line", {"x": 3}, selected("label"))).data == {"label": "b"}
    assert (await ops.execute("shop.line", {"x": 3})).data == {"x": 7, "label": "b"}


async def test_what_does_not_fit_is_reported_once_however_many_middleware_there_are() -> None:
    async def warnings(ops: OperationRegistry) -> list[Any]:
        items = [item.warnings async for item in ops.subscribe("shop.wrong_path")]
        return [(await ops.execute("shop.wrong")).warnings, *items]

    assert await warnings(points(Copied(), Copied())) == await warnings(points())


async def test_the_result_of_a_middleware_of_another_process_is_checked_where_it_runs() -> None:
    transport, edge = MemoryTransport(), OperationRegistry()
    given: list[Any] = [{"x": "7", "secret": 1}, {"x": float("nan")}]

    async def answer(call: Call, next: Next) -> Outcome:
        return envelope_of(await next(call)).replace(data=given.pop(0))

    async with serve_calls(points(), transport), from_calls(transport, middleware=[answer]) as remote:
        edge.register_all(remote)
        assert (await edge.execute("shop.line", {"x": 1})).data == {"x": 7, "label": "a"}
        with pytest.raises(CallError, match="nan is not a JSON number"):
            await edge.execute("shop.line", {"x": 1})


# --- subscriptions --------------------------------------------------------------------------------------------------


class Doubled:
    """Wraps subscriptions, and leaves calls alone."""

    def __init__(self) -> None:
        self.closed = 0

    async def __call__(self, call: Call, next: Next) -> Outcome:
        return await next(call)

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        try:
            async for envelope in next(call.replace(input={"to": call.input["to"] + 1})):
                yield envelope.replace(data=envelope.data * 2)
        finally:
            self.closed += 1


@pytest.mark.parametrize("surface", SURFACES)
async def test_one_with_stream_wraps_subscriptions_on_every_surface(surface: str) -> None:
    ops, doubled = shop(), Doubled()
    ops.middleware(nothing)  # has no `stream`: items pass it
    ops.middleware(doubled)
    async with testing.open_client(surface, ops) as client:
        items = [envelope.data async for envelope in client.subscribe("shop.count", {"to": 2})]
    assert items in ([0, 2, 4], [[0, 2, 4]])  # collected where the surface cannot stream
    assert doubled.closed == 1


async def test_a_subscription_that_is_left_closes_what_its_middleware_opened() -> None:
    ops, doubled, closed = OperationRegistry(), Doubled(), asyncio.Event()
    ops.middleware(doubled)

    @ops.subscription
    async def count(to: int) -> AsyncIterator[int]:
        try:
            while True:
                yield to
        finally:
            closed.set()

    items = ops.subscribe("count", {"to": 1})
    assert (await anext(items)).data == 4
    await items.aclose()
    assert closed.is_set()
    assert doubled.closed == 1


async def test_the_time_of_an_operation_ends_a_stream_inside_a_middleware() -> None:
    ops, doubled = OperationRegistry(), Doubled()
    ops.middleware(doubled)

    @ops.subscription(timeout=0.05)
    async def wait(to: int) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    items = ops.subscribe("wait", {"to": 1})
    assert (await anext(items)).data == 2
    with pytest.raises(CallError) as failed:
        await anext(items)
    assert failed.value.code == "TIMEOUT"


async def test_a_repeated_run_returns_the_envelope_of_its_last_run() -> None:
    ops, runs = shop(), itertools.count(1)

    @ops.middleware
    async def twice(call: Call, next: Next) -> Outcome:
        await next(call)
        return await next(call.replace(input={"x": 10}))

    @ops.query
    async def ask(context: Context) -> Any:
        return (await context.ask(f"run {next(runs)}?")).action

    assert (await ops.execute("shop.add", {"x": 1})).data == 10
    with pytest.raises(CallError) as failed:  # a caller in this process cannot be asked
        await ops.execute("shop.ask", {})
    assert failed.value.code == "UNAVAILABLE"


# --- registering ----------------------------------------------------------------------------------------------------


def no_coroutine(call: Call, next: Next) -> Any: ...


async def asgi_app(scope: Any, receive: Any, send: Any) -> None: ...


def answer() -> int:
    return 42


@pytest.mark.parametrize("wrong", [no_coroutine, asgi_app, Seen, 3], ids=["def", "ASGI app", "class", "number"])
def test_an_invalid_middleware_is_refused_at_registration(wrong: Any) -> None:
    ops = OperationRegistry()
    with pytest.raises(TypeError, match="middleware"):
        ops.middleware(wrong)
    with pytest.raises(TypeError, match="middleware"):
        ops.query(middleware=[wrong])(answer)
    with pytest.raises(TypeError, match="middleware"):
        ops.query(middleware=wrong)(answer)
    with pytest.raises(TypeError, match="middleware"):
        from_openapi({"openapi": "3.1.0", "info": {}, "paths": {}}, middleware=[wrong])


CONFIGURED = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
async def hello() -> str:
    return "hello"

async def all_calls(call, next):
    envelope = await next(call)
    return envelope.replace(data=f"all({envelope.data})")

async def one_source(call, next):
    envelope = await next(call)
    return envelope.replace(data=f"one({envelope.data})")
"""


async def test_a_configuration_names_middleware_for_all_calls_and_for_one_source(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CONFIGURED)
    (tmp_path / "enfold.toml").write_text(
        '[[middleware]]\nuse = "app.py:all_calls"\n'
        '[sources.own]\nfunctions = "app.py:ops"\nmiddleware = "app.py:one_source"\n'
    )
    async with open_config(tmp_path / "enfold.toml", os.environ) as registry:
        assert (await registry.execute("shop.hello")).data == "all(one(hello))"


SHARED = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")
calls = []

@ops.query
async def count() -> int:
    return len(calls)

async def counting(call, next):
    calls.append(call)
    return await next(call)
"""


@pytest.mark.parametrize("place", ["registry", "source"])
async def test_middleware_and_operations_of_one_file_share_its_state(tmp_path: Path, place: str) -> None:
    (tmp_path / "counter.py").write_text(SHARED)
    whole, own = '[[middleware]]\nuse = "counter.py:counting"\n', 'middleware = "counter.py:counting"\n'
    source = '[sources.own]\nfunctions = "counter.py:ops"\n'
    (tmp_path / "enfold.toml").write_text(whole + source if place == "registry" else source + own)
    async with open_config(tmp_path / "enfold.toml", os.environ) as registry:
        assert [(await registry.execute("shop.count")).data for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("[[middleware]]\n", '"middleware" needs "use"'),
        ('[[middleware]]\nuses = "a:b"\n', 'did you mean "use"'),
        ('[[middleware]]\nuse = "app.py"\n', "as in app.py:name"),
        ('[[middleware]]\nuse = "app.py:missing"\n', "there is no missing in"),
        ('[[middleware]]\nuse = "app.py:ops"\n', "is not a middleware: pass an `async def`"),
        ('[[middleware]]\nuse = "broken.py:wrap"\n', "the database is missing"),
    ],
)
def test_a_wrong_middleware_of_a_configuration_is_one_sentence(tmp_path: Path, table: str, sentence: str) -> None:
    (tmp_path / "app.py").write_text(CONFIGURED)
    (tmp_path / "broken.py").write_text('raise RuntimeError("the database is missing")\n')
    (tmp_path / "enfold.toml").write_text(table)
    command = [sys.executable, "-m", "enfold", "list", str(tmp_path / "enfold.toml")]
    listed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (listed.returncode, listed.stdout) == (2, "")
    assert sentence in listed.stderr
    assert "Traceback" not in listed.stderr


async def test_a_source_of_an_mcp_server_takes_middleware() -> None:
    seen = Seen()
    server = [sys.executable, str(Path(__file__).parent / "sources/mcp/little_server.py")]
    async with from_mcp(server, namespace="sdk", middleware=[seen]) as operations:
        registry = OperationRegistry()
        registry.register_all(operations)
        name = next(spec.id for spec in registry.list() if spec.name == "add")
        await registry.execute(name, {"x": 1, "y": 2})
    assert seen.ids == ["sdk.add"]


# --- properties -----------------------------------------------------------------------------------------------------


def adds(key: str) -> Middleware:
    async def middleware(call: Call, next: Next) -> Outcome:
        envelope = envelope_of(await next(call))
        return envelope.replace(data={**envelope.data, key: True})

    return middleware


@given(st.permutations(["a", "b", "c"]), st.integers())
def test_middleware_that_commutes_gives_equal_envelopes_in_any_order(order: list[str], x: int) -> None:
    def run(names: list[str]) -> ResponseEnvelope[Any]:
        ops = OperationRegistry(extras="keep")

        @ops.query(middleware=[adds(name) for name in names])
        async def get(x: int) -> dict[str, int | bool]:
            return {"x": x}

        envelope: ResponseEnvelope[Any] = asyncio.run(_execute(ops, x))
        return envelope

    first, second = run(["a", "b", "c"]), run(list(order))
    assert (first.data, first.warnings) == (second.data, second.warnings)


async def _execute(ops: OperationRegistry, x: int) -> ResponseEnvelope[Any]:
    return await ops.execute("get", {"x": x})


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("shop.add", {"x": 1, "y": 2}),
    ("shop.add", {"x": "1"}),
    ("shop.add", {"x": "one"}),
    ("shop.add", {}),
    ("shop.point", {"x": 3}),
    ("shop.fails", {}),
    ("shop.outer", {}),
    ("shop.nothing", {}),
]


class Transparent:
    """Does nothing, in calls and in subscriptions."""

    async def __call__(self, call: Call, next: Next) -> Outcome:
        return await next(call)

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        async for envelope in next(call):
            yield envelope


def wrapped(*middleware: Middleware) -> OperationRegistry:
    ops = shop()
    for each in middleware:
        ops.middleware(each)
    return ops


@pytest.mark.parametrize("surface", [each for each in SURFACES if each != "direct"])
async def test_a_middleware_that_does_nothing_changes_no_byte(surface: str) -> None:
    async def wires(ops: OperationRegistry) -> list[Any]:
        async with testing.open_client(surface, ops) as client:
            replies = [await client.call(name, arguments, format="result") for name, arguments in CALLS]
        return [(reply.status, _without_ids(reply.wire)) for reply in replies]

    assert await wires(wrapped(nothing, Transparent())) == await wires(shop())


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_middleware_that_does_nothing_changes_no_item_of_a_stream(surface: str) -> None:
    async def items(ops: OperationRegistry) -> list[Any]:
        async with testing.open_client(surface, ops) as client:
            envelopes = [envelope async for envelope in client.subscribe("shop.count", {"to": 3})]
        return [_without_ids(to_wire(envelope)) for envelope in envelopes]

    assert await items(wrapped(nothing, Transparent())) == await items(shop())


def test_a_middleware_that_does_nothing_changes_no_byte_of_an_event_stream() -> None:
    def body(ops: OperationRegistry) -> tuple[int, bytes]:
        with serve(to_http(ops)) as client:
            answer = client.get("/functions/shop.count?to=3", accept="text/event-stream")
        return answer.status, answer.body

    assert body(wrapped(nothing, Transparent())) == body(shop())


async def test_a_middleware_that_does_nothing_changes_no_result_in_process_and_of_a_task() -> None:
    async def results(ops: OperationRegistry) -> list[Any]:
        async with Tasks(ops, MemoryTasks()) as tasks:
            handle = await tasks.start("shop.pay", {"amount": 3})
            kept = [await handle.result()]
        kept += [
            await ops.execute(name, arguments) for name, arguments in CALLS if name in ("shop.point", "shop.outer")
        ]
        return [_without_ids(to_wire(envelope)) for envelope in kept]

    assert await results(wrapped(nothing, Transparent())) == await results(shop())


# --- what breaks it -------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Middleware:
    async def middleware(call: Call, next: Next) -> Outcome:
        raise error

    return middleware


async def gives_nothing(call: Call, next: Next) -> Any:
    await next(call)


async def gives_a_dict(call: Call, next: Next) -> Any:
    return {"result": 1}


async def forgets_to_await(call: Call, next: Next) -> Any:
    return next(call)


async def gives_a_list(call: Call, next: Next) -> Outcome:
    return await next(call.replace(input=[1, 2]))


async def gives_no_number(call: Call, next: Next) -> Outcome:
    return await next(call.replace(input={"x": "one"}))


async def stops_waiting(call: Call, next: Next) -> Outcome:
    return await asyncio.wait_for(next(call.replace(input={"x": 1, "y": 10**6})), 0)


BROKEN: dict[str, tuple[Middleware, str]] = {
    "an exception": (raising(ValueError("no")), "EXECUTION_ERROR"),
    "an exception group": (raising(ExceptionGroup("two", [ValueError("no")])), "EXECUTION_ERROR"),
    "SystemExit": (raising(SystemExit(3)), "EXECUTION_ERROR"),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), "EXECUTION_ERROR"),
    "StopIteration": (raising(StopIteration()), "EXECUTION_ERROR"),
    "StopAsyncIteration": (raising(StopAsyncIteration()), "EXECUTION_ERROR"),
    "GeneratorExit": (raising(GeneratorExit()), "EXECUTION_ERROR"),
    "a cancellation of its own": (raising(asyncio.CancelledError()), "EXECUTION_ERROR"),
    "TimeoutError": (raising(TimeoutError()), "TIMEOUT"),
    "no result": (gives_nothing, "EXECUTION_ERROR"),
    "a dict": (gives_a_dict, "EXECUTION_ERROR"),
    "a coroutine": (forgets_to_await, "EXECUTION_ERROR"),
    "a list as input": (gives_a_list, "VALIDATION_ERROR"),
    "a wrong input": (gives_no_number, "VALIDATION_ERROR"),
    "a time limit of its own": (stops_waiting, "TIMEOUT"),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("surface", ["http", "cgi", "command_line"])
@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_middleware_is_an_error_of_its_call_and_the_next_call_works(broken: str, surface: str) -> None:
    (middleware, code), ops = BROKEN[broken], shop()

    @ops.query(middleware=[nothing, middleware])
    async def add_late(x: int, y: int = 0) -> int:
        await asyncio.sleep(y)
        return x

    async with testing.open_client(surface, ops) as client:
        assert (await client.call("shop.add_late", {"x": 1})).code == code
        assert (await client.call("shop.add", {"x": 1})).data == 1


async def test_a_middleware_may_run_the_call_in_other_tasks_and_several_at_once() -> None:
    ops = shop()

    @ops.middleware
    async def both(call: Call, next: Next) -> Outcome:
        first, second = await asyncio.gather(next(call), next(call.replace(input={"x": 2})))
        assert (envelope_of(first).data, envelope_of(second).data) == (1, 2)
        async with asyncio.TaskGroup() as group:
            third = group.create_task(next(call))
        return third.result()

    assert (await ops.execute("shop.add", {"x": 1})).data == 1


async def test_a_middleware_that_swallows_a_failure_answers_for_it_on_every_attempt() -> None:
    ops = shop()

    @ops.middleware
    async def swallow(call: Call, next: Next) -> Outcome:
        try:
            return await next(call)
        except CallError as error:
            return local_envelope(error.code, call.operation.spec.id)

    assert [(await ops.execute("shop.fails")).data for _ in range(2)] == ["SOLD_OUT", "SOLD_OUT"]


def _without_ids(wire: Any) -> Any:
    """What the surface wrote, without the ids that each call has of its own."""
    if isinstance(wire, dict):
        kept: Callable[[str], bool] = lambda key: key not in ("requestId", "request_id", "timestamp", "id")  # noqa: E731
        return {key: _without_ids(value) for key, value in wire.items() if kept(key)}
    return [_without_ids(each) for each in wire] if isinstance(wire, list) else wire
