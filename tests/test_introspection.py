"""What a program says about itself: its sources as they change, its calls as they end, its runs and their lineage."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from enfold import CallError, Context, Identity, OperationRegistry, testing
from enfold.introspection import introduce, keep_calls
from enfold.mcp.tool_names import tool_names
from enfold.provenance import Recorder, RecordStore

ANN, BEN = (Identity(name, frozenset({"enfold:read"})) for name in ("ann", "ben"))
ADMIN = Identity("admin", frozenset({"enfold:read", "enfold:admin"}))


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


async def test_sources_are_told_now_and_after_every_change() -> None:
    ops = shop()
    introduce(ops, {})
    alone = (await ops.execute("enfold.sources")).data
    assert [(each["name"], each["state"], each["operations"]) for each in alone] == [("functions", "up", 2)]
    assert alone[0]["tokens"] > 10
    ops.sources.enter("upstream", "mcp")
    stream = ops.subscribe("enfold.sources.watch")
    seen: list[Any] = [(await anext(stream)).data[0]["state"]]
    for state, why in (("up", ""), ("down", "refused")):
        ops.sources.enter("upstream", "mcp", state, why=why)  # type: ignore[arg-type]
        seen.append((await anext(stream)).data[0]["state"])
    await stream.aclose()
    assert seen == ["starting", "up", "down"]


async def test_calls_are_told_as_they_end_each_identity_its_own_and_never_a_value() -> None:
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


async def test_runs_and_their_lineage_are_those_of_who_asks(tmp_path: Path) -> None:
    ops = shop()
    recorder = Recorder(store=RecordStore(tmp_path / "runs.db"), record="all")
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
        for run_id in (runs[0]["run_id"], "nothing"):  # another's is told of like one that never was
            refused = await client.call("enfold.lineage", {"run_id": run_id}, identity=BEN)
            assert isinstance(refused.error, CallError)
            assert refused.error.message == f"There is no record of run {run_id}"
        assert (await client.call("enfold.runs", {"caller": "ben"}, identity=ANN)).data == []
        with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:  # somebody changes a record behind our back
            file.execute("UPDATE records SET body = ? WHERE run_id = ?", (b"{}", runs[0]["run_id"]))
        changed = (await client.call("enfold.lineage", {"run_id": runs[0]["run_id"]}, identity=ANN)).data
        assert (changed["verified"], changed["nodes"]) == (False, [])
        assert "was changed after it was stored" in changed["faults"][0]


async def test_no_call_pays_for_what_nobody_has_asked_for() -> None:
    ops = shop()
    introduce(ops, {})
    tool_names(ops)  # which looks at the names of all operations, those about the program too
    assert ops.observers.end is None
    await anext(ops.subscribe("enfold.calls", {"follow": False}), None)
    assert ops.observers.end is not None
