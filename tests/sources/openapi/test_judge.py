"""A sample of our requests before Prism; `python -m tests.sources.openapi.judge` puts many more before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.sources.openapi.judge import Verdict, judge

Judged = Callable[..., Awaitable[Verdict]]

DATA = Path(__file__).parent / "data"


@pytest.fixture
def judged(program: Callable[[str], str]) -> Judged:
    node, prism = program("node"), program("prism")
    return lambda document, imported=None: judge(node, prism, document, most=100, imported=imported)


async def test_prism_finds_no_fault_with_our_requests(judged: Judged) -> None:
    verdict = await judged(DATA / "judged.yaml")
    assert (verdict.violations, verdict.left_out) == ([], [])
    assert (verdict.operations, verdict.right) == (11, 22)


async def test_prism_finds_requests_that_their_document_does_not_allow(judged: Judged, tmp_path: Path) -> None:
    document = (DATA / "judged.yaml").read_text()
    stricter = tmp_path / "stricter.yaml"
    stricter.write_text(
        document.replace("minimum: 3", "minimum: 30").replace("in: query, name: key", "in: header, name: key")
    )
    verdict = await judged(stricter, DATA / "judged.yaml")
    assert {each.partition(" (")[0] for each in verdict.violations} == {
        "GET /things/{id}",
        "PUT /things/{id}",
        "DELETE /things/{id}",
        "GET /keyed",
    }
