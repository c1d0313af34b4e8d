"""The figures that the pages show: the medians and goals of the last runs, from `.bench/results/` into `docs/figures.json` and its plots."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from benchmarks.environments import HOME, ROOT

FIGURES: Final = ROOT / "docs/figures.json"


def published(names: Iterable[str]) -> None:
    """Take over what was just measured; figures of other benchmarks stay as they are."""
    kept: dict[str, Any] = msgspec.json.decode(FIGURES.read_bytes()) if FIGURES.exists() else {}
    for name in names:
        file = HOME / "results" / f"{name}.json"
        if file.exists():
            kept[name] = _condensed(msgspec.json.decode(file.read_bytes()))
    FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(kept.items()))), indent=1) + b"\n")
    subprocess.run([sys.executable, "docs/build.py"], cwd=ROOT, check=True)


def _condensed(result: dict[str, Any]) -> dict[str, Any]:
    head = {"measured": result["measured"], "python": result["machine"]["python"]}
    if "calls" in result:
        return {**head, "calls": result["calls"]}
    return {
        **head,
        "packages": result["packages"],
        "comparisons": [_comparison(comparison) for comparison in result["comparisons"]],
    }


def _comparison(comparison: dict[str, Any]) -> dict[str, Any]:
    goals = [{**each["goal"], "ratio": each["ratio"], "verdict": each["verdict"]} for each in comparison["goals"]]
    medians = {name: float(f"{value:.4g}") for name, value in comparison["medians_us"].items()}
    load = [round(each, 1) for each in comparison["load"]]
    return {
        "title": comparison["title"],
        "measure": comparison["measure"],
        "load": load,
        "medians_us": medians,
        "goals": goals,
    }
