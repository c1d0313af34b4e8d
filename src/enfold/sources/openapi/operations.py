"""The operations of a document: where each stands, what it is called. Nothing below an operation is expanded here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from enfold.operation import legal_name, with_hash
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.report import Problem

METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace", "query"})
STREAM_SUFFIX: Final = "_stream"

_NOT_A_WORD: Final = re.compile(r"[^A-Za-z0-9]+")


class Found(msgspec.Struct, frozen=True):
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
        said = self.place.node.get("operationId")
        return str(said) if said not in (None, "") else None


def find_operations(library: Library, problems: list[Problem]) -> list[Found]:
    """Every operation under `paths`; what cannot be read is added to the problems."""
    found: list[Found] = []
    for path, item in _path_items(library, problems):
        for method, place in _methods(item):
            operation = _read(library, method, path, item, place, problems)
            if operation is not None:
                found.append(operation)
    return found


def _path_items(library: Library, problems: list[Problem]) -> Iterator[tuple[str, DocumentPlace]]:
    paths = _followed(library, library.place().child("paths"), problems)
    if paths is None or paths.node is None:
        return
    if not isinstance(paths.node, dict):
        problems.append(Problem(paths.where, "paths is not an object"))
        return
    for path, item in paths.items():
        if path.startswith("x-") or item.node is None:
            continue
        whole = _whole_item(library, item, problems)
        if whole is None:
            continue
        if not isinstance(whole.node, dict):
            problems.append(Problem(item.where, "a path item is an object"))
            continue
        yield path if path.startswith("/") else f"/{path}", whole


def _whole_item(library: Library, item: DocumentPlace, problems: list[Problem]) -> DocumentPlace | None:
    """A path item; where it is a reference with siblings, these are laid over what it names."""
    target = _followed(library, item, problems)
    if target is None or target is item or not isinstance(target.node, dict):
        return target
    siblings = {key: value for key, value in item.node.items() if key != "$ref"}
    if not siblings:
        return target
    return DocumentPlace({**target.node, **siblings}, target.resource, target.pointer)


def _followed(library: Library, place: DocumentPlace, problems: list[Problem]) -> DocumentPlace | None:
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
) -> Found | None:
    target = _followed(library, place, problems)
    if target is None:
        return None
    if not isinstance(target.node, dict):
        problems.append(Problem(f"{method} {path}", "an operation is an object"))
        return None
    return Found(method, path, item, target)


# --- names --------------------------------------------------------------------------------------------------------


class Wanted(msgspec.Struct, frozen=True):
    """A name to be given: the original, what it is hashed from, and whether the original is the document's own."""

    original: str
    hashed: str
    is_declared: bool


def wanted_name(operation: Found, *, is_stream_twin: bool = False) -> Wanted:
    """What an operation would like to be called: its operationId, else its method and path."""
    declared = operation.original
    name = declared or generated_name(operation)
    if is_stream_twin:
        return Wanted(f"{name}{STREAM_SUFFIX}", f"{operation.title}{STREAM_SUFFIX}", declared is not None)
    return Wanted(name, operation.title, declared is not None)


def generated_name(operation: Found) -> str:
    words = _NOT_A_WORD.sub("_", operation.path.partition("?")[0]).strip("_")
    return f"{operation.method.lower()}_{words}" if words else operation.method.lower()


def give_names(wanted: Iterable[Wanted]) -> list[str]:
    """A legal name for each: in a clash, and only there, each that had to change gets its hash."""
    listed = list(wanted)
    legal = [legal_name(each.original) for each in listed]
    kept = _kept(listed, legal)
    holders: dict[str, int] = {}
    for name in legal:
        holders[name] = holders.get(name, 0) + 1
    return [
        name if holders[name] == 1 or index in kept else with_hash(name, each.hashed)
        for index, (each, name) in enumerate(zip(listed, legal, strict=True))
    ]


def _kept(listed: list[Wanted], legal: list[str]) -> set[int]:
    """Those that keep their name in a clash: declared, legal as it is, and the only one declared so."""
    unchanged: dict[str, list[int]] = {}
    for index, (each, name) in enumerate(zip(listed, legal, strict=True)):
        if each.is_declared and each.original == name:
            unchanged.setdefault(name, []).append(index)
    return {indexes[0] for indexes in unchanged.values() if len(indexes) == 1}


def described(operation: Found) -> str:
    """What the operation does, in the document's words: summary and description, each once."""
    summary, description = (_text(operation.place.node.get(key)) for key in ("summary", "description"))
    if not summary or description.startswith(summary.rstrip(".")):
        return description or _text(operation.item.node.get("summary"))
    return f"{summary}\n\n{description}".strip()


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
