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
