"""Where two JSON values differ, as warnings: the report of a change that was not made step by step."""

from __future__ import annotations

from typing import Any

from enfold.envelope import ResultWarning
from enfold.schema.repairs.repair_report import Path, Report


def differences(old: Any, new: Any) -> tuple[ResultWarning, ...]:
    """One `cast` entry at each place where the two differ and are not both objects or both arrays of one length."""
    report = Report()
    # A stack of our own: values may be deeper than Python's.
    waiting: list[tuple[Any, Any, Path]] = [(old, new, None)]
    while waiting:
        was, now, path = waiting.pop()
        if was is now:
            continue
        if type(was) is dict and type(now) is dict:
            waiting += _pairs_of_objects(was, now, path, report)
        elif type(was) is list and type(now) is list and len(was) == len(now):
            waiting += [
                (mine, theirs, (path, index)) for index, (mine, theirs) in enumerate(zip(was, now, strict=True))
            ]
        elif type(was) is not type(now) or was != now:
            report.add("cast", path, was, now)
    return report.warnings()


def _pairs_of_objects(
    was: dict[str, Any], now: dict[str, Any], path: Path, report: Report
) -> list[tuple[Any, Any, Path]]:
    for key in was.keys() - now.keys():
        report.add("cast", (path, key), was[key])
    for key in now.keys() - was.keys():
        report.add("cast", (path, key), None, now[key])
    return [(was[key], now[key], (path, key)) for key in was.keys() & now.keys()]
