"""The search over a registry: kept current with it, and never telling a caller of what they may not call."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.access import may_list
from enfold.errors import CallError
from enfold.finding.signatures import outline, signature
from enfold.operation import AccessControl, Identity, OperationSpec, OperationType
from enfold.operation.offers import kind_of
from enfold.registry import Registry
from enfold.schema.advertised import Advertising, first_sentence

if TYPE_CHECKING:
    from enfold.finding.index import Index

MAX_FOUND: Final = 50
_MAX_ROWS: Final = 40_000  # of all indexes together: about 80 MB
DEFAULT_LIMIT: Final = 5
_MAX_DESCRIPTION: Final = 200  # characters of a description
_FILTER: Final = re.compile(r"(?:^|(?<=\s))(source|kind):([\w.-]+)")
_SEARCHED: Final = frozenset({"tool", "resource", "prompt"})


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation that was found: enough to call it."""

    id: str
    signature: str
    description: str = ""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation in full: every argument, and what comes back as an outline whose names a `select` may use."""

    id: str
    type: str
    description: str
    arguments: dict[str, Any]
    result: str = ""
    destructive: bool = False


class Finder:
    """Finds the operations of a registry; the index is made with the first search, and only what changes is made anew.

    Callers who see different operations have different indexes: what is hidden from somebody also changes how rare a
    word is, and so what they would find.
    """

    def __init__(self, registry: Registry, is_offered: Callable[[OperationSpec], bool] | None = None) -> None:
        self._registry = registry
        self._is_offered = is_offered or _is_searched
        self._lock = Lock()
        self._indexes: dict[frozenset[AccessControl], Index] = {}  # by the access rules that a caller satisfies
        self._offered: list[OperationSpec] = []
        self._rules: set[AccessControl] = set()
        self._version = -1
        self._useful = Advertising()

    def find(
        self,
        query: str,
        identity: Identity | None,
        limit: int = DEFAULT_LIMIT,
        *,
        namespace: str | None = None,
        type: str | None = None,
    ) -> list[Found]:
        """The operations that fit a query best, of those that the caller may call; without words, the first.

        `namespace` and `type` narrow it, and so do `source:NAME` and `kind:TYPE` in the query.
        """
        most = max(1, min(limit, MAX_FOUND))
        words, filters = _FILTER.sub(" ", query), dict(_FILTER.findall(query))
        source, kind = filters.get("source", namespace), filters.get("kind", type)

        def is_wanted(spec: OperationSpec) -> bool:
            return (kind is None or spec.type == kind) and (source is None or spec.lies_in(source))

        with self._lock:
            self._refresh()
            if words.strip():
                found = self._index_for(identity).search(words, most, is_wanted)
            else:
                seen = (spec for spec in self._offered if may_list(spec.access_control, identity))
                found = list(islice(filter(is_wanted, seen), most))
        return [found_of(spec) for spec in found]

    def describe(self, name: str, identity: Identity | None) -> Description:
        """One operation in full; one that the caller may not call is not there."""
        spec = self._registry.find(name, identity)
        if not self._is_offered(spec):
            raise CallError("OPERATION_NOT_FOUND", f"Operation not found: {name}")
        return Description(
            spec.id,
            spec.type.value,
            spec.description or spec.title or "",
            self._useful.useful(spec.input_schema),
            "" if spec.values == 0 else _result(spec),
            spec.destructive,
        )

    def _refresh(self) -> None:
        version = self._registry.version
        if version != self._version:
            self._offered = [spec for spec in self._registry.list() if self._is_offered(spec)]
            self._rules = {spec.access_control for spec in self._offered}
            for rules, index in self._indexes.items():
                index.update(spec for spec in self._offered if spec.access_control in rules)
            self._version = version

    def _index_for(self, identity: Identity | None) -> Index:
        from enfold.finding.index import Index  # which loads sqlite3

        met = frozenset(rule for rule in self._rules if may_list(rule, identity))
        index = self._indexes.pop(met, None)
        if index is None:
            index = Index()
            index.update(spec for spec in self._offered if spec.access_control in met)
            self._make_room(len(index))
        self._indexes[met] = index  # at the end, as the one used last
        return index

    def _make_room(self, rows: int) -> None:
        """Forget the indexes that nobody has used for longest, until all have room together."""
        kept = sum(map(len, self._indexes.values()))
        while self._indexes and kept + rows > _MAX_ROWS:
            kept -= len(self._indexes.pop(next(iter(self._indexes))))


def found_of(spec: OperationSpec) -> Found:
    text = first_sentence(spec.description or spec.title or "")
    return Found(
        spec.id, signature(spec), text if len(text) <= _MAX_DESCRIPTION else f"{text[:_MAX_DESCRIPTION].rstrip()}…"
    )


def _result(spec: OperationSpec) -> str:
    drawn = outline(spec.output_schema, 3)
    return f"stream of {drawn}" if spec.type is OperationType.SUBSCRIPTION else drawn


def _is_searched(spec: OperationSpec) -> bool:
    return kind_of(spec) in _SEARCHED
