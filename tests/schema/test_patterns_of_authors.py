"""Patterns that authors put on their own types: a hostile text costs no more than its size, on every surface and for every kind of type."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.error import HTTPError

import fastmcp
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.served import Served, serving

from enfold import CallError, OperationRegistry
from enfold.sources.mcp import from_mcp

APP: Final = r"""
import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

from msgspec import Meta, Struct
from pydantic import BaseModel, ConfigDict, Field

from enfold import OperationRegistry

SLOW = r"^(\w+\s?)+$"
Words = Annotated[str, Meta(pattern=SLOW)]


class Tree(Struct):
    words: Words
    count: int = 1
    children: list["Tree"] = []


@dataclass
class Data:
    words: Words
    count: int = 1


class Entry(TypedDict, total=False):
    words: Words


class Pair(NamedTuple):
    words: Words
    count: int = 1


class First(Struct, tag=True):
    words: Words


class Second(Struct, tag=True):
    others: Words


class Model(BaseModel):
    words: Annotated[str, Field(pattern=SLOW)]


class PythonModel(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    words: Annotated[str, Field(pattern=SLOW)]
    child: "PythonModel | None" = None


class CompiledModel(BaseModel):
    words: Annotated[str, Field(pattern=re.compile(SLOW))]


ops = OperationRegistry("shop")
KINDS = {
    "text": Words,
    "field": Annotated[str, Field(pattern=SLOW)],
    "list": list[Words],
    "table": dict[str, Words],
    "keys": dict[Words, int],
    "optional": Words | None,
    "or_number": Words | int,
    "struct": Tree,
    "structs": list[Tree],
    "optional_struct": Tree | None,
    "dataclass": Data,
    "typed_dict": Entry,
    "named_tuple": Pair,
    "union": First | Second,
    "model": Model,
    "python_model": PythonModel,
    "compiled_model": CompiledModel,
    "models": dict[str, list[PythonModel]],
}


def register(kind: str, annotation: Any) -> None:
    def operation(value):
        return type(value).__name__

    operation.__annotations__ = {"value": annotation, "return": str}
    ops.mutation(operation, name=kind)


for kind, annotation in KINDS.items():
    register(kind, annotation)


@ops.query
def answer(words: Words) -> str:
    return words


@ops.query
def result(length: int) -> Words:
    return "a" * length + "!"
"""

# How a text comes to stand in a value of each kind, and the class of the value that the handler gets.
KINDS: Final[dict[str, tuple[Any, str]]] = {
    "text": ("{}", "str"),
    "field": ("{}", "str"),
    "list": (["{}"], "list"),
    "table": ({"a": "{}"}, "dict"),
    "keys": ({"{}": 1}, "dict"),
    "optional": ("{}", "str"),
    "or_number": ("{}", "str"),
    "struct": ({"words": "a", "children": [{"words": "{}"}]}, "Tree"),
    "structs": ([{"words": "{}"}], "list"),
    "optional_struct": ({"words": "{}"}, "Tree"),
    "dataclass": ({"words": "{}"}, "Data"),
    "typed_dict": ({"words": "{}"}, "dict"),
    "named_tuple": (["{}"], "Pair"),
    "union": ({"type": "Second", "others": "{}"}, "Second"),
    "model": ({"words": "{}"}, "Model"),
    "python_model": ({"words": "a", "child": {"words": "{}"}}, "PythonModel"),
    "compiled_model": ({"words": "{}"}, "CompiledModel"),
    "models": ({"a": [{"words": "{}"}]}, "dict"),
}
SHORT: Final = "a" * 35 + "!"
LONG: Final = "a" * 7_000_000 + "!"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("patterns")
    (folder / "app.py").write_text(APP)
    with serving("app.py", cwd=folder) as served:
        yield served


def value_of(kind: str, text: str) -> Any:
    """The value of a kind with a text in it; `{}` stands where it goes."""
    return json.loads(json.dumps(KINDS[kind][0]).replace("{}", text))


def refused(served: Served, path: str, body: Any) -> Any:
    with pytest.raises(HTTPError) as told:
        served.get(path, json.dumps(body).encode())
    with told.value as answer:
        assert (answer.code, answer.headers["enfold-code"]) == (400, "VALIDATION_ERROR")
        return json.load(answer)["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_matches_is_read_as_its_type(served: Served, kind: str) -> None:
    body = json.dumps({"value": value_of(kind, "hello world")}).encode()
    assert served.get(f"/functions/shop.{kind}", body) == {"result": KINDS[kind][1]}


@pytest.mark.parametrize("text", [SHORT, LONG], ids=["36 bytes", "7 MB"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_text_is_refused_and_the_server_still_answers(served: Served, kind: str, text: str) -> None:
    assert "match" in refused(served, f"/functions/shop.{kind}", {"value": value_of(kind, text)})
    assert served.get("/healthz") == {"status": "ok"}


def test_many_hostile_texts_share_what_one_call_may_take(served: Served) -> None:
    assert "match" in refused(served, "/functions/shop.list", {"value": [SHORT] * 100_000})


@pytest.mark.parametrize("text", [SHORT, LONG], ids=["36 bytes", "7 MB"])
async def test_a_hostile_text_is_refused_over_mcp(served: Served, text: str) -> None:
    async with fastmcp.Client(f"{served.base}/mcp") as client:
        answer = await client.call_tool("shop_struct", {"value": {"words": text}}, raise_on_error=False)
    assert answer.is_error
    assert served.get("/healthz") == {"status": "ok"}


@pytest.mark.parametrize("text", [SHORT, LONG], ids=["36 bytes", "7 MB"])
async def test_a_gateway_refuses_a_hostile_text_before_it_forwards_it(served: Served, text: str) -> None:
    gateway = OperationRegistry()
    async with from_mcp(f"{served.base}/mcp") as operations:
        gateway.register_all(operations)
        with pytest.raises(CallError, match="match"):
            await gateway.execute("shop_struct", {"value": {"words": text}})


def test_a_hostile_text_in_the_shell_ends_with_the_code_of_bad_arguments(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "enfold", "call", "app.py", "shop.answer", f"words={SHORT}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "VALIDATION_ERROR" in ended.stderr


def test_a_hostile_result_is_reported_with_a_warning(served: Served) -> None:
    answer = served.get("/functions/shop.result", b'{"length": 35}')
    assert answer == {"result": SHORT}


def test_a_server_that_got_a_hostile_text_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving("app.py", cwd=tmp_path) as served:
        refused(served, "/functions/shop.struct", {"value": {"words": LONG}})
        assert served.end(signal.SIGTERM) == 0


# --- what registration says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(?i)abc", "(?x) a", "a++", r"(?P=name)"])
def test_a_pattern_that_json_schema_does_not_know_is_refused_at_registration(pattern: str) -> None:
    ops = OperationRegistry("shop")

    def operation(value: str) -> str:
        return value

    operation.__annotations__["value"] = Annotated[str, Field(pattern=pattern)]
    with pytest.raises(TypeError, match=r"operation\(\): parameter 'value': Invalid pattern .*: "):
        ops.query(operation)


def test_a_model_with_such_a_pattern_is_refused_too() -> None:
    class Item(BaseModel):
        name: Annotated[str, Field(pattern=re.compile("(?i)abc"))]

    class Other(BaseModel):
        model_config = ConfigDict(regex_engine="python-re")
        name: Annotated[str, Field(pattern="(?i)abc")]

    for model in (Item, Other):
        ops = OperationRegistry("shop")

        def operation(value: Any) -> str:
            return str(value)

        operation.__annotations__["value"] = model
        with pytest.raises(TypeError, match=r"Invalid pattern \(\?i\)abc: "):
            ops.query(operation)


async def test_anchors_of_python_are_written_as_json_schema_has_them() -> None:
    ops = OperationRegistry("shop")

    @ops.query
    def sku(value: Annotated[str, msgspec.Meta(pattern=r"\A[a-z]+\Z")]) -> str:
        return value

    assert ops.get_spec("shop.sku").input_schema["properties"]["value"]["pattern"] == "^[a-z]+$"
    assert (await ops.execute("shop.sku", {"value": "abc"})).data == "abc"
    with pytest.raises(CallError):
        await ops.execute("shop.sku", {"value": "abc\n"})
