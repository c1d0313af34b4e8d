"""Lineage: records linked into a graph without circles, verified as a whole, and drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.envelope import local_envelope
from enfold.operations import OperationSpec
from enfold.provenance import (
    CaptureOptions,
    CycleError,
    Recorder,
    build_graph,
    build_record,
    read_record,
    seal,
    to_mermaid,
    to_svg,
    verify,
    verify_lineage,
)
from enfold.provenance.records import Tool

Wire = dict[str, Any]


def run(run_id: str, *parents: str, name: str = "shop.add") -> Wire:
    return seal(build_record(run_id, Tool(name, "1.0.0"), parents=parents)).to_wire()


DIAMOND = [run("d", "b", "c"), run("b", "a"), run("c", "a"), run("a")]


def test_parents_come_before_their_children() -> None:
    graph = build_graph(DIAMOND)
    order = list(graph.records)
    assert all(order.index(parent) < order.index(child) for parent, child in graph.edges)
    assert set(graph.children("a")) == {"b", "c"}
    assert set(graph.ancestors("d")) == {"a", "b", "c"}
    assert graph.missing == ()


@pytest.mark.parametrize(
    ("records", "circle"),
    [
        ([run("a", "a")], {"a"}),
        ([run("a", "b"), run("b", "a")], {"a", "b"}),
        ([run("x", "a"), run("a", "b"), run("b", "c"), run("c", "a"), run("y", "x")], {"a", "b", "c"}),
    ],
    ids=["itself", "two", "three among others"],
)
def test_a_circle_is_found_and_named(records: list[Wire], circle: set[str]) -> None:
    with pytest.raises(CycleError) as raised:
        build_graph(records)
    assert set(raised.value.run_ids) == circle


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_a_graph_is_refused_exactly_when_a_run_is_its_own_ancestor(links: list[tuple[int, int]]) -> None:
    parents = {str(n): sorted({str(parent) for child, parent in links if child == n}) for n in range(10)}
    records = [build_record(run_id, Tool("t", "1"), parents=tuple(found)) for run_id, found in parents.items()]
    reach = {run_id: set(found) for run_id, found in parents.items()}
    for _ in range(10):
        reach = {run_id: found.union(*(reach[each] for each in found)) for run_id, found in reach.items()}
    if any(run_id in found for run_id, found in reach.items()):
        with pytest.raises(CycleError):
            build_graph(records)
    else:
        assert len(build_graph(records).records) == 10


def test_a_whole_lineage_is_verified() -> None:
    assert [verdict.ok for verdict in verify_lineage(DIAMOND)] == [True] * 5


def test_a_changed_parent_is_found() -> None:
    changed = {**DIAMOND[3], "tool": {"name": "shop.sub", "version": "1.0.0"}}
    faulty = [verdict.run_id for verdict in verify_lineage([*DIAMOND[:3], changed]) if not verdict.ok]
    assert faulty == ["a"]


def test_a_run_that_was_recorded_again_is_found(add: OperationSpec) -> None:
    outer = Recorder().begin(CaptureOptions("full"))
    assert outer is not None
    inner = outer.nested()
    first = inner.succeeded(add, {"x": 1, "y": 2}, local_envelope(3, "shop.add")).provenance
    whole = outer.succeeded(add, {"x": 0, "y": 0}, local_envelope(0, "shop.add")).provenance
    assert first is not None
    assert whole is not None
    forged = seal(
        msgspec.structs.replace(read_record({**first, "integrity": {}}), tool=Tool("shop.sub", "1"))
    ).to_wire()
    assert all(verdict.ok for verdict in verify_lineage([whole, first]))
    assert verify(forged).ok
    assert "differs from the one" in verify_lineage([whole, forged])[-1].faults[0]


def test_a_missing_parent_is_a_fault_of_a_whole_lineage_and_a_note_of_a_part() -> None:
    assert verify_lineage(DIAMOND[:3])[-1].faults == ("the parent a is missing",)
    part = verify_lineage(DIAMOND[:3], whole=False)[-1]
    assert (part.ok, part.notes) == (True, ("the parent a is missing",))


def test_a_circle_is_a_fault_of_the_lineage() -> None:
    assert "cycle" in verify_lineage([run("a", "b"), run("b", "a")])[-1].faults[0]


# --- pictures -----------------------------------------------------------------------------------------------------

HOSTILE = '<script>"]; x & y\n\x00#'


def test_the_svg_has_a_box_for_every_run_and_an_arrow_for_every_link() -> None:
    picture = to_svg(build_graph(DIAMOND))
    root = ET.fromstring(picture)  # noqa: S314  # we wrote it ourselves, two lines above
    name = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{name}g/{name}rect")
    assert len(boxes) == 4
    assert len(root.findall(f"{name}path")) == 4
    assert len({(box.get("x"), box.get("y")) for box in boxes}) == 4


def test_the_mermaid_chart_names_every_run_and_link() -> None:
    chart = to_mermaid(build_graph([run("b", "a"), run("a", "gone")]))
    assert chart.splitlines() == [
        "flowchart TD",
        '    r0["shop.add 1.0.0<br/>a"]',
        '    r1["shop.add 1.0.0<br/>b"]',
        '    r2["gone<br/>not here"]:::missing',
        "    r2 --> r0",
        "    r0 --> r1",
        "    classDef missing stroke-dasharray: 5 4",
    ]


LONG = {
    "a UUID": "9a1c2e9f-5c3f-4a3a-9d5e-1d2b4b6f9c10",
    "a long id": "run-" * 50,
    "wide letters": "注文" * 60,
    "emoji": "🧾" * 60,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())
def test_no_text_is_wider_than_its_box(text: str) -> None:
    root = ET.fromstring(to_svg(build_graph([run(text, name=text[:150])])))  # noqa: S314  # as above
    name = "{http://www.w3.org/2000/svg}"
    width = int(root.findall(f"{name}g/{name}rect")[0].get("width", ""))
    for found in root.findall(f"{name}g/{name}text"):
        size = 10.5 if found.get("class") == "small" else 12.0
        columns = sum(2 if ord(character) > 0x2E80 else 1 for character in found.text or "")
        assert 12 + columns * size * 0.61 <= width - 12
    assert (root.findall(f"{name}g/{name}text")[1].text == text) is (len(text) == 36)


def test_no_name_can_break_out_of_a_picture() -> None:
    graph = build_graph([run(HOSTILE, "gone" + HOSTILE, name=HOSTILE)])
    assert "<script>" not in to_svg(graph)
    ET.fromstring(to_svg(graph))  # noqa: S314  # as above
    assert '"]' not in "".join(
        line.removesuffix('"]').removesuffix('"]:::missing') for line in to_mermaid(graph).splitlines()
    )
