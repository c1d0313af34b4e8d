"""The dashboard and the alert rules of `examples/deploy/monitoring`, compared with what a real server writes at `/metrics`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.served import Served, serving

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples/deploy/monitoring"
RUNBOOK = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
TARGET = {"job", "instance"}  # labels that Prometheus adds to every series
CONFIGURATION = """\
[tasks]
store = "memory"
[sources.shop]
functions = "app.py"
durable = { "price" = "optional" }
"""


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "5m")


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The label names of every series that a server writes after a success and a refusal."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "app.py").write_text((ROOT / "examples/deploy/app.py").read_text())
    (folder / "enfold.toml").write_text(CONFIGURATION)
    with serving("enfold.toml", cwd=folder) as server:
        assert server.get("/functions/shop.price?item=tea") == {"result": 350}
        with pytest.raises(HTTPError):
            server.get("/functions/shop.price?unknown=tea")
        return labels_by_name(server)


def labels_by_name(server: Served) -> dict[str, set[str]]:
    with urlopen(f"{server.base}/metrics", timeout=30) as reply:  # noqa: S310  # our own server
        text = reply.read().decode()
    found: dict[str, set[str]] = {"up": set()}  # Prometheus writes `up` for each target itself
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", [pytest.param(text, id=name) for name, text in expressions()])
def test_an_expression_uses_series_and_labels_that_a_server_writes(
    expression: str, series: dict[str, set[str]]
) -> None:
    for selector, grouped in selectors(promql_parser.parse(expression), set()):
        assert selector.name in series
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched | grouped <= series[selector.name] | TARGET


def selectors(node: Any, grouped: set[str]) -> Iterator[tuple[promql_parser.VectorSelector, set[str]]]:
    """Every selector of an expression, with the labels that aggregations around it group by."""
    match node:
        case promql_parser.VectorSelector():
            yield node, grouped
        case promql_parser.MatrixSelector():
            yield node.vector_selector, grouped
        case promql_parser.AggregateExpr():
            by = set(node.modifier.labels) if node.modifier is not None else set()
            yield from selectors(node.expr, grouped | by)
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs, grouped)
            yield from selectors(node.rhs, grouped)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument, grouped)
        case promql_parser.ParenExpr():
            yield from selectors(node.expr, grouped)
        case promql_parser.NumberLiteral():
            pass
        case _:
            raise NotImplementedError(type(node))


def test_every_metric_of_a_server_is_on_the_dashboard(series: dict[str, set[str]]) -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    written = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in series} - {"up"}
    assert {name for name in written if name not in shown} == set()


def test_every_alert_leads_to_a_section_of_the_runbook() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings}
    assert {rule["annotations"]["runbook"] for rule in rules()} <= anchors


def test_log_lines_that_the_runbook_quotes_are_written_by_the_program() -> None:
    quoted = (
        "is lost: reconnecting",
        "has blocked the event loop",
        "was dropped: this process is too slow",
        "; restarting it",
        "in the queue is not a task",
        "is not used",
    )
    program = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/enfold").rglob("*.py"))
    assert [line for line in quoted if line not in program or line not in RUNBOOK] == []


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels()
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_tests_that_the_runbook_names_exist() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", RUNBOOK) if f"def {name}(" not in tests] == []
    assert [file for file in re.findall(r"`(tests/[\w/.]+)`", RUNBOOK) if not (ROOT / file).exists()] == []
