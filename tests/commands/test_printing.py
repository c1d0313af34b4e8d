"""What people see at a terminal: columns that fit, colours unless they are unwanted."""

import io

import pytest

from enfold import OperationSpec
from enfold.commands.shared.output import painter, table
from enfold.operations import OperationType


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_operations_are_grouped_by_namespace_and_fit_the_width() -> None:
    specs = [
        OperationSpec(namespace="shop", name="add", description="Add two numbers.\n\nMore."),
        OperationSpec(namespace="shop", name="order", type=OperationType.MUTATION, description="Order something. " * 9),
        OperationSpec(name="bare", description="\x1b[2Jgone"),
    ]
    lines = table(specs, 50, lambda text, _: text).splitlines()
    assert lines[0] == "shop  2"
    assert lines[1] == "  add    query         Add two numbers."
    assert lines[2].startswith("  order  mutation      Order something.")
    assert lines[2].endswith("…")
    assert lines[3:] == ["without a namespace  1", "  bare   query         \\x1b[2Jgone"]
    assert max(map(len, lines)) <= 50


def test_colours_are_for_terminals_whose_user_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert painter(io.StringIO())("x", "red") == "x"
    assert painter(Terminal())("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert painter(Terminal())("x", "red") == "x"
