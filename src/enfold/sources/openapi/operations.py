"""The operations of a document: where each stands, what it is called. Nothing below an operation is expanded here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from enfold.operation.names import WantedName
from enfold.sources.openapi import media
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.report import Problem

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
    """Every operation under `paths`; what cannot be read is added to the problems."""
    found: list[FoundOperation] = []
    for path, item in _path_items(library, problems):
        for method, place in _methods(item):
            operation = _read(library, method, path, item, place, problems)
            if operation is not None:
                found.append(operation)
    return found


def _path_items(library: Library, problems: list[Problem]) -> Iterator[tuple[str, DocumentPlace]]:
    paths = _follow(library, library.place().child("paths"), problems)
    if paths is None or paths.node is None:
        return
    if not isinstance(paths.node, dict):
        problems.append(Problem(paths.where, "paths is not an object"))
        return
    for path, item in paths.items():
        if path.startswith("x-") or item.node is None:
            continue
        whole = _merge_siblings(library, item, problems)
        if whole is None:
            continue
        if not isinstance(whole.node, dict):
            problems.append(Problem(item.where, "a path item is an object"))
            continue
        yield path if path.startswith("/") else f"/{path}", whole


def _merge_siblings(library: Library, item: DocumentPlace, problems: list[Problem]) -> DocumentPlace | None:
    """A path item; where it is a reference with siblings, these are laid over what it names."""
    target = _follow(library, item, problems)
    if target is None or target is item or not isinstance(target.node, dict):
        return target
    siblings = {key: value for key, value in item.node.items() if key != "$ref"}
    if not siblings:
        return target
    return DocumentPlace({**target.node, **siblings}, target.resource, target.pointer)


def _follow(library: Library, place: DocumentPlace, problems: list[Problem]) -> DocumentPlace | None:
    try:
        return library.follow(place)
    except BrokenReferenceError as error:
        problems.append(Problem(place.where, str(error)))
        return None


def _methods(item: DocumentPlace) -> Iterator[tuple[str, DocumentPlace]]:
    for key, place in item.items():
        if key.lower() in METHODS and place.node is not None:
            yield key.upper(), place
    for key, place in item.child("additionalOperations").items():
        if place.node is not None and not key.startswith("x-"):
            yield key, place


def _read(
    library: Library, method: str, path: str, item: DocumentPlace, place: DocumentPlace, problems: list[Problem]
) -> FoundOperation | None:
    target = _follow(library, place, problems)
    if target is None:
        return None
    if not isinstance(target.node, dict):
        problems.append(Problem(f"{method} {path}", "an operation is an object"))
        return None
    return FoundOperation(method, path, item, target)


def declared_content(library: Library, place: DocumentPlace) -> dict[str, DocumentPlace]:
    """The media types of a body or a response, the one we like best first."""
    listed = {name: library.follow(each) for name, each in place.child("content").items() if not name.startswith("x-")}
    return {name: listed[name] for name in media.json_first(listed)}


def listed_types(library: Library, found: FoundOperation, key: Literal["consumes", "produces"]) -> list[str]:
    """The media types that an operation of 2.0, or else its document, lists under a key."""
    return found.place.texts(key) or library.place().texts(key)


# --- names --------------------------------------------------------------------------------------------------------


def wanted_name(operation: FoundOperation, *, is_stream_twin: bool = False) -> WantedName:
    """What an operation would like to be called: its operationId, else its method and path."""
    declared = operation.original
    name = declared or generated_name(operation)
    if is_stream_twin:
        return WantedName(f"{name}{STREAM_SUFFIX}", f"{operation.title}{STREAM_SUFFIX}", declared is not None)
    return WantedName(name, operation.title, declared is not None)


def generated_name(operation: FoundOperation) -> str:
    words = _NOT_A_WORD.sub("_", operation.path.partition("?")[0]).strip("_")
    return f"{operation.method.lower()}_{words}" if words else operation.method.lower()


def described(operation: FoundOperation) -> str:
    """What the operation does, in the document's words: summary and description, each once."""
    summary, description = (operation.place.text(key).strip() for key in ("summary", "description"))
    if not summary or description.startswith(summary.rstrip(".")):
        return description or operation.item.text("summary").strip()
    return f"{summary}\n\n{description}".strip()
