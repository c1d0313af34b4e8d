"""Schemas that extend others: a base with a discriminator stands for all that name it in their `allOf`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, DocumentResource, Library

MAX_CHILDREN: Final = 50

_IN_PLACE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if"})


class Families:
    """The children of each base, found when the first is asked for."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._extending: dict[int, list[DocumentPlace]] = {}  # by the identity of what they extend
        self._read: set[int] = set()

    def children(self, base: DocumentPlace) -> list[DocumentPlace]:
        """The schemas that a base with a discriminator stands for, itself excepted; none for any other schema."""
        if not _is_base(base.node):
            return []
        self._index(base)
        found: dict[int, DocumentPlace] = {}
        waiting = [*self._extending.get(id(base.node), ()), *self._mapped(base)]
        while waiting:
            child = waiting.pop(0)
            if id(child.node) not in found and child.node is not base.node:
                found[id(child.node)] = child
                waiting.extend(self._extending.get(id(child.node), ()))
        return list(found.values())

    def extends(self, node: Any, base: DocumentPlace) -> bool:
        """Whether a named schema extends this base: what it inherits is then the base alone."""
        if not _is_base(base.node):
            return False
        self._index(base)
        return any(each.node is node for each in self._extending.get(id(base.node), ()))

    def _index(self, base: DocumentPlace) -> None:
        """Look for children where the base lies, and in the document itself."""
        for resource in (self._library.root, base.resource):
            if id(resource) not in self._read:
                self._read.add(id(resource))
                self._index_resource(resource)

    def _index_resource(self, resource: DocumentResource) -> None:
        root = DocumentPlace(resource.root, resource)
        folders = (root.child("components", "schemas"), root.child("definitions"), root.child("$defs"))
        for child in (place for folder in folders for _, place in folder.items()):
            for part in child.child("allOf").elements():
                target = self._resolved(part.text("$ref"), part.resource)
                if target is not None:
                    self._extending.setdefault(id(target.node), []).append(child)

    def _mapped(self, base: DocumentPlace) -> Iterator[DocumentPlace]:
        """What the discriminator maps to, as far as it cannot lead back to the base."""
        for ref in base.child("discriminator", "mapping").fields.values():
            if isinstance(ref, str):
                target = self._resolved(ref, base.resource) or self._resolved(
                    f"#/components/schemas/{ref}", base.resource
                )
                if target is not None and isinstance(target.node, dict) and not _IN_PLACE & set(target.node):
                    yield target

    def _resolved(self, ref: str, resource: DocumentResource) -> DocumentPlace | None:
        try:
            return self._library.resolve(ref, resource) if ref else None
        except BrokenReferenceError:
            return None


def _is_base(node: Any) -> bool:
    """Whether a schema has a discriminator, and leaves it to others to say which schemas it tells apart."""
    if not isinstance(node, dict) or node.get("oneOf") or node.get("anyOf"):
        return False
    declared = node.get("discriminator")
    return isinstance(declared, str) or (isinstance(declared, dict) and isinstance(declared.get("propertyName"), str))
