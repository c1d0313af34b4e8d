"""Full-text search over a registry. The index follows the registry and hides operations a caller may not call."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from math import log
from threading import Lock
from typing import Annotated, Any, Final, Literal
from weakref import finalize

import msgspec
from msgspec import Meta

from enfold.errors import CallError
from enfold.operations import AccessControl, Context, Identity, OperationSpec, OperationType
from enfold.operations.access import may_list
from enfold.operations.mcp_kind import kind_of
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.schema.advertised import Advertising, first_sentence
from enfold.schema.keywords import properties_of
from enfold.search.signatures import outline, signature

MAX_FOUND: Final = 50
MAX_ROWS: Final = 40_000  # in all indexes together: about 80 MB
DEFAULT_LIMIT: Final = 5
_MAX_DESCRIPTION: Final = 200  # characters of a description
_FILTER: Final = re.compile(r"(?:^|(?<=\s))(source|kind):([\w.-]+)")
_SEARCHED: Final = frozenset({"tool", "resource", "prompt"})


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """A search result with everything needed to call the operation."""

    id: str
    signature: str
    description: str = ""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation in full: every argument, and an outline of the result whose names a `select` may use."""

    id: str
    type: str
    description: str
    arguments: dict[str, Any]
    result: str = ""
    destructive: bool = False


class Finder:
    """Finds operations of a registry; the index is built on the first search and updated incrementally.

    Callers who see different operations have different indexes, because hidden operations would affect word frequencies
    and thereby the ranking.
    """

    def __init__(self, registry: Registry, is_offered: Callable[[OperationSpec], bool] | None = None) -> None:
        self._registry = registry
        self._is_offered = is_offered or _is_searched
        self._lock = Lock()
        self._indexes: dict[frozenset[AccessControl], Index] = {}  # by the access rules a caller satisfies
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
        """Return the best matches among the operations the caller may call; without words, the first ones.

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
        """Return one operation in full; one that the caller may not call is not found."""
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

        met = frozenset(rule for rule in self._rules if may_list(rule, identity))
        index = self._indexes.pop(met, None)
        if index is None:
            index = Index()
            index.update(spec for spec in self._offered if spec.access_control in met)
            self._make_room(len(index))
        self._indexes[met] = index  # last in order, as the most recently used
        return index

    def _make_room(self, rows: int) -> None:
        """Drop the least recently used indexes until the rest fit."""
        kept = sum(map(len, self._indexes.values()))
        while self._indexes and kept + rows > MAX_ROWS:
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


# The fields with the weight of a word in each.
_FIELDS: Final = {"name": 3.0, "namespace": 1.0, "description": 1.0, "arguments": 0.3, "output": 0.3}
_NAME_COVERED: Final = 0.5  # bonus for an operation whose whole name is in the query
_CANDIDATES: Final = 50  # the best by BM25, which are ranked again
_MAX_FIELD_WORDS: Final = 150  # per field: the rest of a long description is usually about other topics
_MAX_QUERY: Final = 2_000  # characters of a query
_MAX_QUERY_WORDS: Final = 16  # words of it
_COMMON: Final = 0.1  # a word in a larger share of operations is ignored, unless few enough match to be ranked anyway
_FEWEST: Final = 2  # words searched for in any case
_DEEPEST: Final = 3  # levels of an output's fields

_NAMES: Final = ", ".join(_FIELDS)
_WEIGHTS: Final = ", ".join(str(weight) for weight in _FIELDS.values())
# Only constant names and numbers are interpolated.
_CREATE: Final = f"CREATE VIRTUAL TABLE operations USING fts5({_NAMES}, content='', tokenize='unicode61')"
_INSERT: Final = f"INSERT INTO operations (rowid, {_NAMES}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_DELETE: Final = f"INSERT INTO operations (operations, rowid, {_NAMES}) VALUES ('delete', ?, ?, ?, ?, ?, ?)"  # noqa: S608
_SEARCH: Final = (
    f"SELECT rowid, -bm25(operations, {_WEIGHTS}) AS score FROM operations"  # noqa: S608
    " WHERE operations MATCH ? ORDER BY score DESC, rowid"
)


class _Row(msgspec.Struct, frozen=True):
    """An indexed operation: the text of each field, needed to remove it again."""

    spec: OperationSpec
    number: int
    texts: tuple[str, ...]


class Index:
    """The searchable operations; `update` costs time in proportion to the changes."""

    def __init__(self) -> None:
        # The owner of the index ensures that one thread at a time uses it.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        finalize(self, self._database.close)  # a registry is never closed
        self._database.execute(_CREATE)
        self._rows: dict[str, _Row] = {}
        self._by_number: dict[int, _Row] = {}
        self._counts: Counter[str] = Counter()  # operations with the word in their name, namespace or description
        self._known: Counter[str] = Counter()  # operations with the word anywhere
        self._last = 0

    def __len__(self) -> int:
        return len(self._rows)

    def update(self, specs: Iterable[OperationSpec]) -> None:
        """Add new and changed operations and remove deleted ones."""
        wanted = {spec.id: spec for spec in specs}
        for row in [row for own, row in self._rows.items() if wanted.get(own) is not row.spec]:
            self._remove(row)
        for own, spec in wanted.items():
            if own not in self._rows:
                self._add(spec)

    def search(self, query: str, limit: int, is_wanted: Callable[[OperationSpec], bool]) -> list[OperationSpec]:
        """Return the best matches among the wanted operations."""
        asked = frozenset(search_words(query[:_MAX_QUERY]))
        words = self._rarest(asked)
        if not words:
            return []
        ranked = self._candidates(words, max(limit, _CANDIDATES), is_wanted)
        common = asked.difference(words)
        best = sorted(ranked, key=lambda found: self._score(found[0], found[1], asked, common), reverse=True)
        return [row.spec for row, _ in best[:limit]]

    def _rarest(self, words: Iterable[str]) -> list[str]:
        """Return the rarest words; common words only where there are no others.

        An unknown word is used only if there is no other: accents may differ.
        """
        known = [word for word in words if word in self._known]
        rarest = sorted(known or words, key=lambda word: (self._counts[word], word))[:_MAX_QUERY_WORDS]
        common = max(len(self._rows) * _COMMON, _CANDIDATES)
        telling = [word for word in rarest if self._counts[word] <= common]
        return telling if len(telling) >= _FEWEST else rarest[: max(_FEWEST, len(telling))]

    def _candidates(
        self, words: list[str], most: int, is_wanted: Callable[[OperationSpec], bool]
    ) -> list[tuple[_Row, float]]:
        match = " OR ".join(f'"{word}"' for word in words)
        found = ((self._by_number[number], score) for number, score in self._database.execute(_SEARCH, (match,)))
        return list(islice((each for each in found if is_wanted(each[0].spec)), most))

    def _score(self, row: _Row, score: float, asked: frozenset[str], common: frozenset[str]) -> float:
        """Add to the score what the query omitted: common words, and how much of the name is covered."""
        if common:
            covered = common.intersection(f"{row.texts[0]} {row.texts[2]}".split())
            score += sum(map(self._rarity, covered))
        name = set(row.texts[0].split())
        whole = sum(map(self._rarity, name))
        return score * (1 + _NAME_COVERED * sum(map(self._rarity, name & asked)) / whole) if whole else score

    def _rarity(self, word: str) -> float:
        count = self._counts[word]
        return log(1 + (len(self._rows) - count + 0.5) / (count + 0.5))

    def _add(self, spec: OperationSpec) -> None:
        self._last += 1
        row = _Row(spec, self._last, tuple(" ".join(search_words(text)[:_MAX_FIELD_WORDS]) for text in _texts(spec)))
        self._database.execute(_INSERT, (row.number, *row.texts))
        self._rows[spec.id] = self._by_number[row.number] = row
        self._count(row, 1)

    def _remove(self, row: _Row) -> None:
        self._database.execute(_DELETE, (row.number, *row.texts))
        del self._rows[row.spec.id], self._by_number[row.number]
        self._count(row, -1)

    def _count(self, row: _Row, by: int) -> None:
        for counts, texts in ((self._counts, row.texts[:3]), (self._known, row.texts)):
            for word in set(" ".join(texts).split()):
                counts[word] += by
                if not counts[word]:
                    del counts[word]


# --- the text of an operation -------------------------------------------------------------------------------------


def _texts(spec: OperationSpec) -> tuple[str, str, str, str, str]:
    original = spec.meta.get("original_name")
    name = spec.name if not isinstance(original, str) else f"{spec.name} {original}"
    about = " ".join(filter(None, (spec.title, spec.description, *spec.tags)))
    return (
        name,
        spec.namespace,
        about,
        " ".join(_argument_texts(spec.input_schema)),
        " ".join(_output_names(spec.output_schema)),
    )


def _argument_texts(schema: Any) -> Iterator[str]:
    """Return the names and descriptions of arguments."""
    for name, each in properties_of(schema).items():
        yield name
        description = each.get("description") if isinstance(each, dict) else None
        if isinstance(description, str):
            yield description


def _output_names(schema: Any) -> Iterator[str]:
    """Return the names of an output's fields, outermost first; each definition is visited once."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    level = [schema]
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        parts = list(_resolved(level, definitions, seen))
        yield from (name for part in parts for name in properties_of(part))
        level = [inner for part in parts for inner in properties_of(part).values()]


def _resolved(schemas: Iterable[Any], definitions: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    waiting = list(schemas)
    for schema in waiting:  # grows during iteration
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and isinstance(definitions, dict):
            waiting.append(definitions.get(reference.removeprefix("#/$defs/")))
        waiting.append(schema.get("items"))
        for key in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(key)
            waiting += parts if isinstance(parts, list) else ()


# --- the words of texts and names -------------------------------------------------------------------------------------

# Scripts without spaces between words: each character counts as a word.
_SIGNS: Final = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
# An upper-case word, a word that may begin with a capital, a number, or a character of those scripts.
_WORD: Final = re.compile(rf"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z{_SIGNS}]+|[A-Z]+|\d+|[{_SIGNS}]")

# Stop words.
_STOP_WORDS: Final = frozenset(
    """
    a about all an and any are as at based be by can could do does e each etc for from g given how i if in into is
    it its me more my of on or our please provided related relevant should so some specific such that the their
    them then there these this those to up us use used using via was we what when where which who will with would
    you your
    """.split()  # noqa: SIM905  # words, as they are read
)

# Suffix, replacement, and the minimum number of letters before it. The first match applies.
_SUFFIXES: Final = (
    ("ations", "at", 4),
    ("ation", "at", 4),
    ("izing", "iz", 3),
    ("ized", "iz", 3),
    ("ments", "", 4),
    ("ment", "", 4),
    ("edly", "", 3),
    ("sses", "ss", 2),
    ("ches", "ch", 2),
    ("shes", "sh", 2),
    ("ing", "", 3),
    ("ies", "y", 2),
    ("xes", "x", 2),
    ("ers", "", 4),
    ("ors", "or", 3),
    ("ed", "", 3),
    ("er", "", 4),
    ("ly", "", 4),
    ("s", "", 3),
)


def split_words(text: str) -> Iterator[str]:
    """Return the words of a text or name in lower case: `getHTTPServer_v2` has get, http, server, v and 2."""
    return (found.lower() for found in _WORD.findall(text))


def search_words(text: str) -> list[str]:
    """Return the stemmed words of a text without stop words."""
    return [_stem(word) if len(word) <= _MAX_STEMMED else word for word in split_words(text) if word not in _STOP_WORDS]


_MAX_STEMMED: Final = 40  # letters; only short words are cached


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    if len(word) < 4 or not word.isascii():
        return word
    word = _without_suffix(word)
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":  # stopped, stop
        word = word[:-1]
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    return f"{word[:-1]}i" if len(word) > 3 and word[-1] == "y" else word


def _without_suffix(word: str) -> str:
    for suffix, replacement, shortest in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= shortest and not (suffix == "s" and word[-2] in "su"):
            return word[: -len(suffix)] + replacement
    return word


# --- for surfaces -------------------------------------------------------------------------------------------------


def search_registry(registry: Registry) -> Registry:
    """Return a registry with one operation, `operations`, which searches another registry."""
    finder = Finder(registry)
    own = OperationRegistry()

    @own.query
    def operations(
        context: Context,
        q: str = "",
        limit: Annotated[int, Meta(ge=0)] = 10,
        source: str | None = None,
        kind: Literal["query", "mutation", "subscription"] | None = None,
    ) -> list[Found]:
        """Find operations by what they do, in one source or of one kind if need be."""
        return finder.find(q, context.identity, limit, namespace=source, type=kind)

    return own.guarded()
