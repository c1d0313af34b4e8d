"""Conventions of the tests that can be checked exactly."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent


def test_no_module_imports_from_a_test_module() -> None:
    found = [
        f"{path.relative_to(HERE)}:{node.lineno}"
        for path in sorted(HERE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        if (node.module or "").startswith("tests.") and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert found == []
