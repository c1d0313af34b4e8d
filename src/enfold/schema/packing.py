"""Schemas written for listings: of their definitions only what is reached, and what many schemas share is written once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.advertised import remembered

Schema: TypeAlias = dict[str, Any]

# A reference in the text of a schema: to a definition by its name, or elsewhere.
_REFERENCE: Final = re.compile(rb'"\$(?:dynamicRef|recursiveRef|ref)":"(?:#/\$defs/([A-Za-z0-9_.-]+)"|([^"]*)")')
_ANYTHING: Final = msgspec.Raw(b"{}")


class Packing:
    """Packs the schemas of one listing, rewritten as it is told; it keeps the text of every definition it has seen."""

    def __init__(self, rewrite: Callable[[Schema], Schema]) -> None:
        self._rewrite = rewrite
        self._definition = remembered(self._written_definition)

    def packed(self, schema: Schema, most: int | None = None) -> Schema:
        """The schema with the definitions that it reaches, as text; where `most` bytes do not hold them all, the nearest.

        The others then allow anything, which only a schema may say that promises nothing about its details.
        """
        definitions = schema.get("$defs")
        if not isinstance(definitions, dict) or not definitions or "$id" in schema:
            return self._rewrite(schema)
        root = self._rewrite({key: value for key, value in schema.items() if key != "$defs"})
        found = self._reached(_written(root).uses, definitions, most)
        if found is None:
            return self._rewrite(schema)
        return {**root, "$defs": found} if found else root

    def _reached(
        self, uses: tuple[str, ...] | None, definitions: Schema, most: int | None
    ) -> dict[str, msgspec.Raw] | None:
        """The definitions that some names reach, the nearest first; None where that cannot be told."""
        if uses is None:
            return None
        found: dict[str, msgspec.Raw] = {}
        waiting = list(uses)
        size = 0
        for name in waiting:  # it grows while it is read
            if name in found or name not in definitions:
                continue
            definition = self._definition(definitions[name])
            if definition.uses is None:
                return None
            size += len(definition.text)
            if most is not None and size > most:
                found[name] = _ANYTHING
            else:
                found[name] = msgspec.Raw(definition.text)
                waiting += definition.uses
        return found

    def _written_definition(self, definition: Any) -> _Definition:
        return _written(self._rewrite(definition) if isinstance(definition, dict) else definition)


class _Definition(msgspec.Struct, frozen=True):
    """The text of a schema, and the names of the definitions it uses; None where it refers to something else."""

    text: bytes
    uses: tuple[str, ...] | None


def _written(schema: Any) -> _Definition:
    try:
        text = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):  # a value in it that JSON does not have
        return _Definition(b"", None)
    found = _REFERENCE.findall(text)
    if any(other not in (b"", b"#") for _, other in found) or b'"$id":' in text or b'"$anchor":' in text:
        return _Definition(text, None)
    return _Definition(text, tuple(dict.fromkeys(name.decode() for name, _ in found if name)))
