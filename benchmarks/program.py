"""The frame of one benchmark: run its comparisons one after another, show and save what came out."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from benchmarks import harness, report

if TYPE_CHECKING:
    from benchmarks.harness import Comparison


def compare_all(name: str, comparisons: list[Comparison], rounds: int) -> int:
    """The exit code: a ratio is a figure and never a failure, a wrong answer is."""
    try:
        asyncio.run(_comparison_all(name, comparisons, rounds))
    except harness.WrongAnswerError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


async def _comparison_all(name: str, comparisons: list[Comparison], rounds: int) -> None:
    outcomes = []
    for comparison in comparisons:
        outcome = await harness.run(comparison, rounds)
        report.show(outcome)
        outcomes.append(outcome)
    report.save(name, outcomes)
