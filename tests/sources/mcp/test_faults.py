"""Servers that fail in every way: each call ends in a result or a CallError, and nothing is left behind."""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, OperationRegistry
from enfold.sources.mcp import Connection, MCPLimits, MCPOperations, from_mcp
from enfold.sources.mcp.session import Session
from enfold.sources.options import Rules

Little = Callable[..., list[str]]


def registry_of(operations: MCPOperations) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_all(operations)
    return ops


async def test_the_exit_code_and_last_output_of_a_server_that_dies_in_mid_call_are_only_logged(
    little: Little, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "enfold.mcp"):
        async with from_mcp(little(), namespace="pet") as operations:
            with pytest.raises(CallError) as caught:
                await registry_of(operations).execute("pet.die", {})
    assert (caught.value.code, caught.value.retryable) == ("UNAVAILABLE", False)
    assert str(caught.value) == "pet has ended with exit code 3"
    assert caught.value.details == {"reason": "process", "exit_code": 3}
    assert "pet has ended with exit code 3: first words I cannot go on" in caplog.text


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_server_that_never_listens_is_reported_with_its_exit_code_and_last_output(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    program = "import os, sys; os.close(0); print('  no   key  ', file=sys.stderr); sys.exit(3)"

    async def open_it() -> None:
        async with from_mcp([sys.executable, "-c", program], namespace="pet"):
            pass

    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(CallError) as caught:
        runner.run(open_it())
    assert str(caught.value) == "pet has ended with exit code 3: no key"
    assert caplog.text == ""  # the error is raised to the caller, once


@pytest.mark.parametrize(
    ("command", "told"),
    [
        pytest.param({"command": "no-such-program"}, "there is no command no-such-program", id="no program"),
        pytest.param({"command": "python3", "cwd": "/no/such"}, "there is no folder /no/such", id="no folder"),
        pytest.param({"command": "/"}, "/: Permission denied", id="no permission"),
    ],
)
async def test_a_server_that_cannot_be_started_is_reported_with_the_reason(command: dict[str, str], told: str) -> None:
    with pytest.raises(CallError) as caught:
        async with from_mcp(command, namespace="pet"):
            pass
    assert (caught.value.code, caught.value.message) == ("UNAVAILABLE", f"pet cannot be started: {told}")


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        pytest.param("die_hard", {"reason": "process", "exit_code": -9}, id="killed"),
        pytest.param("mute", {"reason": "process"}, id="its output closed"),
    ],
)
async def test_a_server_that_goes_without_a_word_is_unavailable_and_started_again(
    little: Little, tool: str, told: dict[str, Any]
) -> None:
    async with from_mcp(little(), rules=Rules(timeout=20)) as operations:
        ops = registry_of(operations)
        with pytest.raises(CallError) as caught:
            await ops.execute(tool, {})
        assert (caught.value.code, caught.value.details | told) == ("UNAVAILABLE", caught.value.details)
        assert (await ops.execute("add", {"x": 1, "y": 2})).data == {"sum": 3}


@pytest.mark.parametrize("size", [1, 2_000_000], ids=["a short call", "a call longer than any pipe"])
async def test_a_suspended_server_delays_a_caller_only_until_its_deadline(little: Little, size: int) -> None:
    async with from_mcp(little()) as operations:
        ops = registry_of(operations)
        for tool, given in (("freeze", {}), ("big", {"size": 1, "ballast": "x" * size})):
            with pytest.raises(CallError) as caught:
                await ops.execute(tool, given, Context(timeout=0.3))
            assert caught.value.code == "TIMEOUT"


async def test_the_call_after_a_death_starts_the_server_again(little: Little) -> None:
    async with from_mcp(little()) as operations:
        ops = registry_of(operations)
        with pytest.raises(CallError, match="exit code 3"):
            await ops.execute("die", {})
        assert (await ops.execute("add", {"x": 1, "y": 2})).data == {"sum": 3}


async def test_a_call_that_may_have_run_is_not_made_twice(little: Little, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    async with from_mcp(little("--marks", str(marks))) as operations:
        with pytest.raises(CallError, match="exit code 3"):
            await registry_of(operations).execute("mark_and_die", {})
    assert marks.read_text() == "ran\n"


async def test_an_idle_server_that_was_killed_is_started_again_and_the_call_is_made_once(
    little: Little, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    async with from_mcp(little("--marks", str(marks))) as operations:
        ops = registry_of(operations)
        os.kill((await ops.execute("told", {})).data["pid"], signal.SIGKILL)
        await until(lambda: not operations.is_up)
        assert (await ops.execute("mark", {})).data == [{"type": "text", "text": "marked"}]
    assert marks.read_text() == "ran\n"


async def test_a_server_that_closes_its_input_is_started_again(little: Little, tmp_path: Path) -> None:
    async with from_mcp(little("--deaf-once", str(tmp_path / "was deaf"))) as operations:
        await until(lambda: not operations.is_up)
        assert (await registry_of(operations).execute("add", {"x": 1, "y": 2})).data == {"sum": 3}


async def test_a_hung_call_ends_at_its_deadline_and_is_cancelled_at_the_server(little: Little) -> None:
    async with from_mcp(little(), rules=Rules(timeout=0.3)) as operations:
        ops = registry_of(operations)
        with pytest.raises(CallError) as caught:
            await ops.execute("hang", {})
        assert caught.value.code == "TIMEOUT"
        assert len((await ops.execute("told", {})).data["cancelled"]) == 1


async def test_a_caller_who_gives_up_is_passed_on_to_the_server(little: Little) -> None:
    async with from_mcp(little()) as operations:
        ops = registry_of(operations)
        call = asyncio.create_task(ops.execute("hang", {}))
        await ops.execute("add", {"x": 1, "y": 2})
        call.cancel()
        await asyncio.wait({call})
        assert len((await ops.execute("told", {})).data["cancelled"]) == 1


async def test_junk_on_the_output_is_passed_over_with_a_warning(
    little: Little, caplog: pytest.LogCaptureFixture
) -> None:
    async with from_mcp(little(), namespace="pet") as operations:
        assert (await registry_of(operations).execute("pet.junk", {})).data == [{"type": "text", "text": "good"}]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["pet wrote a line that is not a message; it is ignored: b'Loading the model...'"]


async def test_a_server_may_print_a_banner_first(little: Little, caplog: pytest.LogCaptureFixture) -> None:
    async with from_mcp(little("--banner"), namespace="pet") as operations:
        assert (await registry_of(operations).execute("pet.add", {"x": 1, "y": 2})).data == {"sum": 3}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("token", ["[]", "{}", "null", "[[1]]"])
async def test_progress_for_an_invalid_token_does_not_raise(token: str) -> None:
    session = Session("odd", lambda *_: None, cast("Any", None), MCPLimits())
    text = f'{{"jsonrpc": "2.0", "method": "notifications/progress", "params": {{"progressToken": {token}}}}}'
    session.take_text(text.encode())


async def test_an_answer_that_is_not_json_ends_its_call_at_once(little: Little) -> None:
    async with from_mcp(little(), rules=Rules(timeout=None)) as operations:
        with pytest.raises(CallError) as caught:
            await registry_of(operations).execute("not_json", {})
    assert caught.value.code == "DATA_LOSS"


async def test_a_result_that_is_not_an_object_ends_its_call_at_once(little: Little) -> None:
    async with from_mcp(little(), rules=Rules(timeout=None)) as operations:
        with pytest.raises(CallError) as caught:
            await registry_of(operations).execute("no_object", {})
    assert caught.value.code == "DATA_LOSS"


async def test_a_result_with_a_number_json_does_not_know_keeps_the_rest(little: Little) -> None:
    async with from_mcp(little()) as operations:
        assert (await registry_of(operations).execute("not_a_number", {})).data == {"mean": None, "count": 0}


async def test_content_of_an_unknown_kind_is_kept_as_its_json(little: Little) -> None:
    async with from_mcp(little()) as operations:
        envelope = await registry_of(operations).execute("strange", {})
    assert [block["text"] for block in envelope.to_wire()["meta"]["content"]] == [
        '{"type":"hologram","voxels":[1,2]}',
        "and text",
    ]


async def test_a_result_of_twenty_megabytes_arrives_whole(little: Little) -> None:
    size = 20_000_000
    async with from_mcp(little()) as operations:
        envelope = await registry_of(operations).execute("big", {"size": size})
    assert len(envelope.data[0]["text"]) == size


async def test_a_result_over_the_limit_is_refused_and_the_next_call_works(little: Little) -> None:
    async with from_mcp(little(), connection=Connection(limits=MCPLimits(message_bytes=100_000))) as operations:
        ops = registry_of(operations)
        with pytest.raises(CallError) as caught:
            await ops.execute("big", {"size": 1_000_000})
        assert (caught.value.code, caught.value.details) == ("PAYLOAD_TOO_LARGE", {"limit": 100_000})
        assert (await ops.execute("add", {"x": 1, "y": 2})).data == {"sum": 3}


async def test_a_list_of_many_pages_is_read_to_its_end(little: Little) -> None:
    async with from_mcp(little("--page", "2")) as paged, from_mcp(little()) as whole:
        assert paged.report.imported == whole.report.imported


@pytest.mark.parametrize(
    ("habits", "revision"),
    [
        pytest.param(("--era", "legacy"), "handshake", id="an older one refuses the newest question"),
        pytest.param(("--probe", "ignore"), "handshake", id="an older one does not answer it"),
        pytest.param(("--probe", "quit"), "handshake", id="an older one ends at it"),
        pytest.param(("--era", "stateless"), "2026-07-28", id="the newest"),
        pytest.param(("--era", "both"), "handshake", id="one of both eras, in a process that all callers share"),
        pytest.param(("--slow", "0.6"), "handshake", id="an older one that is slow to start"),
        pytest.param(("--slow", "0.6", "--era", "stateless"), "2026-07-28", id="the newest, slow to start"),
    ],
)
async def test_the_revision_of_a_server_is_detected(little: Little, habits: tuple[str, ...], revision: str) -> None:
    async with from_mcp(little(*habits), connection=Connection(limits=MCPLimits(probe=0.3))) as operations:
        ops = registry_of(operations)
        assert (await ops.execute("revision")).text() == revision
        assert (await ops.execute("add", {"x": 1, "y": 2})).data == {"sum": 3}


async def test_a_server_that_never_completes_the_handshake_is_unavailable(little: Little) -> None:
    with pytest.raises(CallError) as caught:
        async with from_mcp(
            little("--slow", "60"), namespace="pet", connection=Connection(limits=MCPLimits(connect=0.3))
        ):
            pass
    assert (caught.value.code, caught.value.message) == ("UNAVAILABLE", "pet did not respond within 0.3 seconds")


async def test_a_command_that_does_not_exist_is_unavailable() -> None:
    with pytest.raises(CallError) as caught:
        async with from_mcp(["no-such-program-anywhere"]):
            pass
    assert (caught.value.code, caught.value.details["reason"]) == ("UNAVAILABLE", "start")


async def test_a_server_that_does_not_want_to_end_is_ended(little: Little) -> None:
    async with from_mcp(little("--stays")) as operations:
        assert len(operations) > 0


async def test_a_tool_that_is_gone_is_not_found(little: Little) -> None:
    async with from_mcp(little()) as operations:
        ops = OperationRegistry()
        ops.register_all(list(operations))
        await ops.execute("grow", {"name": "plus"})
        with pytest.raises(CallError) as caught:
            await ops.execute("hang", {})
    assert (caught.value.code, caught.value.message) == ("OPERATION_NOT_FOUND", "Unknown tool: hang")


async def test_a_change_of_the_list_reaches_the_registry(little: Little) -> None:
    async with from_mcp(little()) as operations:
        ops = registry_of(operations)
        changed = asyncio.Event()
        stop = ops.watch(lambda: changed.set() if "plus" in ops else None)
        await ops.execute("grow", {"name": "plus"})
        await asyncio.wait_for(changed.wait(), PATIENCE)
        stop()
        assert "hang" not in ops
        assert (await ops.execute("plus", {"x": 1, "y": 2})).data == {"sum": 3}


async def test_a_hundred_clients_open_and_close_in_any_order(little: Little) -> None:
    """Some are closed in the middle of a call, by a task that did not open them."""
    chance = random.Random(7)  # noqa: S311  # the same at every run
    gate = asyncio.Semaphore(8)

    async def one() -> str:
        async with gate:
            source = from_mcp(little())
            operations = await source.__aenter__()
            ops = registry_of(operations)
            call = asyncio.create_task(
                ops.execute(chance.choice(["add", "hang"]), {"x": 1, "y": 2}, Context(timeout=0.2))
            )
            await asyncio.sleep(chance.random() * 0.05)
            await asyncio.create_task(source.aclose())
            try:
                return str((await call).data)
            except CallError as error:
                return error.code

    outcomes = await asyncio.gather(*(one() for _ in range(100)))
    assert set(outcomes) <= {"{'sum': 3}", "UNAVAILABLE", "TIMEOUT"}
