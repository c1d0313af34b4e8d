"""Workers, servers and callers are killed again and again: no accepted task is lost, no outcome recorded twice.

`ENFOLD_FAULTS=1` (`make faults`) runs the whole table; otherwise a small sample of it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from tests.calls.networks import Server, free_port, nats_server_program
from tests.calls.processes import IS_FULL, ROOT, SCALE, say
from tests.tasks.fault_process import Log, opened_store, operations
from tests.tasks.stored import left_when_stored
from tests.waiting import Said, until

from enfold import CallError
from enfold.calls.nats import NATSTransport
from enfold.tasks import Status, Task, TaskHandle, TaskLimits, Tasks
from enfold.tasks.nats_streams import Names, task_key

COUNT = 2000 if IS_FULL else int(2000 * SCALE / 2)
WORKER_KILLS = 20 if IS_FULL else 1
ACCEPTER_KILLS = 8 if IS_FULL else 1
SERVER_KILLS = 3 if IS_FULL else 1
WORKERS = 3 if IS_FULL else 1
ACK_WAIT = 2.0
PATIENT = 6.0  # an ack_wait within which a worker comes back on a slow machine, too
YES = {"action": "accept", "content": {"n": 1}}

only_full = pytest.mark.skipif(not IS_FULL, reason="run by `make faults`")


class Processes:
    """The processes of one test, and the file in which they log what they do."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self.log = log
        self.workers: list[subprocess.Popen[str]] = []
        self._all: list[subprocess.Popen[str]] = []
        self.killed: Counter[str] = Counter()
        self.cut = 0  # tasks that a killed process was running
        self._read = 0
        self._logged: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        log.touch()

    def start(self, role: str, *rest: object) -> subprocess.Popen[str]:
        words = [role, self.address, str(self.log), *map(str, rest)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.tasks.fault_process", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._all.append(process)
        return process

    def work(self, count: int = 1, *more: object) -> subprocess.Popen[str]:
        started = [self.start("work", *more) for _ in range(count)]
        for worker in started:
            assert Said(worker.stdout).line() == "ready\n"
        self.workers += started
        return started[-1]

    def replace(self, worker: subprocess.Popen[str]) -> None:
        """Kill a worker; another comes."""
        self.workers.remove(worker)
        self.kill(worker, "worker")
        self.cut += len(self.running(worker))
        self.work()

    def kill(self, process: subprocess.Popen[str], who: str) -> None:
        """Kill a process; None if it had ended before."""
        process.kill()
        self.killed[who] += process.wait() == -signal.SIGKILL

    def running(self, worker: subprocess.Popen[str]) -> set[str]:
        """The tasks that a worker has started and that are not recorded as ended."""
        started = {task_id for task_id, pid in self.logged("start") if int(pid) == worker.pid}
        return started - {task_id for task_id, _ in self.logged("recorded")}

    def logged(self, word: str) -> list[tuple[str, str]]:
        """What all processes have written down under a word so far; each line is read once."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.decode("ascii").splitlines():
            first, task_id, rest = line.split(" ", 2)
            self._logged[first].append((task_id, rest))
        return self._logged[word]

    def accepted(self) -> int:
        return len(dict(self.logged("accepted")))

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(str(tmp_path / "tasks.db"), tmp_path / "log")
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(nats_server_program(), tmp_path, f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n')
    made.wait_until_ready()
    yield made
    made.close()


@pytest.fixture
def on_nats(server: Server, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(f"{server.url}?ack_wait={ACK_WAIT}", tmp_path / "log")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "nats"])
def processes(request: pytest.FixtureRequest) -> Processes:
    made: Processes = request.getfixturevalue(f"on_{request.param}")
    return made


@asynccontextmanager
async def edge(processes: Processes) -> AsyncIterator[Tasks]:
    """Tasks that can be started and read here, and run elsewhere."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(processes.address))
        tasks = Tasks(operations(Log("/dev/null")), store, at_once=0, limits=TaskLimits(limit=1_000_000))
        stack.push_async_callback(tasks.close)
        yield tasks


def order_under_kills(
    processes: Processes,
    operation: str,
    kill_server: Callable[[], None] = lambda: None,
    servers: int = 0,
    role: str = "order",
) -> None:
    """Order all tasks; those who order, those who work and the server are killed on the way, and others go on."""
    dice, first = random.Random(operation), 0  # noqa: S311  # to be thrown again
    kills = ["accepter"] * ACCEPTER_KILLS + ["worker"] * WORKER_KILLS + ["server"] * servers
    dice.shuffle(kills)
    due = [(int((place + 1) * COUNT / (len(kills) + 1)), who) for place, who in enumerate(kills)]
    while first < COUNT:
        accepter = processes.start(role, first, COUNT - first, operation)
        allow(accepter, due)
        while accepter.poll() is None:
            time.sleep(0.01)
            if not due or due[0][0] > processes.accepted():
                continue
            _, who = due.pop(0)
            allow(accepter, due)
            if who == "accepter":
                processes.kill(accepter, who)
                processes.cut += len(processes.running(accepter))
            elif who == "worker":
                processes.replace(max(processes.workers, key=lambda worker: len(processes.running(worker))))
            else:
                kill_server()
                processes.killed[who] += 1
        first = max((int(n) for _, n in processes.logged("accepted")), default=-1) + 1
    assert processes.killed == Counter(kills), "a run without its kills shows nothing"


def allow(accepter: subprocess.Popen[str], due: list[tuple[int, str]]) -> None:
    """Let it order as far as the kill after the next one, so that it never ends before all of them."""
    ahead = [at for at, _ in due[1:2]] or [COUNT - bool(due)]
    assert accepter.stdin is not None
    accepter.stdin.write(f"{ahead[0]}\n")
    accepter.stdin.flush()


async def endings(processes: Processes, within: float = 180.0) -> dict[str, Task]:
    """How every accepted task has ended."""
    ended: dict[str, Task] = {}
    async with edge(processes) as tasks, asyncio.timeout(within):
        for task_id in dict(processes.logged("accepted")):
            while task_id not in ended:
                with suppress(CallError):
                    async for task in (await tasks.get(task_id)).watch():
                        if task.is_ended:
                            ended[task_id] = task
    return ended


async def judge(processes: Processes, operation: str, row: str) -> None:
    """Nothing lost, nothing recorded twice; with `fail` nothing started twice."""
    ended = await endings(processes)
    counts = Counter(task.status for task in ended.values())
    starts, records, effects = (
        Counter(task_id for task_id, _ in processes.logged(word)) for word in ("start", "recorded", "effect")
    )
    twice = {"effect": sum(n > 1 for n in effects.values()), "start": sum(n > 1 for n in starts.values())}
    told = {str(status): n for status, n in counts.items()}
    lost, again = COUNT - sum(counts.values()), sum(n > 1 for n in records.values())
    deaths = f"killed {dict(processes.killed)}, {processes.cut} tasks cut"
    say(row, f"{told}, {deaths}, lost {lost}, recorded twice {again}, effect and start twice {twice}")
    assert sum(counts.values()) == processes.accepted() == COUNT
    assert again == 0
    assert processes.cut > 0 or not IS_FULL
    if operation == "shop.once":
        assert twice["start"] == 0
        assert counts[Status.COMPLETED] + counts[Status.FAILED] == COUNT
    else:
        assert counts[Status.COMPLETED] == COUNT
    if operation == "shop.keyed":
        assert len({task_id for task_id, _ in processes.logged("keyed")}) == COUNT


@pytest.mark.parametrize(
    ("operation", "role", "row"),
    [
        pytest.param("shop.again", "order", "11", marks=only_full),
        ("shop.again", "both", "11, begun as they are accepted"),
        ("shop.once", "order", "12"),
        ("shop.once", "both", "12, begun as they are accepted"),
    ],
)
async def test_sqlite_loses_nothing_when_workers_and_accepters_are_killed(
    on_sqlite: Processes, operation: str, role: str, row: str
) -> None:
    on_sqlite.work(WORKERS)
    order_under_kills(on_sqlite, operation, role=role)
    await judge(on_sqlite, operation, row)
    with closing(sqlite3.connect(on_sqlite.address)) as connection, connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("operation", "row"),
    [
        pytest.param("shop.again", "13", marks=only_full),
        ("shop.once", "14"),
        pytest.param("shop.keyed", "15", marks=only_full),
    ],
)
async def test_jetstream_loses_nothing_when_workers_and_servers_are_killed(
    on_nats: Processes, server: Server, operation: str, row: str
) -> None:
    def kill_server() -> None:
        server.kill()
        server.restart()

    on_nats.work(WORKERS)
    order_under_kills(on_nats, operation, kill_server, SERVER_KILLS)
    await judge(on_nats, operation, row)
    async with NATSTransport(server.url) as transport:
        queue = await transport.client.jetstream().stream_info("enfold_tasks_queue")
        assert queue.state.messages == 0


@only_full
async def test_three_nodes_lose_nothing_when_one_after_another_is_killed(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    nodes = [
        Server(
            nats_server_program(),
            tmp_path,
            f'server_name: n{n}\njetstream {{ store_dir: "{tmp_path / f"n{n}"}" }}\n'
            f'cluster {{ name: c, listen: "127.0.0.1:{ports[n]}", routes: [{routes}] }}\n',
            name=f"n{n}",
        )
        for n in range(3)
    ]
    for node in nodes:
        node.wait_until_ready()
    processes = Processes(",".join(node.url for node in nodes) + f"?ack_wait={ACK_WAIT}&replicas=3", tmp_path / "log")
    turn = iter(range(100))

    def kill_a_node() -> None:
        node = nodes[next(turn) % 3]
        node.kill()
        time.sleep(1)
        node.restart()

    try:
        await until_stored(processes)
        processes.work(WORKERS)
        order_under_kills(processes, "shop.again", kill_a_node, 5)
        await judge(processes, "shop.again", "16")
    finally:
        processes.close()
        for node in nodes:
            node.close()


async def until_stored(processes: Processes) -> None:
    """Wait until a new cluster takes tasks."""
    async with edge(processes) as tasks, asyncio.timeout(60):
        while True:
            with suppress(CallError):
                await tasks.store.list(None)
                return
            await asyncio.sleep(0.2)


@only_full
async def test_accepted_tasks_are_found_after_the_edge_has_died(processes: Processes) -> None:
    await asyncio.to_thread(processes.start("die", 200).wait)
    assert processes.accepted() == 200
    processes.work()
    ended = await endings(processes)
    assert {task.status for task in ended.values()} == {Status.COMPLETED}
    async with edge(processes) as tasks:  # the caller, who has died, too, comes back with their key
        for task_id, n in processes.logged("accepted"):
            assert (await tasks.start("shop.again", {"n": int(n)}, idempotency_key=f"k{n}")).id == task_id
        with pytest.raises(CallError) as raised:
            await tasks.start("shop.again", {"n": 1}, idempotency_key="k0")
        assert raised.value.code == "VALIDATION_ERROR"
    say("17, 18", f"{len(ended)} of {processes.accepted()} found and done")


async def test_a_key_stands_for_one_task_after_the_processes_that_knew_it_died(
    processes: Processes, request: pytest.FixtureRequest
) -> None:
    processes.work()
    async with edge(processes) as one, edge(processes) as other:
        starts = [tasks.start("shop.again", {"n": 1}, idempotency_key="k") for tasks in (one, other) * 5]
        (task_id,) = {handle.id for handle in await asyncio.gather(*starts)}
    if "nats" in processes.address:
        server: Server = request.getfixturevalue("server")
        server.kill()
        server.restart()
    async with edge(processes) as later:
        handle = await later.start("shop.again", {"n": 1}, idempotency_key="k")
        assert handle.id == task_id
        assert (await handle.result()).data == 2
        with pytest.raises(CallError) as raised:
            await later.start("shop.again", {"n": 2}, idempotency_key="k")
        assert raised.value.code == "VALIDATION_ERROR"
    assert {each for each, _ in processes.logged("effect")} == {task_id}


@only_full
async def test_workers_whose_clocks_differ_run_every_task_once_and_keep_it(on_nats: Processes, server: Server) -> None:
    """The server decides who holds a task; clocks matter only for deadlines and for how long outcomes are kept."""
    ahead, behind = on_nats.work(1, 600), on_nats.work(1, -600)
    async with edge(on_nats) as tasks, NATSTransport(server.url) as transport:
        handles = [await tasks.start("shop.again", {"n": n, "ms": 200}) for n in range(60)]
        await holder(on_nats, handles[0].id)
        on_nats.replace(ahead if on_nats.running(ahead) else behind)
        assert [(await handle.result()).data for handle in handles] == [n * 2 for n in range(60)]
        short = await tasks.start("shop.again", {"n": 1}, deadline=1)
        states = [await handle.state() for handle in (*handles, short)]
        assert max(Counter(task_id for task_id, _ in on_nats.logged("recorded")).values()) == 1
        context = transport.client.jetstream()
        for task in states:
            kept = await context.get_msg("KV_enfold_tasks", subject=Names().key(task_key(task.order)), direct=True)
            assert int((kept.headers or {})["Nats-TTL"]) >= task.order.keep
    say("clocks", f"{len(handles)} of {len(handles)} done once by clocks 20 minutes apart")


async def test_a_killed_workers_task_is_started_elsewhere_soon(processes: Processes) -> None:
    processes.work(2)
    took = []
    for n in range(5 if IS_FULL else 1):
        async with edge(processes) as tasks:
            handle = await tasks.start("shop.again", {"n": n, "ms": 500})
            worker = await holder(processes, handle.id)
            worker.kill()
            killed = time.monotonic()
            await logged(processes, "start", handle.id, 2)
            took.append(time.monotonic() - killed)
            assert (await handle.result()).data == n * 2
        if IS_FULL:
            processes.replace(worker)
    say("19", f"started elsewhere after {', '.join(f'{each:.2f}' for each in took)} s")
    if IS_FULL:
        assert max(took) <= (1 if "nats" not in processes.address else ACK_WAIT + 1)


async def holder(processes: Processes, task_id: str | None) -> subprocess.Popen[str]:
    """The worker that runs a task."""
    await logged(processes, "start", task_id, 1)
    pid = next(int(rest) for each, rest in processes.logged("start") if each == task_id)
    return next(worker for worker in processes.workers if worker.pid == pid)


async def logged(processes: Processes, word: str, task_id: str | None, times: int) -> None:
    await until(lambda: sum((each == task_id for each, _ in processes.logged(word))) >= times)


@only_full
async def test_a_frozen_worker_that_wakes_changes_nothing(processes: Processes) -> None:
    """On SQLite a stopped process keeps its tasks; on NATS another has taken over by then."""
    processes.work(2)
    async with edge(processes) as tasks:
        handle = await tasks.start("shop.again", {"n": 4, "ms": 500})
        frozen = await holder(processes, handle.id)
        frozen.send_signal(signal.SIGSTOP)
        if "nats" in processes.address:
            await logged(processes, "recorded", handle.id, 1)
            before = await handle.state()
            frozen.send_signal(signal.SIGCONT)
            await logged(processes, "fenced", handle.id, 1)
            assert await handle.state() == before
        else:
            await asyncio.sleep(1.5)
            assert len(processes.logged("start")) == 1
            frozen.send_signal(signal.SIGCONT)
        assert (await handle.result()).data == 8


@only_full
async def test_a_task_that_kills_its_worker_fails_after_three_attempts_and_others_continue(
    processes: Processes,
) -> None:
    processes.work()
    async with edge(processes) as tasks:
        deadly = await tasks.start("shop.deadly")
        for times in range(1, 4):
            await logged(processes, "start", deadly.id, times)
            processes.work()
        with pytest.raises(CallError) as raised:
            await deadly.result()
        assert (raised.value.code, raised.value.details) == ("OUTCOME_UNKNOWN", {"reason": "worker_died"})
        assert (await (await tasks.start("shop.again", {"n": 1})).result()).data == 2
        assert sum(task_id == deadly.id for task_id, _ in processes.logged("start")) == 3


async def test_questions_are_answered_once_under_kills(processes: Processes) -> None:
    """Two questions at once are answered one by one, each again with other words, by callers some of whom die on the way."""
    count, kills = (400, 9) if IS_FULL else (12, 1)
    processes.work(WORKERS)
    dice, dead = random.Random(23), Counter[str]()  # noqa: S311
    async with edge(processes) as tasks, AsyncExitStack() as stack:
        network = None
        if "nats" in processes.address:
            urls = processes.address.partition("?")[0].split(",")
            network = await stack.enter_async_context(NATSTransport(urls))
        handles = [await tasks.start("shop.asking", {"n": n}) for n in range(count)]
        killing = asyncio.create_task(keep_killing(processes, dice, kills))
        results = await asyncio.gather(*(answered(tasks, str(handle.id), dice, dead, network) for handle in handles))
        await killing
    effects = Counter(task_id for task_id, _ in processes.logged("recorded"))
    right, twice = results.count(3), sum(n > 1 for n in effects.values())
    say("23", f"{right} of {count} right, recorded twice {twice}, answerers dead before queueing {dead.total()}")
    assert results == [3] * count
    assert max(effects.values()) == 1
    assert dead or "nats" not in processes.address


async def keep_killing(processes: Processes, dice: random.Random, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(processes.replace, dice.choice(processes.workers))


async def answered(
    tasks: Tasks, task_id: str, dice: random.Random, dead: Counter[str], network: NATSTransport | None
) -> object:
    """Answer whatever is asked, one question after the other and each twice, the second time otherwise."""
    handle = await tasks.get(task_id)
    async for task in handle.watch():
        for key in task.questions:
            await answer_or_die(tasks, task, key, dice, dead, network)
        if task.is_ended:
            return handle.outcome(task).data
    raise AssertionError("the task is gone")


async def answer_or_die(
    tasks: Tasks, task: Task, key: str, dice: random.Random, dead: Counter[str], network: NATSTransport | None
) -> None:
    """Answer a question; on NATS half of the answerers die when the answer is written, before the task is queued."""
    handle = await tasks.get(task.id)
    if network is not None and dice.random() < 0.5:
        dying = await left_when_stored(network, task.id, handle.answer({key: YES}))
        dead[task.id] += dying.cancelled()
        return
    for answer in (YES, {"action": "accept", "content": {"n": 100}}):
        assert key not in (await handle.answer({key: answer, "other": YES})).questions


@only_full
async def test_a_long_handler_on_a_blocked_loop_is_started_once(processes: Processes) -> None:
    address = processes.address.replace(f"ack_wait={ACK_WAIT}", "ack_wait=5")
    processes.address = address
    processes.work(2)
    async with edge(processes) as tasks:
        handle = await tasks.start("shop.blocking", {"seconds": 25})
        assert (await handle.result()).data == "done"
    assert len(processes.logged("start")) == 1


async def test_an_unreachable_store_is_unavailable_and_nothing_is_lost(on_nats: Processes, server: Server) -> None:
    on_nats.work()
    async with edge(on_nats) as tasks:
        handles = [await tasks.start("shop.again", {"n": n, "ms": 100}) for n in range(20)]
        server.kill()
        for call in (tasks.start("shop.again", {"n": 1}), handles[0].state()):
            with pytest.raises(CallError) as raised:
                await call
            assert (raised.value.code, raised.value.details) == ("UNAVAILABLE", {"reason": "store"})
        await asyncio.sleep(5 if IS_FULL else 0)
        server.restart()
        async with asyncio.timeout(60):
            while True:
                with suppress(CallError):
                    assert [(await handle.result()).data for handle in handles] == [n * 2 for n in range(20)]
                    break
                await asyncio.sleep(0.1)


async def test_a_store_that_was_unreachable_takes_no_tasks_from_live_workers(
    on_nats: Processes, server: Server
) -> None:
    """The first worker that is back finds no sign of the others, who are alive, and waits for it."""
    on_nats.address = on_nats.address.replace(f"ack_wait={ACK_WAIT}", f"ack_wait={PATIENT}")
    on_nats.work(3 if IS_FULL else 2)
    rounds, count = (3, 16) if IS_FULL else (1, 2)  # which leaves room for others
    seen = 0
    for _ in range(rounds * 5):
        begun = len(on_nats.logged("start"))
        frozen_for, ends = await one_outage(on_nats, server, count)
        if frozen_for > PATIENT / 3:
            continue  # a slow machine: a worker that is silent for longer may lose its tasks
        assert {task.status for task in ends} == {Status.COMPLETED}
        starts = Counter(task_id for task_id, _ in on_nats.logged("start")[begun:])
        assert max(starts.values()) == 1
        seen += 1
        if seen == rounds:
            break
    say("30", f"{seen * count} of {seen * count} done where they were begun, after {seen} outages")
    assert seen == rounds


async def one_outage(on_nats: Processes, server: Server, count: int) -> tuple[float, list[Task]]:
    """How long a worker was frozen after the server came back, and how the tasks ended that were begun before."""
    async with edge(on_nats) as tasks:
        handles = [await tasks.start("shop.once", {"n": n, "ms": 2000}) for n in range(count)]
        late = await holder(on_nats, handles[0].id)
        for handle in handles:
            await logged(on_nats, "start", handle.id, 1)
        late.send_signal(signal.SIGSTOP)  # so that it is surely the last to come back
        server.kill()
        await asyncio.sleep(PATIENT)  # the store does not answer meanwhile
        back = time.monotonic()
        server.restart()
        await until_stored(on_nats)
        async with edge(on_nats) as later:
            await asyncio.gather(*(done(later, "shop.again", n) for n in range(20)))  # by the others
        late.send_signal(signal.SIGCONT)
        frozen_for = time.monotonic() - back
        return frozen_for, [await ending(handle) for handle in handles]


async def done(tasks: Tasks, operation: str, n: int) -> None:
    assert (await (await tasks.start(operation, {"n": n, "ms": 1})).result()).data == n * 2


async def ending(handle: TaskHandle) -> Task:
    """How a task has ended, however often the store is unreachable while it is waited for."""
    async with asyncio.timeout(60):
        while True:
            with suppress(CallError):
                async for task in handle.watch():
                    if task.is_ended:
                        return task
            await asyncio.sleep(0.1)
    raise AssertionError("it does not end")
