"""The frame of one benchmark: run its races one after another, show and save what came out."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from benchmarks import harness, report

if TYPE_CHECKING:
    from benchmarks.harness import Race


def race_all(name: str, races: list[Race], rounds: int) -> int:
    """The exit code: a ratio is a figure and never a failure, a wrong answer is."""
    try:
        asyncio.run(_race_all(name, races, rounds))
    except harness.WrongAnswerError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


async def _race_all(name: str, races: list[Race], rounds: int) -> None:
    outcomes = []
    for race in races:
        outcome = await harness.run(race, rounds)
        report.show(outcome)
        outcomes.append(outcome)
    report.save(name, outcomes)
