"""What people and programs read of a comparison: tables on stdout, JSON in `.bench/results/`."""

from __future__ import annotations

import datetime as dt
import platform
import statistics
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final

import msgspec

from benchmarks.environments import HOME
from benchmarks.harness import Goal, Measure, Outcome, Sample

_WORDS: Final = {"cpu": "CPU", "wall": "wall"}


class Verdict(msgspec.Struct, frozen=True):
    """A goal and what became of it; no ratio where a contender was not there."""

    goal: Goal
    ratio: float | None

    @property
    def word(self) -> str:
        if self.ratio is None:
            return "not measured"
        met = self.ratio <= self.goal.limit if self.goal.bound == "at most" else self.ratio >= self.goal.limit
        return "met" if met else "missed"


def show(outcome: Outcome) -> None:
    """Print the figures of a comparison, then its goals."""
    print(f"\n## {outcome.comparison.title}\n")
    print_table(_figures_head(outcome), _figures(outcome))
    if outcome.comparison.goals:
        print()
        print_table(("goal", "ratio", "limit", "verdict"), map(_goal_row, verdicts(outcome)))
    before, after = outcome.load
    rounds = len(next(iter(outcome.samples.values())))
    print(f"\n{rounds} rounds, load {before:.1f} before and {after:.1f} after", flush=True)


def save(name: str, outcomes: list[Outcome]) -> None:
    """Write every sample, with what a reader needs to compare it with others."""
    write(name, {"packages": _packages(), "comparisons": [_comparison(outcome) for outcome in outcomes]})


def write(name: str, found: dict[str, Any]) -> None:
    """Keep what a benchmark found, with when and where."""
    document = {
        "measured": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "system": platform.system(), "kind": platform.machine()},
        **found,
    }
    folder = HOME / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))


def verdicts(outcome: Outcome) -> list[Verdict]:
    medians = _medians(outcome)
    return [Verdict(goal, _ratio(medians, goal)) for goal in outcome.comparison.goals]


def _ratio(medians: dict[str, float], goal: Goal) -> float | None:
    if goal.over not in medians or goal.under not in medians:
        return None
    return medians[goal.over] / medians[goal.under]


def _medians(outcome: Outcome) -> dict[str, float]:
    return {
        name: statistics.median(_times(samples, outcome.comparison.measure))
        for name, samples in outcome.samples.items()
    }


def _times(samples: list[Sample], measure: Measure) -> list[float]:
    return [getattr(sample, measure) for sample in samples]


def _figures_head(outcome: Outcome) -> tuple[str, ...]:
    measure, other = _measures(outcome)
    ratios = (f"x {name}" for name in outcome.comparison.baselines)
    return "contender", f"{_WORDS[measure]}, median", "middle half", f"{_WORDS[other]}, median", *ratios


def _figures(outcome: Outcome) -> Iterable[tuple[str, ...]]:
    medians = _medians(outcome)
    measure, other = _measures(outcome)
    for name, samples in outcome.samples.items():
        low, middle, high = statistics.quantiles(_times(samples, measure), n=4)
        beside = statistics.median(_times(samples, other))
        ratios = (_number(middle / medians[baseline]) for baseline in outcome.comparison.baselines)
        yield name, _time(middle), f"{_time(low)} to {_time(high)}", _time(beside), *ratios


def _measures(outcome: Outcome) -> tuple[Measure, Measure]:
    """The one that counts in this comparison, and the other."""
    return ("cpu", "wall") if outcome.comparison.measure == "cpu" else ("wall", "cpu")


def _goal_row(verdict: Verdict) -> tuple[str, ...]:
    goal = verdict.goal
    ratio = "" if verdict.ratio is None else _number(verdict.ratio)
    return f"{goal.over} / {goal.under}", ratio, f"{goal.bound} {goal.limit:g}", verdict.word


def _time(microseconds: float) -> str:
    return f"{microseconds:.2f} us" if microseconds < 1_000 else f"{microseconds / 1_000:.2f} ms"


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"


def print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """A Markdown table whose columns also line up in a terminal: names to the left, figures to the right."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = tuple("-" * width for width in widths)
    for name, *figures in (head, rule, *table[1:]):
        cells = [name.ljust(widths[0]), *(text.rjust(width) for text, width in zip(figures, widths[1:], strict=True))]
        print(f"| {' | '.join(cells)} |")


def _packages() -> dict[str, str]:
    names = ("enfold", "fastapi", "fastmcp", "jsonschema-rs", "litestar", "mcp", "msgspec", "pydantic", "uvicorn")
    return {name: metadata.version(name) for name in names}


def _comparison(outcome: Outcome) -> dict[str, Any]:
    return {
        "title": outcome.comparison.title,
        "measure": outcome.comparison.measure,
        "load": outcome.load,
        "medians_us": _medians(outcome),
        "goals": [
            {"goal": verdict.goal, "ratio": verdict.ratio, "verdict": verdict.word} for verdict in verdicts(outcome)
        ],
        "samples_us": outcome.samples,
    }
