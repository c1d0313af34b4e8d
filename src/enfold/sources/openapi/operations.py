"""The operations of a document: where they are, and their names. Schemas are not expanded here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal
from unicodedata import combining, normalize

import msgspec

from enfold.operations.spec import WantedName
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.openapi.media_types import json_first
from enfold.sources.reports import Problem

METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace", "query"})
STREAM_SUFFIX: Final = "_stream"

_NOT_A_WORD: Final = re.compile(r"[^A-Za-z0-9]+")


class FoundOperation(msgspec.Struct, frozen=True):
    """One operation as the document has it; (method, path) is its identity."""

    method: str
    path: str
    item: DocumentPlace
    place: DocumentPlace

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def original(self) -> str | None:
        """The operationId, where there is one."""
        declared = self.place.node.get("operationId")
        return str(declared) if declared not in (None, "") else None


def find_operations(library: Library, problems: list[Problem]) -> list[FoundOperation]:
    """Find every operation under `paths`; what cannot be read is added to the problems."""
    paths = library.place().child("paths")
    if paths.node is None:
        return []
    found: list[FoundOperation] = []
    whole = _object(library, paths, "paths", problems)
    for path, reference in whole.items() if whole is not None else ():
        if path.startswith("x-") or reference.node is None:
            continue
        item = _object(library, reference, "a path item", problems)
        if item is not None:
            item = _with_siblings(item, reference)
            for method, place in _methods(item):
                operation = _object(library, place, "an operation", problems)
                if operation is not None:
                    found.append(FoundOperation(method, f"/{path.removeprefix('/')}", item, operation))
    return found


def _object(library: Library, place: DocumentPlace, what: str, problems: list[Problem]) -> DocumentPlace | None:
    """Return the object at a place, references followed; None, and a problem, if there is none."""
    try:
        target = library.follow(place)
    except BrokenReferenceError as error:
        problems.append(Problem(place.where, str(error)))
        return None
    if isinstance(target.node, dict):
        return target
    problems.append(Problem(place.where, f"{what} is not an object"))
    return None


def _with_siblings(item: DocumentPlace, reference: DocumentPlace) -> DocumentPlace:
    """Return a path item with the fields beside its reference, which take precedence."""
    siblings = {key: value for key, value in reference.node.items() if key != "$ref"}
    if item is reference or not siblings:
        return item
    return DocumentPlace({**item.node, **siblings}, item.resource, item.pointer)


def _methods(item: DocumentPlace) -> Iterator[tuple[str, DocumentPlace]]:
    for key, place in item.items():
        if key.lower() in METHODS and place.node is not None:
            yield key.upper(), place
    for key, place in item.child("additionalOperations").items():
        if place.node is not None and not key.startswith("x-"):
            yield key, place


def declared_content(library: Library, place: DocumentPlace) -> dict[str, DocumentPlace]:
    """Return the media types of a body or a response, JSON first."""
    listed = {name: library.follow(each) for name, each in place.child("content").items() if not name.startswith("x-")}
    return {name: listed[name] for name in json_first(listed)}


def listed_types(library: Library, found: FoundOperation, key: Literal["consumes", "produces"]) -> list[str]:
    """Return the media types that an operation of 2.0, or its document, lists under a key."""
    return found.place.texts(key) or library.place().texts(key)


# --- names --------------------------------------------------------------------------------------------------------


def wanted_name(operation: FoundOperation, *, is_stream_twin: bool = False) -> WantedName:
    """Return the preferred name of an operation: its operationId in ASCII, else its method and path."""
    declared = None if operation.original is None else _in_ascii(operation.original)
    name = declared or generated_name(operation)
    if is_stream_twin:
        return WantedName(f"{name}{STREAM_SUFFIX}", f"{operation.title}{STREAM_SUFFIX}", declared is not None)
    return WantedName(name, operation.title, declared is not None)


def _in_ascii(name: str) -> str | None:
    """Return a name without accents and wide forms; None if letters of another script or none would remain."""
    plain = name if name.isascii() else "".join(each for each in normalize("NFKD", name) if not combining(each))
    letters = [each for each in plain if each.isalnum()]
    return plain if letters and all(each.isascii() for each in letters) else None


def generated_name(operation: FoundOperation) -> str:
    words = _NOT_A_WORD.sub("_", operation.path.partition("?")[0]).strip("_")
    return f"{operation.method.lower()}_{words}" if words else operation.method.lower()


def described(operation: FoundOperation) -> str:
    """Return the operation's description: summary and description, each once."""
    summary, description = (operation.place.text(key).strip() for key in ("summary", "description"))
    if not summary or description.startswith(summary.rstrip(".")):
        return description or operation.item.text("summary").strip()
    return f"{summary}\n\n{description}".strip()
