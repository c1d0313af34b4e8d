"""Servers that go on while their configuration changes: a small sample of what `make faults` runs in full."""

from tests.running.changes_under_load import run


def test_changes_of_the_configuration_fail_no_call_of_what_stays() -> None:
    figures = run(changes=5, clients=2)
    assert (figures.failures, figures.changes, figures.broken_files, figures.exit_code) == ([], 5, 1, 0)
    assert figures.calls > 10
    assert figures.list_changes > 0
