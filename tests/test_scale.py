"""`python -m benchmarks scale`: the fleet that it starts, and the simulation of discovery."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.scale.__main__ import KINDS
from benchmarks.scale.discovery import REFRESH, FleetSize, Simulation, rollout, steady
from benchmarks.scale.fleet import Fleet, MissingProgramError, fleet
from benchmarks.scale.load import OK, Job, Kind
from tests.conftest import not_run


def test_a_fleet_serves_every_kind_of_call_and_leaves_nothing_behind() -> None:
    try:
        with fleet() as made:
            made.add_worker()
            made.add_edge()
            for kind in KINDS:
                assert codes(made, kind) == {OK}
            assert min(made.cpu().edge, made.cpu().broker, made.cpu().worker) > 0
            pids = [each.pid for each in (*made.nodes, *made.workers, *made.edges)]
            folder = made.folder
            assert len(pids) == 5
            made.workers[0].kill()
            assert codes(made, "mutation") == {"UNAVAILABLE"}
    except MissingProgramError:
        not_run("nats-server")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not folder.exists()


def codes(made: Fleet, kind: Kind) -> set[str]:
    return {each.code for each in made.run(Job(kind, made.ports, 100, 0.1, in_flight=2))}


# --- the simulation -----------------------------------------------------------------------------------------------


def test_an_edge_without_changes_asks_every_worker_once_per_refresh() -> None:
    size = FleetSize(peers=100)
    asked_and_answered = 2 * size.workers * size.edges
    assert steady(size).messages == pytest.approx(asked_and_answered / REFRESH, rel=0.1)


def test_a_change_makes_every_edge_ask_one_worker() -> None:
    size = FleetSize(peers=1_000)
    quiet, changed = Simulation(size), Simulation(size)
    quiet.run(REFRESH * 2)
    changed.run(REFRESH * 2, [REFRESH])
    assert changed.traffic.messages - quiet.traffic.messages == 4 * size.edges  # down, up, question and answer


def test_an_edge_receives_no_more_answers_per_second_in_a_larger_fleet() -> None:
    large, larger = FleetSize(peers=10_000), FleetSize(peers=40_000)
    per_edge = [steady(size).messages / size.edges for size in (large, larger)]
    assert per_edge[1] == pytest.approx(per_edge[0], rel=0.1)
    assert rollout(large) == rollout(large)
