"""What is decorated or registered by mistake fails when the program is loaded, with a sentence that says what to do."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enfold import OperationRegistry


class Shop:
    def price(self, item: str) -> int:
        return len(item)

    async def order(self, item: str) -> str:
        return item

    @functools.lru_cache  # noqa: B019  # a decorator that keeps what it wraps
    def stock(self, item: str) -> int:
        return len(item)

    @classmethod
    def open(cls, item: str) -> str:
        return item

    @staticmethod
    async def close(item: str) -> str:
        return item

    def __call__(self, item: str) -> str:
        return item


async def later() -> int:
    return 1


REGISTRY: Any = OperationRegistry  # mypy would refuse all of these
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a class": (lambda ops: ops.query(Shop), "Shop is a class: register a function"),
    "a class with options": (lambda ops: ops.mutation(name="shop")(Shop), "Shop is a class"),
    "a class as a tool": (lambda ops: ops.tool(Shop), "Shop is a class"),
    "an unbound method": (lambda ops: ops.query(Shop.price), "Shop.price is a method without its instance"),
    "an async method": (lambda ops: ops.query(Shop.order), "Shop.order is a method without its instance"),
    "a wrapped method": (lambda ops: ops.query(Shop.stock), "Shop.stock is a method without its instance"),
    "a partial method": (
        lambda ops: ops.query(name="price")(functools.partial(Shop.price, item="tea")),
        "is a method without its instance",
    ),
    "a classmethod before it is bound": (
        lambda ops: ops.query(name="x")(vars(Shop)["open"]),
        "Shop.open is a method without its instance: register a bound method, as in ops.register(instance.open)",
    ),
    "a query of no instance": (
        lambda _: REGISTRY.query(later),
        "OperationRegistry.query needs a registry: write ops = OperationRegistry(), then @ops.query",
    ),
    "options of no instance": (
        lambda _: REGISTRY.mutation(name="x"),
        "OperationRegistry.mutation needs a registry",
    ),
    "a tool of no instance": (lambda _: REGISTRY.tool(later), "needs a registry"),
    "a resource of no instance": (
        lambda _: REGISTRY.resource("shop://x"),
        "OperationRegistry.resource needs a registry",
    ),
    "a name": (lambda ops: ops.tool("price"), "'price' is a string, not a function: write name='price'"),
    "a path": (lambda ops: ops.query("/items"), "'/items' is a string, not a function: write http='GET /path'"),
    "a coroutine": (lambda ops: ops.register(later()), "later was called: register the function itself"),
    "a number": (lambda ops: ops.register(5), "int is not a function"),
    "a resource without a URI": (lambda ops: ops.resource(later), "A resource needs a URI"),
}


@pytest.mark.parametrize(("register", "sentence"), WRONG.values(), ids=WRONG)
def test_it_fails_at_registration(register: Callable[[Any], Any], sentence: str) -> None:
    ops = OperationRegistry()
    with pytest.raises(TypeError) as refused:
        register(ops)
    assert sentence in str(refused.value)
    assert len(ops) == 0


async def test_bound_methods_static_methods_and_callable_objects_are_registered() -> None:
    ops, shop = OperationRegistry(), Shop()
    ops.query(shop.price)
    ops.query(shop.order)
    ops.query(Shop.open)
    ops.query(name="closed")(vars(Shop)["close"])
    ops.query(name="called")(shop)
    assert [(await ops.execute(spec.id, {"item": "tea"})).data for spec in ops.list()] == [
        3,
        "tea",
        "tea",
        "tea",
        "tea",
    ]


PROGRAMS = {
    "a method": ("class Shop:\n    @ops.query\n    def price(self, item: str) -> int: ...\n", "Shop.price is a method"),
    "a class": ("@ops.query\nclass Shop: ...\n", "Shop is a class"),
    "no instance": ("@OperationRegistry.query\ndef price() -> int: ...\n", "OperationRegistry.query needs a registry"),
}


@pytest.mark.parametrize(("source", "sentence"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_command_says_it_with_the_line(tmp_path: Path, source: str, sentence: str) -> None:
    head = 'from enfold import OperationRegistry\nops = OperationRegistry("shop")\n'
    (tmp_path / "app.py").write_text(head + source)
    done = subprocess.run(
        [sys.executable, "-m", "enfold", "list", "app.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env=dict(os.environ),
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "app.py, line " in done.stderr


@pytest.mark.parametrize(
    ("use", "error", "sentence"),
    [
        (lambda ops: ops.post("/items"), AttributeError, r'write @ops.mutation\(http="POST /path"\)'),
        (lambda ops: ops.get("/items"), TypeError, r'write @ops.query\(http="GET /items"\)'),
        (lambda ops: ops.run(transport="stdio"), TypeError, r"run\(\['mcp'\]\)"),
        (lambda ops: ops.run("stdio"), TypeError, r"run\(\['mcp'\]\)"),
        (lambda ops: ops.nothing, AttributeError, "OperationRegistry has no attribute 'nothing'$"),
    ],
    ids=["post", "get", "run by transport", "run by name", "no habit"],
)
def test_names_of_other_frameworks_get_a_hint(use: Callable[[Any], Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        use(OperationRegistry("shop"))
