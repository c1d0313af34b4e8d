"""`/metrics`: what is counted, who may read it, and that callers cannot make it grow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.observability.shop import ANN, shop

from enfold import CallError, Identity, OperationRegistry, testing
from enfold.auth.tokens import Tokens
from enfold.calls.memory import MemoryTransport
from enfold.commands.shared.targets import served_program
from enfold.errors import install_command
from enfold.observability import CallRecord
from enfold.observability.metrics import CallCounts, combined
from enfold.observability.prometheus import written
from enfold.operations import Operation, OperationSpec, Origin
from enfold.sources.calls import from_calls
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.surfaces.http.metrics import to_metrics

LABELS = ("operation", "source", "surface", "state", "kind", "code", "le")
READER = Identity("reader", frozenset({"enfold:read"}))


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    return {
        (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def got(app: Any, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, bytes]:
    answer = testing.Conversation(app, method, "/metrics", {"host": "localhost", **(headers or {})})
    text = await answer.body()
    return answer.status, text


def served(ops: OperationRegistry, tokens: Tokens | None = None) -> tuple[Any, CallCounts]:
    counts = CallCounts(ops)
    ops.services.observers.add(counts.count)
    mounts = {"/metrics": to_metrics(counts, has_identities=tokens is not None)}
    return to_http(ops, tokens=tokens, allow_anonymous=True, mounts=mounts), counts


async def test_calls_refusals_sources_and_what_runs_now_are_counted() -> None:
    ops = shop()
    ops.services.sources.enter("github", "openapi", "down")
    ops.services.gauges["sessions"] = lambda: {"mcp": 2}
    ops.services.gauges["tasks"] = lambda: {"working": 3, "done": 1}
    app, _ = served(ops)
    async with testing.http(ops) as client:
        for _ in range(3):
            await client.call("shop.add", {"x": 1, "y": 2})
        await client.call("shop.fail", {})
        await client.call("shop.nowhere", {})
    found = samples((await got(app))[1])
    assert found["enfold_calls_total", "shop.add", "functions", "OK"] == 3
    assert found["enfold_calls_total", "shop.fail", "functions", "SOLD_OUT"] == 1
    assert found["enfold_call_duration_seconds_count", "shop.add", "functions", "OK"] == 3
    assert found["enfold_call_duration_seconds_bucket", "shop.add", "functions", "OK", "+Inf"] == 3
    assert found["enfold_refusals_total", "http", "OPERATION_NOT_FOUND"] == 1
    assert found["enfold_calls_in_flight",] == 0  # who reads is no call
    assert found["enfold_sessions", "mcp"] == 2
    assert found["enfold_tasks", "working"] == 3
    assert found["enfold_source_up", "github", "openapi"] == 0


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Pets" * 40, "version": "1"},
    "paths": {"/pets": {"get": {"operationId": "pets", "responses": {}}}},
}
TOOLS = """from enfold import OperationRegistry
ops = OperationRegistry("tools")
@ops.query
def dig() -> int:
    return 1
ops.run()
"""


async def test_calls_and_their_source_have_one_name_by_which_they_can_be_joined(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    ops, bus = OperationRegistry(), MemoryTransport("worker")
    ops.register(lambda: 1, name="count", type="query")
    server = (sys.executable, str(tmp_path / "tools.py"), "mcp")
    async with (
        serve_calls(shop(), bus),
        from_calls(bus.join("caller"), name="bus") as peers,
        from_mcp(server, namespace="garden", name="tools of Ann") as tools,
        from_openapi(DOCUMENT) as pets,
    ):
        for source in (peers, tools, pets):
            ops.register_all(source)
        served_program(ops, "shop.py")
        counts = CallCounts(ops)
        for each in ops:
            counts.count(CallRecord(0.0, "http", each.spec.id, each.origin, "OK", 0.1, "r"))
        found = samples(written(combined([counts.snapshot()]), "")[0])
    called = {labels[2] for labels in found if labels[0] == "enfold_calls_total"}
    assert called == {labels[1] for labels in found if labels[0] == "enfold_source_up"}
    assert {"shop.py", "bus", "tools of Ann"} < called


@pytest.mark.parametrize(
    ("token", "method", "status"),
    [
        ("read", "GET", 200),
        ("read", "HEAD", 200),
        ("read", "PUT", 405),
        ("ann", "GET", 403),
        ("x", "GET", 401),
        (None, "GET", 401),
    ],
)
async def test_where_there_are_identities_a_reader_needs_a_scope(token: str | None, method: str, status: int) -> None:
    app, _ = served(shop(), Tokens({"read": READER, "ann": ANN}))
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    answered, text = await got(app, headers, method)
    assert answered == status
    assert (b"enfold_calls_in_flight" in text) == (status == 200 and method == "GET")


async def test_another_method_gets_the_allowed_ones() -> None:
    answer = await testing.Conversation(served(shop())[0], "PUT", "/metrics", {"host": "localhost"}).began()
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=abc",
        "text/plain;version=",
        "text/plain;version=x",
        "text/plain;version=1.0.x",
        ";;==,",
        "a," * 3000,
    ],
)
async def test_an_invalid_version_gets_the_classic_format(accept: str) -> None:
    answer = await testing.Conversation(
        served(shop())[0], "GET", "/metrics", {"host": "localhost", "accept": accept}
    ).began()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")


async def test_a_head_says_how_long_the_text_is() -> None:
    app, _ = served(shop())
    _, text = await got(app)
    head = await testing.Conversation(app, "HEAD", "/metrics", {"host": "localhost"}).began()
    assert (head.headers["content-length"], await head.body()) == (str(len(text)), b"")


async def test_ten_thousand_operations_and_hostile_names_stay_below_two_megabytes() -> None:
    ops = OperationRegistry()
    _, counts = served(ops)
    hostile = ['evil"} 1\nfake_total{x="', "\\" * 300, "ü" * 300, "a\nb"]

    async def answer(given: Any, context: Any) -> int:
        return 1

    for number in range(10_000):
        origin = Origin("mcp", f"{hostile[number % 4]}{number % 300}")
        spec = OperationSpec(namespace="n" * 60 + "." + "m" * 60, name=f"{'o' * 50}{number}")
        ops.register(Operation(spec, answer, origin=origin))
    ids = [spec.id for spec in ops.list()]
    for operation in ids:
        await ops.execute(operation)
    for number in range(5_000):  # servers that name their errors as they like
        counts.count(CallRecord(0.0, "mcp", ids[number % 400], Origin("mcp", "x"), f"CODE_{number}", 0.1, "r"))
    other = CallCounts(ops)  # of another process, which has seen other operations first
    for operation in reversed(ids):
        other.count(CallRecord(0.0, "mcp", operation, Origin("mcp", operation), "OK", 0.1, "r"))
    text, _ = written(combined([counts.snapshot(), other.snapshot()]), "")
    found = samples(text)
    assert len(text) < 2_000_000
    assert len({key[1] for key in found if key[0] == "enfold_calls_total"}) <= 501
    assert sum(value for key, value in found.items() if key[0] == "enfold_calls_total") == 25_000
    assert not any("fake" in key[0] for key in found)


async def test_codes_of_other_services_do_not_displace_ours_or_declared_ones() -> None:
    ops = OperationRegistry("shop")

    @ops.query(error_schemas=[{"code": "SOLD_OUT"}])
    async def buy() -> int:
        raise CallError("SOLD_OUT", "There is none left")

    @ops.query
    async def fail(code: str) -> int:
        raise CallError(code, "as it likes")

    for number in range(500):
        ops.register(lambda: 1, name=f"many_{number:03}", type="query")
    app, counts = served(ops)
    for number in range(60):
        with pytest.raises(CallError):
            await ops.execute("shop.fail", {"code": f"CODE_{number}"})
    for number in range(9_000):  # more rows than there is room for
        origin = Origin("mcp", "x")
        counts.count(CallRecord(0.0, "mcp", f"shop.many_{number % 490:03}", origin, f"CODE_{number // 490}", 0.1, "r"))
    async with testing.http(ops) as client:
        for operation in ("shop.buy", "shop.many_001", "shop.nowhere"):
            await client.call(operation, {})
        await client.call("shop.fail", {})
    elsewhere = CallCounts(ops)
    for number in range(60):
        elsewhere.count(CallRecord(0.0, "mcp", "shop.fail", Origin("mcp", "x"), f"OTHER_{number}", 0.1, "r"))
    for text in ((await got(app))[1], written(combined([elsewhere.snapshot(), counts.snapshot()]), "")[0]):
        found = samples(text)
        assert found["enfold_calls_total", "shop.buy", "functions", "SOLD_OUT"] == 1
        assert found["enfold_calls_total", "shop.many_001", "functions", "OK"] == 1
        assert found["enfold_calls_total", "shop.fail", "functions", "VALIDATION_ERROR"] == 1
        codes = {key[3] for key in found if key[0] == "enfold_calls_total"}
        assert len([code for code in codes if "CODE_" in code or "OTHER_" in code]) == 20


async def test_without_the_package_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    app, _ = served(shop())
    monkeypatch.setitem(sys.modules, "enfold.observability.prometheus", None)
    status, text = await got(app)
    assert status == 503
    assert install_command("metrics").encode() in text
