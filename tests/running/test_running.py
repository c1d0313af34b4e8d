"""Servers that go on while their configuration changes: a small sample of what `make faults` runs in full."""

from tests.running import changes_under_load, faults_under_load


def test_changes_of_the_configuration_fail_no_call_of_what_stays() -> None:
    figures = changes_under_load.run(changes=5, clients=2)
    assert (figures.failures, figures.changes, figures.broken_files, figures.exit_code) == ([], 5, 1, 0)
    assert figures.calls > 10
    assert figures.list_changes > 0


def test_no_error_is_without_a_code_and_no_process_is_left_whatever_dies() -> None:
    seen = faults_under_load.run(seconds=4, clients=2)
    assert (seen.uncoded, seen.left, seen.exit_code) == ([], [], 0), str(seen)
    assert seen.answers["200"] > 10
    assert seen.answers["MCP 200"] > 2


def test_slow_or_growing_runs_are_reported() -> None:
    soon = changes_under_load.Figures(seconds_until_callable=[0.5, 1.9], exit_code=0)
    late = changes_under_load.Figures(seconds_until_callable=[0.5, 2.1], exit_code=0)
    assert (soon.is_right, late.is_right) == (True, False)
    flat = faults_under_load.Seen(memory=[100.0, 150.0, 140.0, 160.0, 155.0, 160.0], exit_code=0)
    growing = faults_under_load.Seen(memory=[100.0, 110.0, 140.0, 160.0, 190.0, 220.0], exit_code=0)
    assert (flat.is_right, growing.is_right) == (True, False)
