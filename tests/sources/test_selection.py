"""One meaning of include, exclude and rename, and one report of an import, for every source."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
from tests.openapi_options import openapi_options

from enfold import OperationRegistry
from enfold.calls.transports.memory import MemoryTransport
from enfold.sources.calls import from_calls
from enfold.sources.functions import from_functions
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.sources.options import Selection
from enfold.sources.reports import ImportReport, Problem
from enfold.surfaces.calls import serve_calls

NAMES = ["get_one", "get_two", "drop_all"]


def _shown(value: Any) -> str:
    """A name for a case that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _module() -> ModuleType:
    module = ModuleType("chosen")
    exec("\n".join(f"def {name}() -> int: return 1" for name in NAMES), vars(module))  # noqa: S102  # three functions
    return module


@asynccontextmanager
async def functions(**options: Any) -> AsyncIterator[Any]:
    yield from_functions(_module(), **options)


@asynccontextmanager
async def openapi(**options: Any) -> AsyncIterator[Any]:
    paths = {f"/{name}": {"get": {"operationId": name, "responses": {}}} for name in NAMES}
    async with from_openapi(
        {"openapi": "3.1.0", "paths": paths}, base_url="http://a.test", **openapi_options(**options)
    ) as imported:
        yield imported


@asynccontextmanager
async def calls(**options: Any) -> AsyncIterator[Any]:
    registry = OperationRegistry()
    registry.register_all(from_functions(_module()))
    transport = MemoryTransport()
    async with serve_calls(registry, transport), from_calls(transport, selection=Selection(**options)) as found:
        yield found


@asynccontextmanager
async def mcp(**options: Any) -> AsyncIterator[Any]:
    program = (
        "from enfold import OperationRegistry\nfrom enfold.surfaces.mcp import serve_stdio\nops = OperationRegistry()\n"
    )
    lines = [f"def {name}() -> int: return 1\nops.query({name})\n" for name in NAMES]
    command = [sys.executable, "-c", f"{program}{''.join(lines)}serve_stdio(ops)"]
    async with from_mcp(command, selection=Selection(**options)) as found:
        yield found


SOURCES: list[Callable[..., Any]] = [functions, openapi, calls, mcp]


@pytest.fixture(params=SOURCES, ids=lambda source: source.__name__)
def taken(request: pytest.FixtureRequest) -> Callable[..., Awaitable[list[str]]]:
    """The ids that a source gives under these options."""

    async def taken(**options: Any) -> list[str]:
        async with request.param(**options) as found:
            assert sorted(found.report.imported) == sorted(each.spec.id for each in found)
            assert found.report.skipped == []
            assert str(found.report).startswith(f"{len(found)} imported, 0 skipped")
            return sorted(each.spec.id for each in found)

    return taken


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, NAMES),
        ({"include": "get_*"}, ["get_one", "get_two"]),
        ({"include": ["get_*"]}, ["get_one", "get_two"]),
        ({"include": {"get_one": 1, "drop_*": 2}.keys()}, ["get_one", "drop_all"]),
        ({"include": "get_one"}, ["get_one"]),
        ({"exclude": "get_*"}, ["drop_all"]),
        ({"exclude": ("get_one", "drop_all")}, ["get_two"]),
        ({"include": "get_*", "exclude": "*_two"}, ["get_one"]),
        ({"include": lambda spec: spec.name.startswith("get")}, ["get_one", "get_two"]),
        ({"exclude": lambda spec: spec.name.startswith("get")}, ["drop_all"]),
        ({"include": []}, []),
        ({"exclude": []}, NAMES),
        ({"include": "nothing"}, []),
        ({"rename": {"get_one": "one"}}, ["one", "get_two", "drop_all"]),
        ({"rename": {"get_one": "one"}, "include": "one"}, ["one"]),
        ({"rename": {"get_one": "one"}, "include": "get_one"}, ["one"]),
    ],
    ids=_shown,
)
async def test_one_text_or_several_patterns_mean_the_same_everywhere(
    taken: Callable[..., Awaitable[list[str]]], options: dict[str, Any], names: list[str]
) -> None:
    assert await taken(**options) == sorted(names)


@pytest.mark.parametrize("option", ["include", "exclude"])
async def test_anything_but_a_pattern_is_refused_with_a_sentence(
    taken: Callable[..., Awaitable[list[str]]], option: str
) -> None:
    with pytest.raises(TypeError, match=f"{option} takes patterns such as"):
        await taken(**{option: [1]})


def test_a_function_that_patterns_leave_out_need_not_be_fit_to_be_an_operation() -> None:
    def good() -> int:
        return 1

    def bad(*args: int, **kwargs: int) -> int:
        return len(args) + len(kwargs)

    assert from_functions(good, bad, exclude="bad").report.imported == ["good"]


def test_a_report_for_people_lists_what_was_left_out() -> None:
    report = ImportReport(["a"], [Problem("b", "it is broken")])
    assert str(report) == "1 imported, 1 skipped, 0 degraded\n  skipped b: it is broken"
    assert report.to_dict() == {"imported": ["a"], "skipped": [{"where": "b", "why": "it is broken"}], "degraded": []}
