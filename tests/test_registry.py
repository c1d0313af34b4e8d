from collections.abc import AsyncIterator
from typing import Any

import pytest

from enfold import Call, CallError, Context, Next, OperationRegistry, OperationSpec, OperationType, Outcome
from enfold.operations import Operation


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    def add(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: First addend.
            y: Second addend.
        """
        return x + y

    @ops.mutation(tags=["admin"], destructive=True)
    async def clear() -> None: ...

    @ops.subscription
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    return ops


async def test_a_function_becomes_an_operation_and_its_result_an_envelope() -> None:
    envelope = await shop().execute("shop.add", {"x": 1, "y": 2})
    assert envelope.data == 3
    assert envelope.meta.source == "local"
    assert envelope.meta.operation_id == "shop.add"


def test_the_spec_comes_from_the_signature_and_the_docstring() -> None:
    spec = shop().get_spec("shop.add")
    assert (spec.id, spec.namespace, spec.name, spec.type) == ("shop.add", "shop", "add", "query")
    assert spec.description == "Add two numbers."
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "x": {"type": "integer", "description": "First addend."},
            "y": {"type": "integer", "description": "Second addend."},
        },
        "required": ["x", "y"],
        "additionalProperties": False,
    }
    assert spec.output_schema == {"type": "integer"}


def test_the_defaults_of_a_spec_follow_its_type() -> None:
    specs = {spec.name: spec for spec in shop().list()}
    assert (specs["add"].idempotent, specs["add"].timeout) == (True, 60.0)
    assert (specs["clear"].idempotent, specs["clear"].destructive, specs["clear"].values) == (False, True, 0)
    assert (specs["count"].type, specs["count"].timeout) == (OperationType.SUBSCRIPTION, None)


def test_operations_are_listed_by_namespace_tag_and_type() -> None:
    ops = shop()
    assert [spec.id for spec in ops.list()] == ["shop.add", "shop.clear", "shop.count"]
    assert [spec.id for spec in ops.list(tag="admin")] == ["shop.clear"]
    assert [spec.id for spec in ops.list(type="subscription")] == ["shop.count"]
    assert ops.list(namespace="sho") == []
    assert [spec.id for spec in ops.mount("eu").list(namespace="eu")] == [
        "eu.shop.add",
        "eu.shop.clear",
        "eu.shop.count",
    ]


def test_a_duplicate_id_is_refused_by_name() -> None:
    ops = shop()
    with pytest.raises(ValueError, match=r"shop\.add is already registered"):
        ops.register(lambda: None, name="add")


def test_options_for_an_operation_are_refused_instead_of_ignored() -> None:
    target, add = OperationRegistry(), shop().get("shop.add")
    with pytest.raises(TypeError, match=r"shop\.add is an operation: options such as access are for functions"):
        target.register(add, access={"required_scopes": ["stock"]})
    assert "shop.add" not in target


def test_register_all_registers_all_or_none() -> None:
    source, target = shop(), OperationRegistry()
    target.register_all(source.only(lambda spec: spec.name == "clear"))
    with pytest.raises(ValueError, match=r"shop\.clear is already registered"):
        target.register_all(source)
    assert [spec.id for spec in target.list()] == ["shop.clear"]


async def test_operations_taken_by_another_registry_keep_the_policies_of_theirs() -> None:
    ops = OperationRegistry("shop", strict_output=True, expose_errors=False, coerce=False)

    @ops.query
    async def stock(item: int = 1) -> int:
        return "none"  # type: ignore[return-value]

    @ops.query(strict_output=False)
    async def about() -> int:
        return "nothing"  # type: ignore[return-value]

    @ops.query
    async def fail() -> int:
        raise ValueError("the password is tea")

    whole = OperationRegistry(strict_output=True, extras="keep")
    whole.register_all(ops)
    for registry in (ops, whole):
        for call, sentence in (
            (("shop.stock", {}), "does not match its output schema"),
            (("shop.stock", {"item": "1"}), "must be integer"),
            (("shop.fail", {}), "Operation shop.fail failed"),
        ):
            with pytest.raises(CallError, match=sentence):
                await registry.execute(*call)
        assert (await registry.execute("shop.about")).data == "nothing"


async def test_a_spec_and_its_handler_can_come_apart() -> None:
    ops = OperationRegistry()
    ops.register_spec(OperationSpec(name="greet", output_schema={"type": "string"}))
    with pytest.raises(CallError, match="No handler registered for operation: greet") as caught:
        await ops.execute("greet", {})
    assert caught.value.code == "OPERATION_NOT_FOUND"

    async def greet(input: dict[str, Any], context: Context) -> str:
        return f"hello {input['who']} ({len(context.request_id)})"

    ops.register_handler("greet", greet)
    assert (await ops.execute("greet", {"who": "you"})).data == "hello you (32)"
    with pytest.raises(ValueError, match="greet already has a handler"):
        ops.register_handler("greet", greet)


async def test_the_middleware_of_a_spec_wraps_the_handler_that_comes_later() -> None:
    async def refuse(call: Call, next: Next) -> Outcome:
        raise CallError("ACCESS_DENIED", "closed")

    ops = OperationRegistry()
    ops.register(Operation(OperationSpec(name="greet"), None, middleware=(refuse,)))
    ops.register_handler("greet", lambda *_: "hello")
    with pytest.raises(CallError, match="closed"):
        await ops.execute("greet", {})


def test_a_handler_without_a_spec_is_refused() -> None:
    with pytest.raises(LookupError, match=r"There is no spec shop\.nothing"):
        shop().register_handler("shop.nothing", print)


async def test_an_unknown_id_is_named() -> None:
    ops = shop()
    for find in (ops.get, ops.get_spec, ops.get_handler):
        with pytest.raises(CallError, match=r"Operation not found: shop\.nothing"):
            find("shop.nothing")
    with pytest.raises(CallError, match=r"Operation not found: shop\.nothing"):
        await ops.execute("shop.nothing", {})
    with pytest.raises(LookupError, match=r"shop\.nothing"):
        ops.unregister("shop.nothing")


async def test_executing_a_subscription_or_subscribing_to_a_query_fails_with_advice() -> None:
    ops = shop()
    with pytest.raises(CallError, match=r"use subscribe\(\)") as caught:
        await ops.execute("shop.count", {"to": 1})
    assert caught.value.code == "INVALID_OPERATION_TYPE"
    with pytest.raises(CallError, match=r"use execute\(\)") as caught:
        await anext(ops.subscribe("shop.add", {"x": 1, "y": 1}))
    assert caught.value.code == "INVALID_OPERATION_TYPE"


def test_an_unregistered_operation_is_gone_and_comes_back_when_registered() -> None:
    ops = shop()
    gone = ops.unregister("shop.add")
    assert "shop.add" not in ops
    assert isinstance(gone, Operation)
    ops.register(gone)
    assert ops.get("shop.add") is gone


def test_a_name_that_only_one_operation_has_finds_it() -> None:
    ops = shop()
    assert ops.find("add").id == "shop.add"
    assert ops.find("shop.add").id == "shop.add"
    other = OperationRegistry("other")
    other.register(ops.get_handler("shop.add"))
    ops.register_all(other)
    with pytest.raises(CallError, match=r"add \(several operations have this name: use the full id\)"):
        ops.find("add")


async def test_views_are_live_and_compose() -> None:
    ops = shop()
    view = ops.mount("eu").only(lambda spec: spec.type is OperationType.QUERY).rename({"eu.shop.add": "plus"})
    assert [spec.id for spec in view.list()] == ["plus"]
    ops.register(lambda: 1, name="one", type="query")
    assert [spec.id for spec in view.list()] == ["plus", "eu.shop.one"]
    envelope = await view.execute("plus", {"x": 2, "y": 2})
    assert (envelope.data, envelope.meta.operation_id) == (4, "plus")  # type: ignore[union-attr]  # it is local
    ops.unregister("shop.add")
    assert [spec.id for spec in view.list()] == ["eu.shop.one"]


def test_a_view_in_which_two_would_have_one_id_says_so() -> None:
    with pytest.raises(ValueError, match=r"Two operations would be called shop\.clear"):
        shop().rename({"shop.add": "shop.clear"})


def test_an_operation_that_clashes_in_a_view_is_left_out_of_it() -> None:
    ops = shop()
    view = ops.mount("a.b.c.d").rename({"a.b.c.d.shop.add": "a.b.c.d.shop.plus"})
    ops.register(lambda: 1, name="x", namespace="too.deep")
    ops.register(lambda: 1, name="plus")
    assert [spec.name for spec in view.list()] == ["plus", "clear", "count"]


def test_a_watcher_is_called_for_every_change_until_it_stops() -> None:
    ops, heard = shop(), []
    stop = ops.only(lambda _: True).watch(lambda: heard.append(ops.version))
    ops.unregister("shop.add")
    stop()
    ops.unregister("shop.clear")
    assert len(heard) == 1


BAD_NAMES = [
    ("", ""),
    ("", "a.b"),
    ("a..b", "c"),
    ("a b", "c"),
    ("", "ä"),
    ("a", "x" * 65),
    ("a.b.c.d.e.f", "g"),
    ("", "a\n"),
]


@pytest.mark.parametrize(("namespace", "name"), BAD_NAMES, ids=repr)
def test_an_illegal_name_is_refused(namespace: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid|too long"):
        OperationSpec(namespace=namespace, name=name)


def test_the_longest_legal_id_has_six_parts_and_200_characters() -> None:
    assert OperationSpec(namespace="a.b.c.d.e", name="f").id == "a.b.c.d.e.f"
    long = ".".join(["x" * 60] * 3)
    assert len(OperationSpec(namespace=long, name="y" * 17).id) == 200
    with pytest.raises(ValueError, match="too long"):
        OperationSpec(namespace=long, name="y" * 18)


def test_an_operation_that_is_replaced_keeps_its_place() -> None:
    ops = shop()
    first, *others = list(ops)
    made_anew = first.replace()
    ops.replace(made_anew)
    assert list(ops) == [made_anew, *others]
    with pytest.raises(LookupError, match=r"There is no operation shop\.nothing to replace"):
        ops.replace(first.replace(spec=first.spec.replace(name="nothing")))


def test_a_short_name_never_changes_its_source_while_one_is_down() -> None:
    ops = OperationRegistry()
    ops.query(namespace="b", name="search")(lambda: 1)
    assert ops.find("search").id == "b.search"
    ops.services.sources.away["a"] = frozenset({"search"})
    with pytest.raises(CallError, match="use the full id"):
        ops.guarded().find("search")
    assert ops.find("b.search").id == "b.search"
    ops.services.sources.remove("a")
    assert ops.find("search").id == "b.search"
