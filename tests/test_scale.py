"""The fleet of `python -m benchmarks scale`: it serves every kind of call, its CPU is counted by part, and nothing of it stays behind."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale.__main__ import KINDS
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
