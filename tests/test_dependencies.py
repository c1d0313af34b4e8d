"""Dependencies: `Annotated[T, Depends(provider)]`, on every surface."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Annotated, Any, TypedDict

import fastapi
import fastmcp.dependencies
import msgspec
import pytest
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, Depends, Identity, OperationRegistry, testing
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks


class Connection:
    """Something that is opened and closed."""

    def __init__(self, log: list[str]) -> None:
        self.log = log


class Shop:
    """A registry whose operations need a connection, and what happened to it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ops = OperationRegistry("shop")

    def connect(self) -> Iterator[Connection]:
        self.log.append("open")
        try:
            yield Connection(self.log)
        except BaseException as error:
            self.log.append(type(error).__name__)
            raise
        finally:
            self.log.append("close")

    async def connect_later(self) -> AsyncIterator[Connection]:
        await asyncio.sleep(0)
        self.log.append("open")
        try:
            yield Connection(self.log)
        except BaseException as error:
            self.log.append(type(error).__name__)
            raise
        finally:
            await asyncio.sleep(0)
            self.log.append("close")


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(params=["def", "async def"])
def connect(request: pytest.FixtureRequest, shop: Shop) -> Callable[..., Any]:
    return shop.connect if request.param == "def" else shop.connect_later


class Item(TypedDict):
    name: str


def test_a_dependency_is_not_part_of_the_schema_of_either_engine(shop: Shop) -> None:
    pydantic = pytest.importorskip("pydantic")

    @shop.ops.query
    def plain(name: str, connection: Annotated[Connection, Depends(shop.connect)]) -> str:
        return name

    @shop.ops.query
    def modelled(
        name: Annotated[str, pydantic.Field(min_length=1)], connection: Annotated[Connection, Depends(shop.connect)]
    ) -> str:
        return name

    for name in ("shop.plain", "shop.modelled"):
        schema = shop.ops.get_spec(name).input_schema
        assert list(schema["properties"]) == schema["required"] == ["name"]


async def test_a_caller_cannot_pass_a_dependency(shop: Shop) -> None:
    @shop.ops.query
    def tenant(tenant: Annotated[str, Depends(lambda: "ours")]) -> str:
        return tenant

    with pytest.raises(CallError, match="tenant") as refused:
        await shop.ops.execute("shop.tenant", {"tenant": "theirs"})
    assert refused.value.code == "VALIDATION_ERROR"
    assert (await shop.ops.execute("shop.tenant")).data == "ours"


@pytest.mark.parametrize("surface", testing.SURFACES)
async def test_a_dependency_is_opened_and_closed_around_a_call_on_every_surface(
    surface: str, shop: Shop, connect: Callable[..., Any]
) -> None:
    @shop.ops.query
    def stock(of: str, connection: Annotated[Connection, Depends(connect)]) -> int:
        connection.log.append(f"stock of {of}")
        return 3

    async with testing.open_client(surface, shop.ops) as client:
        assert (await client.call("shop.stock", {"of": "apples"})).data == 3
        assert (await client.call("shop.stock", {"of": 3})).error is not None  # refused before anything is opened
    assert shop.log == ["open", "stock of apples", "close"]


@pytest.mark.parametrize("surface", testing.SURFACES)
async def test_a_dependency_of_the_application_is_opened_once_and_closed_with_it(
    surface: str, shop: Shop, connect: Callable[..., Any]
) -> None:
    @shop.ops.query
    async def stock(connection: Annotated[Connection, Depends(connect, scope="app")]) -> int:
        await asyncio.sleep(0)
        connection.log.append("stock")
        return 3

    async with testing.open_client(surface, shop.ops) as client:
        replies = [await client.call("shop.stock", {}) for _ in range(2)]
    assert [reply.data for reply in replies] == [3, 3]
    if surface in ("cgi", "command_line"):  # where each call is a process
        assert shop.log == ["open", "stock", "close"] * 2
    else:
        assert shop.log == ["open", "stock", "stock", "close"]


@pytest.mark.parametrize("surface", ["direct", "http", "calls"])
async def test_the_dependencies_of_a_stream_are_closed_after_it(
    surface: str, shop: Shop, connect: Callable[..., Any]
) -> None:
    @shop.ops.subscription
    async def ticks(connection: Annotated[Connection, Depends(connect)]) -> AsyncIterator[int]:
        for number in range(2):
            connection.log.append(str(number))
            yield number

    async with testing.open_client(surface, shop.ops) as client:
        assert [item.data async for item in client.subscribe("shop.ticks", {})] == [0, 1]
        await until(lambda: "close" in shop.log)
    assert shop.log == ["open", "0", "1", "close"]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
async def test_a_stream_that_is_left_closes_its_dependencies(
    shop: Shop, connect: Callable[..., Any], is_async: bool
) -> None:
    def count(connection: Annotated[Connection, Depends(connect)]) -> Iterator[int]:
        yield from range(1000)

    async def count_later(connection: Annotated[Connection, Depends(connect)]) -> AsyncIterator[int]:
        for number in range(1000):
            yield number

    shop.ops.subscription(name="count")(count_later if is_async else count)
    async with aclosing(shop.ops.subscribe("shop.count")) as items:
        assert (await anext(items)).data == 0
    assert shop.log == ["open", "GeneratorExit", "close"]


async def test_a_provider_sees_the_exception_of_the_handler_and_may_replace_it(shop: Shop) -> None:
    def translate() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise CallError("NOT_FOUND", f"There is no {error.args[0]}") from error

    @shop.ops.query
    def find(
        name: str, connection: Annotated[Connection, Depends(shop.connect)], _: Annotated[None, Depends(translate)]
    ) -> int:
        return {"apple": 1}[name]

    assert (await shop.ops.execute("shop.find", {"name": "apple"})).data == 1
    with pytest.raises(CallError, match="There is no pear") as failed:
        await shop.ops.execute("shop.find", {"name": "pear"})
    assert failed.value.code == "NOT_FOUND"
    assert shop.log == ["open", "close", "open", "CallError", "close"]


async def test_an_exception_that_a_provider_swallows_still_fails_the_call(shop: Shop) -> None:
    def swallow() -> Iterator[None]:
        try:
            yield
        except ValueError:
            shop.log.append("swallowed")

    @shop.ops.query
    def fail(connection: Annotated[Connection, Depends(shop.connect)], _: Annotated[None, Depends(swallow)]) -> None:
        raise ValueError("no")

    with pytest.raises(CallError, match="no"):
        await shop.ops.execute("shop.fail")
    assert shop.log == ["open", "swallowed", "ValueError", "close"]


async def test_a_failed_commit_fails_the_call(shop: Shop) -> None:
    def commit() -> Iterator[None]:
        yield
        raise CallError("CONFLICT", "The transaction was not committed")

    @shop.ops.mutation
    def buy(_: Annotated[None, Depends(commit)]) -> int:
        return 3

    with pytest.raises(CallError, match="not committed"):
        await shop.ops.execute("shop.buy")


async def test_a_result_that_does_not_fit_is_an_error_to_the_dependencies(shop: Shop) -> None:
    @shop.ops.query(strict_output=True)
    def stock(connection: Annotated[Connection, Depends(shop.connect)]) -> int:
        return "many"  # type: ignore[return-value]

    with pytest.raises(CallError):
        await shop.ops.execute("shop.stock")
    assert shop.log == ["open", "CallError", "close"]


async def test_a_provider_is_asked_once_per_call_unless_it_says_otherwise(shop: Shop) -> None:
    def number() -> object:
        shop.log.append("asked")
        return object()

    def twice(it: Annotated[object, Depends(number)]) -> object:
        return it

    @shop.ops.query
    def same(
        one: Annotated[object, Depends(number)],
        two: Annotated[object, Depends(twice)],
        own: Annotated[object, Depends(number, use_cache=False)],
    ) -> list[bool]:
        return [one is two, one is own]

    assert (await shop.ops.execute("shop.same")).data == [True, False]
    assert (await shop.ops.execute("shop.same")).data == [True, False]
    assert shop.log == ["asked"] * 4


async def test_dependencies_are_closed_in_reverse_order(shop: Shop) -> None:
    def named(name: str) -> Iterator[str]:
        shop.log.append(f"open {name}")
        yield name
        shop.log.append(f"close {name}")

    pool = functools.partial(named, "pool")

    async def session(pool: Annotated[str, Depends(pool)]) -> AsyncIterator[str]:
        shop.log.append(f"open session of {pool}")
        yield "session"
        shop.log.append("close session")

    @shop.ops.query
    def use(session: Annotated[str, Depends(session)]) -> str:
        return session

    assert (await shop.ops.execute("shop.use")).data == "session"
    assert shop.log == ["open pool", "open session of pool", "close session", "close pool"]


async def test_a_provider_takes_the_context_of_its_call(shop: Shop) -> None:
    def who(context: Context) -> str:
        return "" if context.identity is None else context.identity.id

    async def who_later(context: Context) -> str:
        return who(context)

    @shop.ops.query
    async def both(one: Annotated[str, Depends(who)], two: Annotated[str, Depends(who_later)]) -> list[str]:
        return [one, two]

    async with testing.http(shop.ops) as client:
        assert (await client.call("shop.both", {}, identity=Identity("ann"))).data == ["ann", "ann"]


async def test_a_provider_composes_other_operations(shop: Shop) -> None:
    @shop.ops.query
    async def price() -> int:
        await asyncio.sleep(0)
        return 2

    def from_thread(context: Context) -> Any:
        return context.env.shop.price().data

    async def from_loop(context: Context, first: Annotated[int, Depends(from_thread)]) -> Any:
        return first + (await context.env.shop.price()).data

    @shop.ops.query
    async def total(context: Context, both: Annotated[int, Depends(from_loop)]) -> Any:
        return both + (await context.env.shop.price()).data

    assert (await asyncio.wait_for(shop.ops.execute("shop.total"), PATIENCE)).data == 6


def test_a_program_without_an_event_loop_needs_none_for_a_def_provider(shop: Shop) -> None:
    @shop.ops.query
    def where(
        one: Annotated[Connection, Depends(shop.connect)],
        two: Annotated[Connection, Depends(shop.connect, scope="app")],
    ) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return threading.current_thread() is threading.main_thread()
        return False

    assert shop.ops.execute_now("shop.where").data is True
    assert shop.log == ["open", "open", "close"]


def test_a_program_without_an_event_loop_gets_one_for_an_async_provider(shop: Shop) -> None:
    @shop.ops.query
    def stock(
        one: Annotated[Connection, Depends(shop.connect_later)],
        two: Annotated[Connection, Depends(shop.connect_later, scope="app")],
    ) -> int:
        return 3

    for _ in range(2):
        assert shop.ops.execute_now("shop.stock").data == 3
    assert shop.log == ["open", "open", "close", "close"] * 2  # what belongs to a loop is closed with it


# providers


class Settings:
    def __init__(self, name: Annotated[str, Depends(lambda: "apples")], count: int = 2, **_: Any) -> None:
        self.text = f"{count} {name}"

    def doubled(self) -> str:
        return self.text * 2


class Ready:
    async def __call__(self) -> str:
        return "ready"


@contextmanager
def managed() -> Iterator[str]:
    yield "managed"


@asynccontextmanager
async def managed_later() -> AsyncIterator[str]:
    yield "managed later"


PROVIDERS = {
    "class": (Settings, "2 apples"),
    "bound method": (Settings("pears").doubled, "2 pears2 pears"),
    "partial": (functools.partial(Settings, "figs", count=7), "7 figs"),
    "callable object": (Ready(), "ready"),
    "lambda": (lambda: "it", "it"),
    "contextmanager": (managed, "managed"),
    "asynccontextmanager": (managed_later, "managed later"),
}


@pytest.mark.parametrize(("provider", "value"), PROVIDERS.values(), ids=list(PROVIDERS))
async def test_every_callable_can_be_a_provider(shop: Shop, provider: Callable[..., Any], value: str) -> None:
    @shop.ops.query
    def use(it: Annotated[Any, Depends(provider)]) -> str:
        return getattr(it, "text", it)  # type: ignore[no-any-return]

    assert (await shop.ops.execute("shop.use")).data == value


async def test_a_class_alone_provides_itself(shop: Shop) -> None:
    @shop.ops.query
    def use(settings: Annotated[Settings, Depends()]) -> str:
        return settings.text

    assert (await shop.ops.execute("shop.use")).data == "2 apples"


# what is wrong is said at registration


def wrong_default(pool: str = Depends(lambda: "")) -> str:  # type: ignore[assignment]
    return pool


def of_fastapi(user: Annotated[str, fastapi.Depends(lambda: "")]) -> str:
    return user


def of_fastapi_as_default(user: str = fastapi.Security(lambda: "")) -> str:
    return user


def of_fastmcp(user: str = fastmcp.dependencies.Depends(lambda: "")) -> str:
    return user


def below_fastapi(pool: Annotated[str, Depends(of_fastapi_as_default)]) -> str:
    return pool


def of_a_header(agent: Annotated[str, fastapi.Header()]) -> str:
    return agent


def of_an_upload(file: fastapi.UploadFile) -> str:
    return repr(file)


def wrong_place(pool: Annotated[str, Depends(lambda: "")] | None) -> str | None:
    return pool


def without_parentheses(pool: Annotated[str, Depends]) -> str:
    return pool


def unfilled(name: str) -> str:
    return name


def wrong_parameter(pool: Annotated[str, Depends(unfilled)]) -> str:
    return pool


def with_context(context: Context) -> str:
    return context.request_id


def wrong_context(pool: Annotated[str, Depends(with_context, scope="app")]) -> str:
    return pool


def of_the_call() -> str:
    return ""


def of_the_app(it: Annotated[str, Depends(of_the_call)]) -> str:
    return it


def wrong_scope(pool: Annotated[str, Depends(of_the_app, scope="app")]) -> str:
    return pool


def one(it: "Annotated[str, Depends(two)]") -> str:
    return it


def two(it: "Annotated[str, Depends(one)]") -> str:
    return it


def cycle(it: Annotated[str, Depends(one)]) -> str:
    return it


WRONG = {
    wrong_default: r"wrong_default\(\): parameter 'pool' has Depends\(...\) as its default: write pool: Annotated\[str",
    of_fastapi: r"parameter 'user' has Depends of FastAPI: write user: Annotated\[T, enfold.Depends\(...\)\]",
    of_fastapi_as_default: "parameter 'user' has Security of FastAPI",
    of_fastmcp: "parameter 'user' has Depends of FastMCP",
    below_fastapi: r"of_fastapi_as_default\(\): parameter 'user' has Security of FastAPI",
    of_a_header: "parameter 'agent' has Header of FastAPI, which Enfold does not read: leave it out, or use pydantic.Field",
    of_an_upload: "parameter 'file': UploadFile of fastapi is not supported: annotate a file as bytes",
    wrong_place: "must be the annotation of a parameter itself",
    without_parentheses: r"parameter 'pool': Depends needs parentheses: write Annotated\[str, Depends\(...\)\]",
    wrong_parameter: r"unfilled\(\): nothing provides the parameter 'name' of a dependency",
    wrong_context: r"with_context\(\) has scope 'app' and cannot take a Context",
    wrong_scope: r"of_the_app\(\) has scope 'app' and cannot depend on of_the_call\(\), which has scope 'call'",
    cycle: "Dependencies form a cycle: one -> two -> one",
}


@pytest.mark.parametrize(("function", "sentence"), WRONG.items(), ids=[each.__name__ for each in WRONG])
def test_a_wrong_dependency_is_refused_at_registration(shop: Shop, function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        shop.ops.query(function)
    assert len(shop.ops) == 0


def test_depends_refuses_anything_but_a_provider() -> None:
    with pytest.raises(TypeError, match="Depends takes a function, not Connection"):
        Depends(Connection([]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unknown scope 'request': use call or app"):
        Depends(Connection, scope="request")  # type: ignore[arg-type]


# the application


def never() -> Iterator[str]:
    yield from ()


async def later_never() -> AsyncIterator[str]:
    for each in "":
        yield each


def twice() -> Iterator[str]:
    yield "a"
    yield "b"


async def later_twice() -> AsyncIterator[str]:
    yield "a"
    yield "b"


@pytest.mark.parametrize("provider", [never, later_never, twice, later_twice])
async def test_a_provider_that_does_not_yield_exactly_once_is_named(shop: Shop, provider: Callable[..., Any]) -> None:
    @shop.ops.query
    def price(it: Annotated[str, Depends(provider)]) -> str:
        return it

    with pytest.raises(CallError, match=rf"{provider.__name__}\(\) must yield exactly once: generator didn't"):
        await shop.ops.execute("shop.price")


async def test_calls_at_the_same_time_share_one_opening(shop: Shop) -> None:
    begun = asyncio.Event()

    async def pool() -> object:
        shop.log.append("open")
        await begun.wait()
        return object()

    @shop.ops.query
    async def name(pool: Annotated[object, Depends(pool, scope="app")]) -> int:
        return id(pool)

    running = [asyncio.ensure_future(shop.ops.execute("shop.name")) for _ in range(20)]
    await until(lambda: shop.log == ["open"])
    running.pop().cancel()  # the others still get it
    begun.set()
    assert len({envelope.data for envelope in await asyncio.gather(*running)}) == 1
    assert shop.log == ["open"]


async def test_a_dependency_that_failed_to_open_is_opened_by_the_next_call(shop: Shop) -> None:
    failures = [CallError("UNAVAILABLE", "The database is down")]

    def pool() -> str:
        if failures:
            raise failures.pop()
        return "pool"

    @shop.ops.query
    async def name(pool: Annotated[str, Depends(pool, scope="app")]) -> str:
        return pool

    results = await asyncio.gather(*(shop.ops.execute("shop.name") for _ in range(3)), return_exceptions=True)
    assert {str(result) for result in results} == {"The database is down"}
    assert {result.code for result in results if isinstance(result, CallError)} == {"UNAVAILABLE"}
    assert (await shop.ops.execute("shop.name")).data == "pool"


async def test_the_application_closes_what_needs_others_first(shop: Shop) -> None:
    def engine() -> Iterator[str]:
        yield "engine"
        shop.log.append("engine closed")

    async def pool(engine: Annotated[str, Depends(engine, scope="app")]) -> AsyncIterator[str]:
        opened_by = asyncio.current_task()
        yield engine
        shop.log.append(f"pool closed by its task: {asyncio.current_task() is opened_by}")

    @shop.ops.query
    def use(pool: Annotated[str, Depends(pool, scope="app")]) -> str:
        return pool

    shop.ops.on_stop(lambda: shop.log.append("stop"))
    async with testing.direct(shop.ops) as client:
        assert (await client.call("shop.use", {})).data == "engine"
    assert shop.log == ["stop", "pool closed by its task: True", "engine closed"]


# time


async def test_the_deadline_covers_providers(shop: Shop) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    @shop.ops.query(timeout=0.05)
    async def use(
        connection: Annotated[Connection, Depends(shop.connect)], slow: Annotated[None, Depends(slow)]
    ) -> None: ...

    with pytest.raises(CallError) as late:
        await asyncio.wait_for(shop.ops.execute("shop.use"), PATIENCE)
    assert late.value.code == "TIMEOUT"
    assert shop.log == ["open", "CancelledError", "close"]


async def test_dependencies_that_a_thread_still_uses_are_closed_when_it_ends(shop: Shop) -> None:
    may_end = threading.Event()

    @shop.ops.query(timeout=0.05)
    def use(connection: Annotated[Connection, Depends(shop.connect)]) -> None:
        may_end.wait(10)
        connection.log.append("used")

    with pytest.raises(CallError) as late:
        await shop.ops.execute("shop.use")
    assert late.value.code == "TIMEOUT"
    assert shop.log == ["open"]
    may_end.set()
    await until(lambda: "close" in shop.log)
    assert shop.log == ["open", "used", "CancelledError", "close"]


async def test_dependencies_that_a_blocking_stream_still_uses_are_closed_when_its_thread_ends(shop: Shop) -> None:
    may_end = threading.Event()

    @shop.ops.subscription(timeout=0.05)
    def count(connection: Annotated[Connection, Depends(shop.connect)]) -> Iterator[int]:
        may_end.wait(10)
        connection.log.append("used")
        yield 1

    with pytest.raises(CallError) as late:
        await anext(shop.ops.subscribe("shop.count"))
    assert late.value.code == "TIMEOUT"
    assert shop.log == ["open"]
    may_end.set()
    await until(lambda: "close" in shop.log)
    assert shop.log[:2] == ["open", "used"]


async def test_a_dependency_opened_by_a_late_provider_is_closed_too(shop: Shop) -> None:
    may_end = threading.Event()

    def slow() -> Iterator[None]:
        may_end.wait(10)
        shop.log.append("opened late")
        yield
        shop.log.append("never reached")

    @shop.ops.query(timeout=0.05)
    def use(connection: Annotated[Connection, Depends(shop.connect)], slow: Annotated[None, Depends(slow)]) -> None: ...

    with pytest.raises(CallError):
        await shop.ops.execute("shop.use")
    may_end.set()
    await until(lambda: "close" in shop.log)
    assert shop.log == ["open", "opened late", "CancelledError", "close"]


async def test_dependencies_are_closed_also_while_all_threads_are_busy(shop: Shop) -> None:
    ops = OperationRegistry("busy", threads=1)
    has_begun, may_end = threading.Event(), threading.Event()

    @ops.query
    async def use(connection: Annotated[Connection, Depends(shop.connect)]) -> None:
        await until(lambda: ops.services.threads.busy == 0)
        blocked.append(asyncio.ensure_future(ops.execute("busy.block")))
        await until(has_begun.is_set)

    @ops.query
    def block() -> None:
        has_begun.set()
        may_end.wait(10)

    blocked: list[asyncio.Future[Any]] = []
    using = asyncio.ensure_future(ops.execute("busy.use"))
    await until(has_begun.is_set)
    may_end.set()
    await asyncio.wait_for(using, PATIENCE)
    await asyncio.wait_for(blocked[0], PATIENCE)
    assert shop.log == ["open", "close"]


# middleware and tasks


async def test_dependencies_are_resolved_inside_middleware_once_per_attempt(shop: Shop) -> None:
    @shop.ops.middleware
    async def again(call: Any, next: Any) -> Any:
        shop.log.append("middleware")
        try:
            return await next(call)
        except CallError:
            return await next(call)

    @shop.ops.query
    def use(connection: Annotated[Connection, Depends(shop.connect)]) -> int:
        if shop.log.count("open") == 1:
            raise ValueError("the first time")
        return 3

    assert (await shop.ops.execute("shop.use")).data == 3
    assert shop.log == ["middleware", "open", "ValueError", "close", "open", "close"]


async def test_a_task_resolves_its_dependencies_in_each_attempt(shop: Shop) -> None:
    @shop.ops.mutation(durable=True)
    async def sign(context: Context, connection: Annotated[Connection, Depends(shop.connect)]) -> str:
        return (await context.ask("Sure?")).action

    async with Tasks(shop.ops, MemoryTasks()) as tasks:
        handle = await tasks.start("shop.sign", {})
        await until(lambda: shop.log == ["open", "Suspension", "close"])
        async for task in handle.watch():
            if task.questions:
                await handle.answer({key: {"action": "accept", "content": {}} for key in task.questions})
        assert (await handle.result()).data == "accept"
    assert shop.log == ["open", "Suspension", "close", "open", "close"]


# overrides


async def test_a_test_overrides_a_provider_on_every_surface(shop: Shop) -> None:
    @shop.ops.query
    def stock(
        connection: Annotated[Any, Depends(shop.connect)],
        *,
        pool: Annotated[Any, Depends(shop.connect_later, scope="app")],
    ) -> Any:
        return [str(connection), str(pool)]

    for surface in testing.SURFACES:
        async with testing.open_client(surface, shop.ops) as client:
            with testing.override(shop.connect, lambda: "fake"), testing.override(shop.connect_later, lambda: "pool"):
                assert (await client.call("shop.stock", {})).data == ["fake", "pool"], surface
    assert shop.log == []
    assert "Connection" in (await shop.ops.execute("shop.stock")).data[0]


async def test_overrides_at_the_same_time_do_not_see_each_other(shop: Shop) -> None:
    @shop.ops.query
    async def use(it: Annotated[Any, Depends(shop.connect)]) -> Any:
        await asyncio.sleep(0)
        return it

    async def one_test(number: int) -> None:
        with testing.override(shop.connect, lambda: number):
            for _ in range(5):
                await asyncio.sleep(0)
                assert (await shop.ops.execute("shop.use")).data == number

    await asyncio.gather(*map(one_test, range(5)))


async def test_an_override_reaches_what_the_application_has_opened(shop: Shop) -> None:
    def engine() -> str:
        return "engine"

    def pool(engine: Annotated[str, Depends(engine, scope="app")]) -> str:
        return f"pool of {engine}"

    def wrapped(engine: Annotated[str, Depends(engine, scope="app")]) -> str:
        return f"wrapped {engine}"

    @shop.ops.query
    def use(pool: Annotated[str, Depends(pool, scope="app")]) -> str:
        return pool

    assert (await shop.ops.execute("shop.use")).data == "pool of engine"
    with testing.override(engine, lambda: "fake"):
        assert (await shop.ops.execute("shop.use")).data == "pool of fake"
    with testing.override(engine, wrapped):  # the replacement may need what it replaces
        assert (await shop.ops.execute("shop.use")).data == "pool of wrapped engine"
    assert (await shop.ops.execute("shop.use")).data == "pool of engine"


def test_an_override_refuses_anything_but_a_provider(shop: Shop) -> None:
    with pytest.raises(TypeError, match="override takes two providers, not 3"), testing.override(shop.connect, 3):  # type: ignore[arg-type]
        pass


def test_an_operation_with_dependencies_moves_to_another_registry(shop: Shop) -> None:
    @shop.ops.query
    def stock(connection: Annotated[Connection, Depends(shop.connect)]) -> int:
        return 3

    other = OperationRegistry("mall")
    other.register_all(shop.ops.mount("west"))
    assert other.execute_now("west.shop.stock").data == 3
    assert msgspec.json.encode(other.get_spec("west.shop.stock").input_schema).find(b"connection") == -1
