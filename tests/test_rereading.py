"""A configuration that changes while it is served: only what changed is reopened, and no call is lost by it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.waiting import PATIENCE, until

from enfold import CallError, OperationRegistry, testing
from enfold.app.reconciler import open_reconciler
from enfold.app.reload import watch_config
from enfold.runtime.source_states import SourceState

LITTLE = Path(__file__).parent / "sources" / "mcp" / "little_server.py"
SHOP = """\
import asyncio
from pathlib import Path
from enfold import OperationRegistry

ops = OperationRegistry("shop")

@ops.on_stop
def stop() -> None:
    Path(__file__).with_name("stopped").touch()

@ops.query
async def slow() -> str:
    folder = Path(__file__).parent
    (folder / "begun").touch()
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return "stopped too early" if (folder / "stopped").exists() else "finished"

@ops.query
async def price() -> int:
    return 3
"""


def little(*options: str) -> str:
    return json.dumps([sys.executable, str(LITTLE), *options])


@asynccontextmanager
async def served(folder: Path, text: str) -> AsyncIterator[tuple[OperationRegistry, Callable[[str], None]]]:
    """A file that is followed, and a way to write it anew."""
    path = folder / "enfold.toml"
    path.write_text(text)
    async with open_reconciler(path, {}) as reconciler, watch_config(reconciler, {}):
        yield reconciler.registry, lambda text: _replace(path, text)


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def until_changed(registry: OperationRegistry, is_true: Callable[[], bool]) -> None:
    """Wait for a change of a source or an operation after which something is true."""
    changed = asyncio.Event()

    def hear(*_: SourceState | None) -> None:
        changed.set()

    ends = [registry.services.sources.watch(hear), registry.watch(changed.set)]
    while not is_true():
        changed.clear()
        await asyncio.wait_for(changed.wait(), PATIENCE)
    for end in ends:
        end()


async def test_only_changed_sources_are_reopened_and_their_running_calls_finish(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    same = f"[sources.same]\ncommand = {little()}\n"
    shop = '[sources.shop]\nfunctions = "shop.py:ops"\n'
    async with served(tmp_path, same + shop) as (registry, write), testing.mcp(registry) as client:
        pid = (await registry.execute("same.told")).data["pid"]
        running = asyncio.create_task(registry.execute("shop.slow"))
        await until((tmp_path / "begun").exists)
        write(f"# a line more\n{same}[sources.other]\ncommand = {little()}\n")
        await until_changed(registry, lambda: "other.add" in registry and "shop.slow" not in registry)
        assert [source.name for source in registry.services.sources] == ["same", "other"]
        assert not running.done()
        (tmp_path / "go").touch()
        assert (await running).data == "finished"
        assert (await registry.execute("same.told")).data["pid"] == pid
        assert "other.add" in await client.list()
    assert (tmp_path / "stopped").exists()


async def test_a_changed_source_continues_until_its_successor_is_there(tmp_path: Path) -> None:
    text = "[sources.a]\ncommand = {}\ntimeout = {}\n"
    async with served(tmp_path, text.format(little(), 30)) as (registry, write):
        first = (await registry.execute("a.told")).data["pid"]
        calls: list[str] = []

        async def call() -> None:
            while True:
                calls.append("ok")
                await registry.execute("a.add", {"x": 1, "y": 2})

        calling = asyncio.create_task(call())
        for timeout in (31, 32, 33):
            write(text.format(little("--slow", "0.2"), timeout))
            await until_changed(registry, lambda timeout=timeout: registry.get_spec("a.add").timeout == timeout)  # type: ignore[misc]
        assert not calling.done()  # no call has failed
        calling.cancel()
        assert (await registry.execute("a.told")).data["pid"] != first
        assert len(calls) > 3


async def test_a_changed_program_is_read_with_its_middleware_when_its_source_is_reopened(tmp_path: Path) -> None:
    program = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
async def version() -> list[int]:
    return [{version}]

async def add(call, next):
    envelope = await next(call)
    return envelope.replace(data=[*envelope.data, {version}])
"""
    text = '[sources.own]\nfunctions = "versions.py:ops"\nmiddleware = "versions.py:add"\ntimeout = {}\n'
    (tmp_path / "versions.py").write_text(program.format(version=1))
    async with served(tmp_path, text.format(1)) as (registry, write):
        for version in (2, 30):
            (tmp_path / "versions.py").write_text(program.format(version=version))
            write(text.format(version))
            await until_changed(registry, lambda version=version: registry.get_spec("shop.version").timeout == version)  # type: ignore[misc]
            assert (await registry.execute("shop.version")).data == [version, version]


async def test_changed_middleware_wraps_calls_before_the_successor_is_there(tmp_path: Path) -> None:
    (tmp_path / "tenants.py").write_text(TENANTS)
    text = f"[sources.a]\ncommand = {little()}\n"
    slow = f"[sources.a]\ncommand = {little('--slow', '60')}\n"
    async with served(tmp_path, text) as (registry, write):
        assert (await registry.execute("a.add", {"x": 1, "y": 2})).data == {"sum": 3}
        write(slow + 'middleware = "tenants.py:refuse"\n')
        await until_changed(registry, lambda: bool(registry.get("a.add").middleware))
        with pytest.raises(CallError, match="of another tenant"):
            await registry.execute("a.add", {"x": 1, "y": 2})
        write(slow)
        await until_changed(registry, lambda: not registry.get("a.add").middleware)
        assert (await registry.execute("a.add", {"x": 1, "y": 2})).data == {"sum": 3}
        write(slow + 'middleware = "tenants.py:missing"\n')
        await until_changed(registry, lambda: "a.add" not in registry)


TENANTS = """
from enfold import CallError

async def refuse(call, next):
    raise CallError("ACCESS_DENIED", "of another tenant")
"""


async def test_a_source_with_another_name_takes_the_place_of_what_it_was_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    program = '[sources.{}]\nfunctions = "shop.py:ops"\n'
    server = "[sources.{}]\ncommand = " + little("--slow", "0.2") + '\nnamespace = "little"\n'
    async with served(tmp_path, program.format("one") + server.format("first")) as (registry, write):
        failures: list[CallError] = []

        async def call() -> None:
            while True:
                for operation, given in (("shop.price", {}), ("little.add", {"x": 1, "y": 2})):
                    try:
                        await registry.execute(operation, given)
                    except CallError as error:
                        failures.append(error)
                await asyncio.sleep(0)

        calling, sources = asyncio.create_task(call()), registry.services.sources
        for number in range(3):
            names = [f"program{number}", f"server{number}"]
            write(program.format(names[0]) + server.format(names[1]))
            await until_changed(registry, lambda names=names: sorted(each.name for each in sources) == names)  # type: ignore[misc]
            await until_changed(registry, lambda: all(each.state == "up" for each in sources))
        calling.cancel()
        assert failures == []
        assert registry.find("price").id == "shop.price"  # by its short name, which no other operation has


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sources.a]\ncomand = 'x'\n", 'line 2: "comand" is not known here: did you mean "command"?'),
        ("[sources.a\n", "line 1: "),
        ("[sources.a]\nurl = '${NO_SUCH_VARIABLE}'\n", "NO_SUCH_VARIABLE"),
    ],
    ids=["a wrong key", "no TOML", "a variable that is not set"],
)
async def test_an_invalid_file_leaves_the_previous_configuration_active(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    right = '[sources.shop]\nfunctions = "shop.py:ops"\n'
    async with served(tmp_path, right) as (registry, write):
        write(text)
        await until_told(caplog, "stays active")
        assert told in caplog.messages[-1]
        assert (await registry.execute("shop.price")).data == 3
        write(right + "[sources.late]\nfunctions = 'shop.py:ops'\nnamespace = 'late'\n")
        await until_changed(registry, lambda: "late.shop.price" in registry)


async def test_a_successor_that_cannot_be_opened_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    async with served(tmp_path, f"[sources.a]\ncommand = {little()}\n") as (registry, write):
        write('[sources.a]\ncommand = "no-such-program"\n')
        await until_changed(registry, lambda: registry.services.sources["a"].state == "down")
        with pytest.raises(CallError, match="Operation not found"):
            await registry.execute("a.add", {"x": 1, "y": 2})


async def test_a_changed_policy_applies_to_all_sources_and_changes_that_need_a_restart_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    shop = '[sources.shop]\nfunctions = "shop.py:ops"\n'
    async with served(tmp_path, shop) as (registry, write):
        write(f"[policy]\nstrict_output = true\n[limits]\nheaders = 50\n{shop}")
        await until_told(caplog, "Restart the program")
        assert (registry.policy.strict_output, caplog.messages[-1]) == (
            True,
            "Restart the program to apply changes of limits",
        )


async def until_told(caplog: pytest.LogCaptureFixture, words: str) -> None:
    await until(lambda: any((words in message for message in caplog.messages)))


async def test_a_reload_that_is_requested_while_the_server_stops_does_not_keep_it_running(tmp_path: Path) -> None:
    path = tmp_path / "enfold.toml"
    (tmp_path / "shop.py").write_text(SHOP)
    path.write_text('[sources.shop]\nfunctions = "shop.py"\n')
    async with asyncio.timeout(PATIENCE), open_reconciler(path, {}) as reconciler:
        async with watch_config(reconciler, {}) as watcher:
            await asyncio.sleep(0)  # it waits for the next change now
            watcher.reload()
        assert not [task for task in asyncio.all_tasks() if "ConfigWatcher" in repr(task)]
