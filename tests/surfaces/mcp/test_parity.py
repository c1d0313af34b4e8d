"""The calls of the parity table over MCP: same data, same code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest
from tests.surfaces.mcp.parity import mcp, mcp_handshake
from tests.test_parity import CALLS, FORMATS, Call, Outcome, Run

LEGS: dict[str, Callable[[], AbstractContextManager[Run]]] = {"mcp": mcp, "mcp, handshake": mcp_handshake}


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Run]]:
    """Both legs, for the whole table."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(leg()) for name, leg in LEGS.items()}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS)
def test_a_call_gives_the_same_over_mcp(
    runs: dict[str, Run], leg: str, format: str, call: Call, expected: Outcome
) -> None:
    assert runs[leg](call, format) == expected
