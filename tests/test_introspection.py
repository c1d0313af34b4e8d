"""What a program says about itself: its sources as they change, its calls as they end, its runs and their lineage."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enfold import CallError, Context, Identity, OperationRegistry, testing
from enfold.app.reconciler import open_config
from enfold.mcp.offers import tool_names
from enfold.operations import Policy
from enfold.provenance import Recorder, RecordStore
from enfold.surfaces.introspection import introduce, keep_calls
from enfold.surfaces.introspection.calls import Payloads
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

ANN, BEN = (Identity(name, frozenset({"enfold:read"})) for name in ("ann", "ben"))
ADMIN = Identity("admin", frozenset({"enfold:read", "enfold:admin"}))


SERVER = """
from enfold import OperationRegistry
from enfold.surfaces.mcp import serve_stdio
ops = OperationRegistry()

@ops.query
def open() -> str:
    return "opened"

serve_stdio(ops)
"""


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def items() -> list[str]:
        return ["tea"]

    @ops.query
    async def receipt(context: Context, secret: str = "") -> int:
        del secret
        return len((await context.env.shop.items()).data)

    return ops


async def test_the_states_of_sources_are_sent_now_and_after_every_change() -> None:
    ops = shop()
    introduce(ops, {})
    alone = (await ops.execute("enfold.sources")).data
    assert [(each["name"], each["state"], each["operations"]) for each in alone] == [("functions", "up", 2)]
    assert alone[0]["tokens"] > 10
    ops.services.sources.enter("upstream", "mcp")
    stream = ops.subscribe("enfold.sources.watch")
    seen: list[Any] = [(await anext(stream)).data[0]["state"]]
    for state, why in (("up", ""), ("down", "refused")):
        ops.services.sources.enter("upstream", "mcp", state, why=why)  # type: ignore[arg-type]
        seen.append((await anext(stream)).data[0]["state"])
    await stream.aclose()
    assert seen == ["starting", "up", "down"]


async def test_calls_are_streamed_as_they_end_to_their_own_identity_and_without_values() -> None:
    ops = shop()
    keep_calls(ops)
    async with testing.open_client("http", ops) as client:
        for identity in (ANN, BEN):
            await client.call("shop.receipt", {"secret": "hush"}, identity=identity)
        await client.call("shop.none", identity=ANN)

        async def seen(identity: Identity) -> list[Any]:
            return [each.data async for each in client.subscribe("enfold.calls", {"follow": False}, identity=identity)]

        own = await seen(ANN)
        assert {each["caller"] for each in own} == {"ann"}
        assert {each["caller"] for each in await seen(ADMIN)} == {"ann", "ben"}
        assert {(each["operation"], each["code"], each["surface"]) for each in own} >= {("shop.receipt", "OK", "http")}
        assert "hush" not in str(await seen(ADMIN))
        assert not [each for each in await seen(ADMIN) if each["operation"].startswith("enfold.")]


@pytest.mark.parametrize("surface", ["http", "mcp"])
async def test_payloads_are_kept_for_an_operator_who_says_so_without_secrets_and_bounded(surface: Any) -> None:
    ops, payloads = shop(), Payloads()

    @ops.query
    async def echo(given: Any, password: str = "", headers: dict[str, str] | None = None) -> Any:
        if given == "fail":
            raise CallError("EXECUTION_ERROR", f"No entry with {password}")
        return {"given": given, "headers": headers, "words": f"you said {password}"}

    @ops.subscription
    async def count(to: int) -> AsyncIterator[dict[str, Any]]:
        for number in range(to):
            yield {"number": number, "big": 2**70, "Set-Cookie": "session=abcdef"}

    served = ops.with_policy(Policy(payloads=payloads))
    keep_calls(served, payloads)
    deep: Any = "bottom"
    for _ in range(60):
        deep = [deep]
    headers = {"Authorization": "Bearer abcdefgh", "X-Api-Key": "k" * 40, "Accept": "text/plain"}
    async with testing.open_client(surface, served) as client:

        async def last(operation: str, arguments: dict[str, Any], identity: Identity = ANN) -> Any:
            if operation == "shop.count":
                assert len([each async for each in client.subscribe(operation, arguments, identity=identity)]) == 500
            else:
                await client.call(operation, arguments, identity=identity)
            seen = [each.data async for each in client.subscribe("enfold.calls", {"follow": False}, identity=identity)]
            assert seen[-1]["operation"] == operation
            return seen[-1]

        kept = await last("shop.echo", {"given": 2**70, "password": "hunter22", "headers": headers})
        hidden = {"Authorization": "[redacted]", "X-Api-Key": "[redacted]", "Accept": "text/plain"}
        assert kept["arguments"] == {"given": 2**70, "password": "[redacted]", "headers": hidden}
        assert kept["result"] == {"given": 2**70, "headers": hidden, "words": "you said [redacted]"}
        assert (kept["is_cut"], "error" in kept) == (False, False)
        failed = await last("shop.echo", {"given": "fail", "password": "hunter22"})
        assert (failed["error"]["message"], "result" in failed) == ("No entry with [redacted]", False)
        wrong = await last("shop.echo", {"giver": 1})
        assert (wrong["code"], wrong["arguments"]) == ("VALIDATION_ERROR", {"giver": 1})
        for large in ("x" * 3_000_000, list(range(100_000)), [{"n": "é" * 50}] * 5_000, deep, {"a" * 90_000: 1}):
            page = await last("shop.echo", {"given": large})
            assert page["is_cut"]
            assert 0 < len(msgspec.json.encode([page["arguments"], page["result"]])) < 100_000
        with pytest.raises(CallError, match="Argument"):  # what only a call inside this process can be given
            await served.execute("shop.echo", {"given": 1, "headers": {2: "x"}}, Context(identity=ANN))
        stream = await last("shop.count", {"to": 500})
        assert stream["result"][0] == {"number": 0, "big": 2**70, "Set-Cookie": "[redacted]"}
        assert (stream["is_cut"], 10 < len(stream["result"]) < 500) == (True, True)
        assert "hunter22" not in str([each.data async for each in served.subscribe("enfold.calls", {"follow": False})])
        assert (await last("shop.items", {}, BEN))["result"] == ["tea"]
        seen = [each.data async for each in client.subscribe("enfold.calls", {"follow": False}, identity=BEN)]
        assert [each["operation"] for each in seen] == ["shop.items"]  # callers do not see results of others


async def test_a_request_id_that_two_callers_use_at_once_mixes_up_nobodys_payloads() -> None:
    ops, payloads, go = OperationRegistry("shop"), Payloads(), asyncio.Event()

    @ops.query
    async def say(word: str) -> str:
        await go.wait()
        return word

    served = ops.with_policy(Policy(payloads=payloads))
    keep_calls(served, payloads)
    callers = [Context(request_id="1", identity=each) for each in (ANN, BEN, ADMIN)]
    running = [asyncio.ensure_future(served.execute("shop.say", {"word": each.identity.id}, each)) for each in callers]  # type: ignore[union-attr]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*running)
    seen = [each.data async for each in served.subscribe("enfold.calls", {"follow": False})]
    assert [(each["caller"], each["arguments"], each["result"]) for each in seen] == [
        (name, {"word": name}, name) for name in ("ann", "ben", "admin")
    ]


async def test_only_the_last_two_hundred_calls_are_kept_and_the_next_ones_follow() -> None:
    ops = shop()
    keep_calls(ops)
    for _ in range(205):
        await ops.execute("shop.items")
    stream = ops.subscribe("enfold.calls")
    kept = [(await anext(stream)).data for _ in range(200)]
    coming = asyncio.ensure_future(anext(stream))
    await ops.execute("shop.receipt")
    assert (await coming).data["operation"] == "shop.items"  # which it called
    assert (await anext(stream)).data["operation"] == "shop.receipt"
    assert len(kept) == 200
    await stream.aclose()


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with RecordStore(tmp_path / "runs.db") as store:
        yield Recorder(store=store, record="all")


async def test_callers_only_see_their_own_runs_and_lineage(recorder: Recorder) -> None:
    ops = shop()
    async with testing.open_client("http", ops, recorder=recorder) as client:
        for identity in (ANN, BEN):
            assert (await client.call("shop.receipt", identity=identity)).data == 1
        runs = (await client.call("enfold.runs", {"operation": "shop.items"}, identity=ANN)).data
        assert [(run["operation"], len(run["parents"])) for run in runs] == [("shop.items", 1)]
        everyone = (await client.call("enfold.runs", {"operation": "shop.receipt"}, identity=ADMIN)).data
        assert len(everyone) == 2
        lineage = (await client.call("enfold.lineage", {"run_id": runs[0]["run_id"]}, identity=ANN)).data
        assert (lineage["verified"], lineage["faults"]) == (True, [])
        assert {node["run"]["operation"] for node in lineage["nodes"]} == {"shop.items", "shop.receipt"}
        assert lineage["record"]["run_id"] == runs[0]["run_id"]
        for run_id in (runs[0]["run_id"], "nothing"):  # another caller's run looks like one that does not exist
            refused = await client.call("enfold.lineage", {"run_id": run_id}, identity=BEN)
            assert isinstance(refused.error, CallError)
            assert refused.error.message == f"There is no record of run {run_id}"
        assert (await client.call("enfold.runs", {"caller": "ben"}, identity=ANN)).data == []


async def test_a_record_that_was_changed_is_shown_with_its_verdict_among_the_others(
    tmp_path: Path, recorder: Recorder
) -> None:
    ops = shop()
    async with testing.open_client("http", ops, recorder=recorder) as client:

        async def runs() -> list[Any]:
            return list((await client.call("enfold.runs", {}, identity=ANN)).data)

        async def lineage(run_id: str) -> Any:
            return (await client.call("enfold.lineage", {"run_id": run_id}, identity=ANN)).data

        for _ in range(2):
            await client.call("shop.receipt", identity=ANN)
        before = await runs()
        assert [run["verified"] for run in before] == [True] * 4
        child, parent = before[:2] if before[0]["parents"] else before[1::-1]
        with closing(sqlite3.connect(tmp_path / "runs.db")) as file:

            def change(**columns: Any) -> None:
                for name, value in columns.items():
                    file.execute(f"UPDATE records SET {name} = ? WHERE run_id = ?", (value, parent["run_id"]))  # noqa: S608
                file.commit()

            [(body,)] = file.execute("SELECT body FROM records WHERE run_id = ?", (parent["run_id"],)).fetchall()
            forged = body.replace(b"shop.receipt", b"shop.refunds")
            for changes, words in (
                ({"body": b"{}"}, "was changed after it was stored"),
                ({"body": "text", "time": 2**62}, "was changed after it was stored"),
                ({"body": b"[]", "digest": sha256(b"[]").digest()}, "is not a record"),
                (
                    {"body": forged, "digest": sha256(forged).digest()},
                    "digest",
                ),  # as an attacker with access to the store would
            ):
                change(**changes)
                after = await runs()
                assert {run["run_id"]: run["verified"] for run in after} == {
                    run["run_id"]: run["run_id"] != parent["run_id"] for run in before
                }
                [bad] = [run for run in after if not run["verified"]]
                assert words in " ".join(bad["faults"])
                for run_id in (parent["run_id"], child["run_id"]):
                    found = await lineage(run_id)
                    assert found["verified"] is False
                    assert {node["run"]["run_id"]: node["verified"] for node in found["nodes"]} == {
                        parent["run_id"]: False,
                        child["run_id"]: True,
                    }


async def test_no_call_pays_for_introspection_that_is_not_used() -> None:
    ops = shop()
    introduce(ops, {})
    tool_names(ops)  # which looks at the names of all operations, those about the program too
    assert ops.services.observers.end is None
    await anext(ops.subscribe("enfold.calls", {"follow": False}), None)
    assert ops.services.observers.end is not None


async def test_a_source_is_reconnected_at_once_by_an_administrator(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    file = tmp_path / "enfold.toml"
    file.write_text(f'[sources.box]\ncommand = "{sys.executable}"\nargs = ["{server}"]\n')
    async with open_config(file, {}, patience=30) as registry:
        introduce(registry, {})
        assert registry.services.sources["box"].state == "down"
        server.write_text(SERVER)
        guarded = registry.guarded()
        with pytest.raises(CallError) as refused:
            await guarded.execute("enfold.sources.reconnect", {"name": "box"}, Context(identity=ANN))
        assert refused.value.code == "OPERATION_NOT_FOUND"  # it is hidden from who may not use it
        shown = (await guarded.execute("enfold.sources.reconnect", {"name": "box"}, Context(identity=ADMIN))).data
        assert (shown["state"], shown["can_reconnect"]) == ("up", True)
        assert [each["state"] for each in shown["history"]][-1] == "up"
        assert any(each["state"] == "down" and each["why"] for each in shown["history"])
        assert (await registry.execute("box.open")).data is not None
        server.write_text("raise SystemExit(3)")
        with pytest.raises(CallError, match="box is down"):
            await guarded.execute("enfold.sources.reconnect", {"name": "box"}, Context(identity=ADMIN))
        with pytest.raises(CallError, match="a source that has a connection: box"):
            await registry.execute("enfold.sources.reconnect", {"name": "none"})


async def test_the_tasks_of_a_caller_are_shown_with_what_they_were_given_but_its_secrets() -> None:
    ops = shop()

    @ops.mutation(durable=True)
    async def pay(amount: int, password: str) -> int:
        del password
        return amount

    async with Tasks(ops, MemoryTasks()) as tasks:
        introduce(ops, {}, tasks=tasks)
        handle = await tasks.start("shop.pay", {"amount": 3, "password": "hush"}, identity=ANN)
        await handle.result()
        mine = Context(identity=ANN)
        shown = (await ops.execute("enfold.tasks.get", {"task_id": handle.id}, mine)).data
        assert (shown["input"]["amount"], shown["caller"], shown["attempts"][0]["reason"]) == (3, "ann", "completed")
        assert "hush" not in str(shown)
        again = (await ops.execute("enfold.tasks.retry", {"task_id": handle.id}, mine)).data
        assert again["task_id"] != handle.id
        assert (await (await tasks.get(again["task_id"], identity=ANN)).result()).data == 3
        asked = {"status": "completed", "operation": "pay", "since": shown["created"]}
        assert len((await ops.execute("enfold.tasks.list", asked, mine)).data) == 2
        assert (await ops.execute("enfold.tasks.list", {**asked, "caller": "ben"}, mine)).data == []
