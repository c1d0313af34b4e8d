"""Names are looked up among the operations that the caller may see; hidden ones do not count and are never mentioned."""

from __future__ import annotations

import io

import pytest
from tests.serving import serve

from enfold import CallError, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.command_line import to_command_line
from enfold.surfaces.http import to_http

ANN, BOB = Identity("ann", frozenset({"write"})), Identity("bob")
TOKENS = Tokens({"ann-token": ANN, "bob-token": BOB})


def registry() -> OperationRegistry:
    """`order` is a name of two operations, of which Bob may see one; `secret` is hidden from them."""
    ops = OperationRegistry()

    @ops.query(namespace="shop", name="order")
    async def shop_order() -> str:
        return "shop"

    @ops.query(namespace="depot", name="order", access={"required_scopes": ["write"]})
    async def depot_order() -> str:
        return "depot"

    @ops.query(namespace="depot", access={"required_scopes": ["write"]})
    async def secret() -> str:
        return "secret"

    return ops


def test_a_name_shared_with_a_hidden_operation_is_that_of_the_visible_one() -> None:
    assert registry().find("order", BOB).id == "shop.order"
    assert registry().find("order").id == "shop.order"
    with pytest.raises(CallError, match="several operations have this name"):
        registry().find("order", ANN)


@pytest.mark.parametrize("first", ["ann", "bob"])
def test_over_http_a_name_means_what_its_caller_may_see(first: str) -> None:
    with serve(to_http(registry(), tokens=TOKENS)) as client:
        callers = [first, "ann", "bob", "bob"]
        answers = [client.get("/functions/order", Authorization=f"Bearer {name}-token") for name in callers]
    assert [answer.status for answer in answers[1:]] == [404, 200, 200]
    assert answers[2].json == {"result": "shop"}


def test_over_http_the_nearest_visible_name_is_reported() -> None:
    with serve(to_http(registry(), tokens=TOKENS)) as client:
        told = [
            client.get(f"/functions/{name}", Authorization=f"Bearer {caller}-token").json["error"]
            for name, caller in [
                ("shop.ordr", "bob"),
                ("depot.secrt", "ann"),
                ("depot.secrt", "bob"),
                ("secret", "bob"),
            ]
        ]
    assert told == [
        "Operation not found: shop.ordr. Did you mean shop.order?",
        "Operation not found: depot.secrt. Did you mean depot.secret?",
        "Operation not found: depot.secrt",
        "Operation not found: secret",
    ]


def cgi(path: str, user: str | None) -> str:
    out = io.BytesIO()
    variables = {"REQUEST_METHOD": "GET", "PATH_INFO": path, **({} if user is None else {"REMOTE_USER": user})}
    known = {"ann": ANN, "bob": BOB}
    to_cgi(registry(), environ=variables, stdin=io.BytesIO(), stdout=out, identify=known.get)
    return out.getvalue().decode()


def test_in_cgi_too() -> None:
    assert "shop" in cgi("/order", "bob")
    assert "Did you mean shop.order?" in cgi("/functions/shop.ordr", "bob")
    assert "Did you mean" not in cgi("/functions/depot.secrt", "bob")


def shell(*words: str, identity: Identity) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = to_command_line(registry(), list(words), identity=identity, stdout=out, stderr=err)
    return code, out.getvalue(), err.getvalue()


def test_in_the_shell_too() -> None:
    assert shell("order", identity=BOB) == (0, '{"result":"shop"}\n', "")
    assert "several operations have this name" in shell("order", identity=ANN)[2]
    assert shell("shop.ordr", identity=BOB)[2].endswith("Did you mean shop.order?\n")
    missing = [shell(name, identity=BOB) for name in ("depot.secret", "depot.nothing")]
    assert [(code, err.replace("depot.nothing", "depot.secret")) for code, _, err in missing] == [
        (3, "OPERATION_NOT_FOUND: Operation not found: depot.secret\n")
    ] * 2


async def test_over_calls_too() -> None:
    bus = MemoryTransport("bus", Identity("hub"))
    async with serve_calls(registry(), bus), PendingRequestMap(bus.join("bob", BOB)) as bob:
        assert (await bob.call("shop.order", {})).data == "shop"
        told = []
        for name in ("depot.secret", "depot.nothing", "shop.ordr"):
            with pytest.raises(CallError) as raised:
                await bob.call(name, {})
            told.append(f"{raised.value.code}: {raised.value.message}")
    assert told == [
        "OPERATION_NOT_FOUND: Operation not found: depot.secret",
        "OPERATION_NOT_FOUND: Operation not found: depot.nothing",
        "OPERATION_NOT_FOUND: Operation not found: shop.ordr. Did you mean shop.order?",
    ]


async def test_a_wrong_name_in_the_process_is_reported_with_the_nearest() -> None:
    with pytest.raises(CallError, match=r"Did you mean depot\.secret\?"):
        await registry().execute("depot.secrt")
    with pytest.raises(CallError, match=r"not found: depot\.secrt$"):
        await registry().guarded().execute("depot.secrt")
