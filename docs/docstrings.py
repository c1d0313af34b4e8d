"""A griffe extension for the Python API on the site: it finds descriptions that are not docstrings, and leaves out noise."""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Describes a field by the comment beside it, and an overriding method by the docstring of its base class.

    Attributes that a constructor sets and special methods are shown only if they are described.
    """

    def on_attribute_instance(self, *, node: ast.AST | Any, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and isinstance(node, ast.AnnAssign) and isinstance(attr.filepath, Path):
            comment = _comments(attr.filepath).get(node.end_lineno or 0, "")
            if comment and not comment.startswith(("noqa", "type:", "fmt:")):
                attr.docstring = griffe.Docstring(comment[:1].upper() + comment[1:], parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for each in _classes(pkg):
            for name, member in list(each.members.items()):
                if member.is_alias or member.has_docstring:
                    continue
                member.docstring = _inherited(each, name)
                if member.docstring is None and _is_noise(member):
                    del each.members[name]


def _classes(parent: griffe.Module | griffe.Class) -> list[griffe.Class]:
    inner = [each for each in parent.members.values() if isinstance(each, (griffe.Module, griffe.Class))]
    own = [parent] if isinstance(parent, griffe.Class) else []
    return own + [found for each in inner for found in _classes(each)]


def _inherited(owner: griffe.Class, name: str) -> griffe.Docstring | None:
    """The docstring of the nearest base class that describes a member."""
    bases = [base.members[name] for base in owner.mro() if name in base.members]
    return next((member.docstring for member in bases if member.docstring is not None), None)


def _is_noise(member: griffe.Object | griffe.Alias) -> bool:
    is_set_by_constructor = member.is_attribute and member.value is not None and "class-attribute" not in member.labels
    return is_set_by_constructor or member.is_special


@cache
def _comments(file: Path) -> dict[int, str]:
    """The comments of a file by line, without those that have a line of their own."""
    text = file.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [each for each in tokens if each.type == tokenize.COMMENT and not each.line.lstrip().startswith("#")]
    return {each.start[0]: each.string.lstrip("# ").partition("  # ")[0] for each in found}
