import asyncio
import contextvars
import functools
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import date, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, model_serializer
from tests.waiting import until

from enfold import CallError, Context, Identity, OperationRegistry, TextContent, build_env, mcp_envelope
from enfold.operations import Progress
from enfold.runtime.registry import Registry


def registry(**options: Any) -> OperationRegistry:
    return OperationRegistry("t", **options)


async def code_of(ops: Registry, operation_id: str, input: dict[str, Any], context: Context | None = None) -> str:
    with pytest.raises(CallError) as caught:
        await ops.execute(operation_id, input, context)
    return caught.value.code


# waiting


async def at_once() -> int:
    return 1


async def test_a_coroutine_that_never_waits_returns_the_same_at_every_call() -> None:
    ops = OperationRegistry()
    ops.query(at_once)
    assert [(await ops.execute("at_once", {})).data for _ in range(3)] == [1, 1, 1]


# reading the input


async def test_a_call_leaves_what_its_caller_gave_as_it_is() -> None:
    ops = OperationRegistry()

    @ops.query
    async def twice(x: int, context: Context) -> int:
        return x * 2

    @ops.query
    def thrice(x: int, context: Context) -> int:
        return x * 3

    given = {"x": 7}
    assert [(await ops.execute(name, given)).data for name in ("twice", "thrice", "twice")] == [14, 21, 14]
    assert given == {"x": 7}


async def test_a_def_gets_what_was_checked_although_its_caller_changes_it() -> None:
    ops = OperationRegistry()

    @ops.query
    def add(x: int, y: int) -> int:
        return x + y

    given: dict[str, Any] = {"x": 1, "y": 2}
    call = asyncio.create_task(ops.execute("add", given))
    await asyncio.sleep(0)  # until it has been handed to a thread
    given["y"] = "no number"
    assert (await call).data == 3


@pytest.mark.parametrize(
    ("input", "details"),
    [
        ({"x": 2}, {"argument": "y", "reason": "missing", "expected": "integer"}),
        ({"x": 2, "y": "abc"}, {"argument": "y", "reason": "type", "expected": "integer"}),
        ({"x": 2, "y": 1.5}, {"argument": "y", "reason": "type", "expected": "integer"}),
        ({"x": 2, "y": True}, {"argument": "y", "reason": "type", "expected": "integer"}),
        ({"x": 2, "y": None}, {"argument": "y", "reason": "type", "expected": "integer"}),
        ({"x": 2, "y": 3, "z": 4}, {"argument": "z", "reason": "unknown", "expected": None}),
        (
            {"y": "a", "z": 1},
            {
                "argument": "x",
                "reason": "missing",
                "expected": "integer",
                "more": [
                    {"argument": "y", "reason": "type", "expected": "integer"},
                    {"argument": "z", "reason": "unknown", "expected": None},
                ],
            },
        ),
    ],
    ids=["missing", "text", "fraction", "boolean", "null", "unknown", "several"],
)
async def test_bad_input_is_reported_by_argument_reason_and_expectation(
    input: dict[str, Any], details: dict[str, Any]
) -> None:
    ops = registry()

    @ops.query
    def add(x: int, y: int) -> int:
        return x + y

    with pytest.raises(CallError) as caught:
        await ops.execute("t.add", input)
    assert (caught.value.code, caught.value.details) == ("VALIDATION_ERROR", details)


async def test_text_that_stands_for_its_type_is_converted_unless_the_policy_says_no() -> None:
    def add(x: int, y: float = 0, loud: bool = False) -> float:
        return -(x + y) if loud else x + y

    lenient, strict = registry(), registry(coerce=False)
    lenient.register(add)
    strict.register(add)
    assert (await lenient.execute("t.add", {"x": "10", "y": "0.5", "loud": "true"})).data == -10.5
    assert (await lenient.execute("t.add", {"x": 1.0})).data == 1
    assert await code_of(strict, "t.add", {"x": "10"}) == "VALIDATION_ERROR"


@pytest.mark.parametrize("input", [None, [], "x", 3], ids=repr)
async def test_input_that_is_not_an_object_is_refused(input: Any) -> None:
    ops = registry()
    ops.register(lambda: 1, name="one")
    with pytest.raises(CallError, match="must be an object") as caught:
        await ops.execute("t.one", input)
    assert caught.value.code == "VALIDATION_ERROR"


# where a handler runs


async def test_a_def_runs_in_a_worker_thread_and_inline_on_the_loop() -> None:
    ops = registry()

    @ops.query
    def where() -> str:
        return threading.current_thread().name

    ops.register(where, name="here", inline=True)
    assert (await ops.execute("t.where", {})).data == "enfold-worker"
    assert (await ops.execute("t.here", {})).data == threading.current_thread().name
    assert (await ops.execute("t.where", {}, Context(inline=True))).data == threading.current_thread().name


async def test_context_variables_reach_the_worker_thread() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    ops = registry()

    @ops.query
    def read() -> str:
        return variable.get()

    variable.set("set")
    assert (await ops.execute("t.read", {})).data == "set"


async def test_partials_methods_and_callables_are_handlers_too() -> None:
    class Adder:
        def add(self, x: int, y: int) -> int:
            return x + y

        async def __call__(self, x: int) -> int:
            return x + 1

    ops = registry()
    ops.register(Adder().add)
    ops.register(functools.partial(Adder().add, y=5), name="add_five")
    ops.register(Adder(), name="next")
    assert (await ops.execute("t.add", {"x": 1, "y": 2})).data == 3
    assert (await ops.execute("t.add_five", {"x": 1})).data == 6
    assert (await ops.execute("t.next", {"x": 1})).data == 2


async def test_a_decorated_coroutine_function_is_awaited() -> None:
    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return asyncio.ensure_future(function(*args, **kwargs))

        return call

    ops = registry()

    @ops.query
    @twice
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x

    assert (await ops.execute("t.later", {"x": 4})).data == 4


async def test_a_full_pool_answers_resource_exhausted_and_recovers() -> None:
    ops, release, started = registry(threads=1), threading.Event(), threading.Event()

    @ops.query
    def hold() -> int:
        started.set()
        release.wait(30)
        return 1

    first = asyncio.ensure_future(ops.execute("t.hold", {}))
    await asyncio.to_thread(started.wait, 30)
    assert await code_of(ops, "t.hold", {}) == "RESOURCE_EXHAUSTED"
    release.set()
    assert (await first).data == 1
    await until(lambda: ops.services.threads.busy == 0)  # the thread steps back a moment after its answer is there
    assert (await ops.execute("t.hold", {})).data == 1


# time


async def test_a_deadline_reaches_an_async_handler() -> None:
    ops, cleaned = registry(), []

    @ops.query(timeout=0.01)
    async def slow(context: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(context.cancelled)

    with pytest.raises(CallError, match=r"t\.slow exceeded its timeout") as caught:
        await ops.execute("t.slow", {})
    assert (caught.value.code, caught.value.retryable) == ("TIMEOUT", True)
    assert cleaned == [True]


async def test_the_callers_deadline_can_only_shorten() -> None:
    ops = registry()

    @ops.mutation(timeout=50)
    async def left(context: Context) -> float:
        return context.remaining() or 0

    assert (await ops.execute("t.left", {}, Context(timeout=100))).data <= 50
    assert (await ops.execute("t.left", {}, Context(timeout=5))).data <= 5


async def test_a_timed_out_mutation_is_not_safe_to_retry() -> None:
    ops = registry()

    @ops.mutation
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(CallError) as caught:
        await ops.execute("t.hang", {}, Context(timeout=0.01))
    assert (caught.value.code, caught.value.retryable) == ("TIMEOUT", False)


async def test_a_def_that_overruns_answers_timeout_and_its_thread_counts_until_it_ends() -> None:
    ops, release, seen = registry(threads=1), threading.Event(), []

    @ops.query(timeout=0.01)
    def stubborn(context: Context) -> None:
        release.wait(30)
        seen.append(context.cancelled)

    assert await code_of(ops, "t.stubborn", {}) == "TIMEOUT"
    assert await code_of(ops, "t.stubborn", {}) == "RESOURCE_EXHAUSTED"
    release.set()
    await until(lambda: bool(seen))
    assert seen == [True]


async def test_a_handlers_own_timeout_error_is_a_timeout() -> None:
    ops = registry()

    @ops.query
    async def inner() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)

    assert await code_of(ops, "t.inner", {}) == "TIMEOUT"


async def test_cancelling_the_caller_reaches_the_handler() -> None:
    ops, ended, started = registry(), [], asyncio.Event()

    @ops.query
    async def wait(context: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    context = Context()
    task = asyncio.ensure_future(ops.execute("t.wait", {}, context))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    assert context.cancelled


# failures


async def test_an_unexpected_exception_gives_its_text_and_its_stack_stays_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ops = registry()

    @ops.query
    async def broken() -> None:
        raise ValueError("no such disk")

    with pytest.raises(CallError) as caught, caplog.at_level(logging.ERROR, "enfold"):
        await ops.execute("t.broken", {})
    assert (caught.value.code, caught.value.message) == ("EXECUTION_ERROR", "no such disk")
    assert caught.value.request_id is not None
    assert caught.value.request_id in caplog.text
    assert "Traceback" in caplog.text


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("x" * 900), "x" * 500), (KeyError(), "KeyError"), (UnprintableError(), "UnprintableError")],
    ids=["long", "empty", "unprintable"],
)
async def test_the_text_of_an_exception_is_bounded(error: Exception, said: str) -> None:
    ops = registry()

    @ops.query
    async def broken() -> None:
        raise error

    with pytest.raises(CallError) as caught:
        await ops.execute("t.broken", {})
    assert caught.value.message == said


async def test_errors_can_be_hidden_but_a_handlers_own_call_error_passes() -> None:
    ops = registry(expose_errors=False)

    @ops.query
    async def broken() -> None:
        raise ValueError("password=hunter2")

    @ops.query
    async def sold_out() -> None:
        raise CallError("SOLD_OUT", "None left", {"item": 3})

    with pytest.raises(CallError, match=r"^Operation t\.broken failed$"):
        await ops.execute("t.broken", {})
    with pytest.raises(CallError, match="None left") as caught:
        await ops.execute("t.sold_out", {})
    assert (caught.value.code, caught.value.details) == ("SOLD_OUT", {"item": 3})


class Unwritable(BaseModel):
    @model_serializer
    def write(self) -> dict[str, Any]:
        raise ValueError("password=hunter2")


@pytest.mark.parametrize("expose_errors", [True, False])
async def test_the_error_of_a_class_that_cannot_be_written_is_hidden_like_any_other(expose_errors: bool) -> None:
    ops = registry(expose_errors=expose_errors)

    @ops.query
    async def broken() -> dict[str, Any]:
        return {"a": Unwritable()}

    with pytest.raises(CallError, match=r"^failed to marshal response: /a(: |$)") as caught:
        await ops.execute("t.broken", {})
    assert caught.value.details["path"] == "/a"
    assert ("hunter2" in str(caught.value.details)) is expose_errors
    assert ("hunter2" in caught.value.message) is expose_errors


# streams


async def test_each_item_of_a_stream_is_a_separate_envelope() -> None:
    ops = registry()

    @ops.subscription
    async def items() -> AsyncIterator[list[int]]:
        yield [1]
        yield ["2"]  # type: ignore[list-item]  # repaired on the way
        yield {"data": [3], "meta": {"source": "http"}}  # type: ignore[misc]  # passes as it is

    found = [envelope async for envelope in ops.subscribe("t.items", {})]
    assert [envelope.data for envelope in found] == [[1], [2], [3]]
    assert [envelope.meta.source for envelope in found] == ["local", "local", "http"]
    assert [warning.code for warning in found[1].warnings] == ["convert"]


async def test_a_stream_without_a_reader_is_closed() -> None:
    ops, closed = registry(), asyncio.Event()

    @ops.subscription
    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            closed.set()

    stream = ops.subscribe("t.endless", {})
    assert (await anext(stream)).data == 1
    await stream.aclose()
    assert closed.is_set()


async def test_a_stream_has_ids_and_can_be_resumed() -> None:
    ops = registry()

    @ops.subscription(resumable=True)
    async def numbers(context: Context) -> AsyncIterator[int]:
        for number in range(int(context.last_event_id or 0) + 1, 4):
            context.event_id = str(number)
            yield number

    context = Context(last_event_id="1")
    seen = [(context.event_id, envelope.data) async for envelope in ops.subscribe("t.numbers", {}, context)]
    assert seen == [("2", 2), ("3", 3)]


async def test_a_stream_keeps_the_callers_deadline_and_raises_failures() -> None:
    ops = registry()

    @ops.subscription
    async def stuck() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    @ops.subscription
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ValueError("cut")

    for operation_id, code in (("t.stuck", "TIMEOUT"), ("t.broken", "EXECUTION_ERROR")):
        stream = ops.subscribe(operation_id, {}, Context(timeout=0.05))
        assert (await anext(stream)).data == 1
        with pytest.raises(CallError) as caught:
            await anext(stream)
        assert caught.value.code == code


# context, env


async def test_a_context_parameter_is_injected_and_not_part_of_the_schema() -> None:
    ops = registry()

    @ops.query
    async def who(context: Context, loud: bool = False) -> str:
        return context.identity.id if context.identity else "anonymous"

    assert list(ops.get_spec("t.who").input_schema["properties"]) == ["loud"]
    assert (await ops.execute("t.who", {}, Context(identity=Identity("ann")))).data == "ann"
    assert (await ops.execute("t.who", {})).data == "anonymous"
    assert await code_of(ops, "t.who", {"context": {}}) == "VALIDATION_ERROR"


async def test_progress_from_a_thread_arrives_on_the_loop() -> None:
    ops, heard = registry(), []

    @ops.query
    def work(context: Context) -> int:
        context.progress(1, 2)
        return 1

    await ops.execute("t.work", {}, Context(notify=lambda message: heard.append((message, threading.current_thread()))))
    await asyncio.sleep(0)
    assert heard == [(Progress(1, 2), threading.current_thread())]


async def test_operations_compose_through_env_and_carry_who_and_how_long() -> None:
    ops = registry()

    @ops.query
    async def inner(context: Context) -> dict[str, Any]:
        return {
            "parent": context.parent_request_id,
            "who": context.identity and context.identity.id,
            "left": context.remaining(),
        }

    @ops.query
    async def outer(context: Context) -> Any:
        return (await context.env.t.inner({})).data

    @ops.query
    def blocking(context: Context) -> Any:
        return context.env.t.inner().data

    for name in ("t.outer", "t.blocking"):
        context = Context(identity=Identity("ann"), timeout=5)
        data = (await ops.execute(name, {}, context)).data
        assert (data["parent"], data["who"]) == (context.request_id, "ann")
        assert 0 < data["left"] <= 5


async def test_env_reaches_streams_and_names_that_are_not_python_names() -> None:
    ops = OperationRegistry("my-api")

    @ops.subscription(name="get-all")
    async def numbers() -> AsyncIterator[int]:
        yield 1

    @ops.query
    async def first(context: Context) -> Any:
        return [envelope.data async for envelope in context.env["my-api"]["get-all"]({})]

    assert (await ops.execute("my-api.first", {})).data == [1]


async def test_env_names_what_it_cannot_find() -> None:
    ops = registry()

    @ops.query
    async def outer(context: Context) -> Any:
        return await context.env.t.missing({})

    with pytest.raises(CallError, match=r"Operation not found: t\.missing"):
        await ops.execute("t.outer", {})


# without a loop


def test_execute_now_runs_both_kinds_without_a_running_loop() -> None:
    ops = registry()

    @ops.query
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x

    @ops.query
    def now(x: int, context: Context) -> int:
        return int(context.env.t.later({"x": x}).data) + 1

    assert ops.execute_now("t.later", {"x": 3}).data == 3
    assert ops.execute_now("t.now", {"x": 3}).data == 4


async def test_execute_now_in_a_running_loop_runs_a_def_and_says_what_to_write_for_the_rest() -> None:
    ops = registry()

    @ops.query
    async def later() -> int:
        await asyncio.sleep(0)
        return 3

    @ops.query
    def now() -> int:
        return 4

    assert ops.execute_now("t.now").data == 4
    with pytest.raises(CallError, match=r"write await registry\.execute"):
        ops.execute_now("t.later")


def test_a_call_of_an_inline_def_needs_no_asyncio() -> None:
    program = """
import sys
from enfold import OperationRegistry
ops = OperationRegistry("shop")
@ops.query
def add(x: int, y: int) -> int:
    return x + y
assert ops.execute_now("shop.add", {"x": "1", "y": 2}).data == 3
heavy = {"asyncio", "pydantic", "mcp", "httpx2", "nats", "logging", "dataclasses"} & set(sys.modules)
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# what must not go wrong


async def test_a_context_may_be_used_for_several_calls() -> None:
    ops = registry()
    heard: list[Any] = []

    @ops.query
    def add(x: int, context: Context) -> int:
        context.progress(x)
        return x + 1

    @ops.query
    async def nested(x: int, context: Context) -> int:
        return int((await context.env.t.add({"x": x})).data)

    context = Context(notify=heard.append, identity=Identity("ann"))
    assert (await ops.execute("t.add", {"x": 1}, context)).data == 2
    assert (await ops.execute("t.nested", {"x": 1}, context)).data == 2
    results = await asyncio.gather(*(ops.execute("t.add", {"x": x}, context) for x in range(20)))
    assert [envelope.data for envelope in results] == list(range(1, 21))
    await asyncio.sleep(0)
    assert len(heard) == 21


async def test_a_thousand_calls_at_once_are_all_answered() -> None:
    ops = registry()

    @ops.query
    async def echo(x: int) -> int:
        await asyncio.sleep(0)
        return x

    results = await asyncio.gather(*(ops.execute("t.echo", {"x": x}) for x in range(1000)))
    assert [envelope.data for envelope in results] == list(range(1000))


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "in place"])
async def test_a_handler_that_wants_to_end_the_program_ends_its_own_call(inline: bool) -> None:
    ops = registry()

    @ops.query(inline=inline)
    def leave() -> None:
        sys.exit(3)

    assert await code_of(ops, "t.leave", {}) == "EXECUTION_ERROR"


async def test_a_call_whose_deadline_has_passed_does_not_run() -> None:
    ops, ran = registry(), []

    @ops.mutation
    def charge() -> None:
        ran.append("def")

    @ops.mutation
    async def charge_later() -> None:
        ran.append("async")

    for name in ("t.charge", "t.charge_later"):
        assert await code_of(ops, name, {}, Context(timeout=0)) == "TIMEOUT"
    assert ran == []


async def test_cancelling_a_def_reaches_the_call_it_waits_for() -> None:
    ops, started, ended = registry(), asyncio.Event(), asyncio.Event()

    @ops.query
    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @ops.query
    def outer(context: Context) -> None:
        context.env.t.long({})

    task = asyncio.ensure_future(ops.execute("t.outer", {}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()


async def test_a_cancellation_inside_a_handler_is_a_failure_of_the_handler() -> None:
    ops = registry()

    @ops.query
    async def own() -> None:
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await task

    assert await code_of(ops, "t.own", {}) == "EXECUTION_ERROR"


async def test_a_def_run_in_place_calls_others_in_place() -> None:
    ops = registry()

    @ops.query
    def one() -> int:
        return 1

    @ops.query(inline=True)
    def two(context: Context) -> int:
        return int(context.env.t.one({}).data) + 1

    assert (await ops.execute("t.two", {})).data == 2


async def test_a_failure_of_an_inner_call_has_the_callers_request_id() -> None:
    ops = registry()
    shared = CallError("SOLD_OUT", "None left")

    @ops.query
    async def inner() -> None:
        raise shared

    @ops.query
    async def outer(context: Context) -> None:
        await context.env.t.inner({})

    for _ in range(2):
        context = Context()
        with pytest.raises(CallError) as caught:
            await ops.execute("t.outer", {}, context)
        assert caught.value.request_id == context.request_id


# what ends a handler ends its call alone


class Odd(BaseException):
    """Neither an error nor a signal that Python knows."""


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError, Odd]
)
@pytest.mark.parametrize("runs", ["async", "thread", "inline"])
async def test_any_exception_of_a_handler_fails_only_its_own_call(kind: type[BaseException], runs: str) -> None:
    ops = registry()

    async def later() -> int:
        await asyncio.sleep(0)
        raise kind

    def now() -> int:
        raise kind

    ops.register(later if runs == "async" else now, name="fail", inline=runs == "inline")
    assert await code_of(ops, "t.fail", {}) == "EXECUTION_ERROR"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Odd])
async def test_any_exception_of_a_stream_fails_only_that_stream(kind: type[BaseException]) -> None:
    ops = registry()

    @ops.subscription
    async def items() -> AsyncIterator[int]:
        yield 1
        raise kind

    with pytest.raises(CallError) as caught:
        async for _ in ops.subscribe("t.items"):
            pass
    assert caught.value.code == "EXECUTION_ERROR"


def test_a_real_interrupt_without_a_loop_ends_the_program() -> None:
    ops = registry()

    @ops.query
    def wait() -> int:
        with suppress(ValueError):  # which raises it again
            signal.raise_signal(signal.SIGINT)
        return 1

    # A command that was run in this process may have left its own.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ops.execute_now("t.wait")
    finally:
        signal.signal(signal.SIGINT, usual)


def test_an_interrupt_that_a_handler_raises_itself_is_its_failure_without_a_loop_too() -> None:
    ops = registry()

    @ops.query
    def stop() -> int:
        raise KeyboardInterrupt("enough")

    with pytest.raises(CallError) as caught:
        ops.execute_now("t.stop")
    assert (caught.value.code, caught.value.message) == ("EXECUTION_ERROR", "enough")


async def test_closing_a_call_that_waits_is_quiet() -> None:
    ops = registry()

    @ops.query
    async def wait() -> int:
        await asyncio.Event().wait()
        return 1

    call = ops.execute("t.wait")
    waiting = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_handler_that_ignores_its_deadline_keeps_its_result() -> None:
    ops = registry()

    @ops.query(timeout=0.01)
    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 0

    task = asyncio.ensure_future(ops.execute("t.stubborn"))
    assert (await task).data == 7
    assert task.cancelling() == 0


async def test_a_limit_inside_a_limit_ends_the_inner_call_alone() -> None:
    ops = registry()

    @ops.query(timeout=0.01)
    async def inner() -> int:
        await asyncio.Event().wait()
        return 1

    @ops.query
    async def outer(context: Context) -> str:
        try:
            await context.env.t.inner()
        except CallError as error:
            return error.code
        return ""

    assert (await ops.execute("t.outer")).data == "TIMEOUT"


async def test_progress_and_log_may_be_awaited() -> None:
    ops, heard = registry(), list[Any]()

    @ops.query
    async def work(context: Context) -> int:
        await context.progress(1, 2)
        await context.log("half")
        context.progress(2, 2)
        return 1

    await ops.execute("t.work", {}, Context(notify=heard.append))
    assert [type(each).__name__ for each in heard] == ["Progress", "LogMessage", "Progress"]


async def test_a_composed_operation_may_ask_for_an_exception_where_a_tool_failed() -> None:
    ops = registry()

    @ops.query
    async def tool() -> Any:
        return mcp_envelope([], content=[TextContent("out of paper")], is_error=True)

    @ops.query(raise_on_error=True)
    async def strict(context: Context) -> Any:
        return (await context.env.t.tool()).data

    @ops.query
    async def lenient(context: Context) -> bool:
        return bool((await context.env.t.tool()).is_error)

    assert (await ops.execute("t.lenient")).data is True
    with pytest.raises(CallError, match="out of paper"):
        await ops.execute("t.strict")


async def test_an_env_reaches_only_the_namespaces_it_was_given() -> None:
    ops = OperationRegistry()
    for namespace in ("shop", "shop.deep", "secret"):
        ops.register(at_once, namespace=namespace)
    env = build_env(ops, Context(), namespaces=["shop"])
    assert (await env.shop.at_once()).data == 1
    assert (await env.shop.deep.at_once()).data == 1
    with pytest.raises(CallError, match=r"Operation not found: secret\.at_once"):
        env.secret.at_once()


async def test_a_guard_stays_on_in_views_of_a_guarded_view() -> None:
    ops = registry()

    @ops.query(access={"required_scopes": ["s"]})
    async def secret() -> int:
        return 1

    assert (await ops.execute("t.secret")).data == 1
    for view in (ops.guarded(), ops.guarded().mount("far"), ops.mount("far").guarded(), ops.guarded().only(bool)):
        operation_id = view.list()[0].id
        assert await code_of(view, operation_id, {}) == "ACCESS_DENIED"
        allowed = Context(identity=Identity("ann", frozenset({"s"})))
        assert (await view.execute(operation_id, {}, allowed)).data == 1


async def test_a_shortage_of_threads_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = registry(threads=2)

    @ops.query
    def work() -> int:
        return 1

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(5):
            assert await code_of(ops, "t.work", {}) == "RESOURCE_EXHAUSTED"
    assert (await ops.execute("t.work")).data == 1


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"moment": "2020-01-01"}, 'Argument "moment" must be a date and time such as 2020-01-01T00:00:00Z'),
        ({"day": "tomorrow"}, 'Argument "day" must be a date such as 2020-01-01'),
        ({"id": "12"}, 'Argument "id" must be a UUID such as 123e4567-e89b-12d3-a456-426614174000'),
    ],
)
async def test_a_text_of_the_wrong_format_is_reported_with_what_would_be_right(
    argument: dict[str, str], words: str
) -> None:
    ops = OperationRegistry()

    @ops.query
    def at(moment: datetime | None = None, day: date | None = None, id: UUID | None = None) -> None: ...

    with pytest.raises(CallError) as refused:
        await ops.execute("at", argument)
    assert refused.value.message == words
    assert refused.value.details["argument"] in argument
