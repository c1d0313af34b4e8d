"""The grammar of selections: comma-separated names, `a/b` and `a(b,c)` for nested fields, `*` for every name.

A name that contains grammar characters is quoted: `"application/json"(schema)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, count
from typing import Any, Final, NoReturn, TypeAlias, Union

from enfold.errors import CallError, Reason, invalid_argument, nearest
from enfold.schema.compiled import compile_schema
from enfold.schema.keywords import properties_of, with_parts
from enfold.schema.nodes import CONTAINERS, Node, reachable
from enfold.schema.nodes.reference import local_schema
from enfold.schema.nodes.traits import outer_types

# The selected names, each with its own selection; None selects everything.
Fields: TypeAlias = dict[str, Union["Fields", None]]

EVERY: Final = "*"
MAX_CHARACTERS: Final = 8_000
MAX_NAMES: Final = 200
DEEPEST: Final = 32
_NAMES: Final = "names, as in items(id,user/login),total"

_TOKEN: Final = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([^\s,/()"]+)|([,/()]))')


def read_fields(text: str) -> Fields:
    """Parse a selection; raise VALIDATION_ERROR with the position of a syntax error."""
    if len(text) > MAX_CHARACTERS:
        raise wrong_selection(f"a selection may have at most {MAX_CHARACTERS} characters")
    return _SelectionReader(text).read()


def wrong_selection(sentence: str, expected: str = _NAMES, *, reason: Reason = "constraint") -> CallError:
    return invalid_argument("select", reason, expected, f'Argument "select": {sentence}')


class _SelectionReader:
    """Parses one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._names = 0
        self._sign = ""  # the last token, if it is punctuation
        self._name = ""  # the last token, if it is a name
        self._next()

    def read(self) -> Fields:
        fields = self._list(1)
        if self._sign or self._name:
            self._refuse()
        return fields

    def _list(self, depth: int) -> Fields:
        fields: Fields = {}
        self._item(fields, depth)
        while self._sign == ",":
            self._next()
            self._item(fields, depth)
        return fields

    def _item(self, fields: Fields, depth: int) -> None:
        if not self._name:
            self._refuse()
        name, self._names = self._name, self._names + 1
        if depth > DEEPEST or self._names > MAX_NAMES:
            raise wrong_selection(f"a selection may have at most {MAX_NAMES} names, nested up to {DEEPEST} levels")
        self._next()
        inner: Fields | None = None
        if self._sign == "/":
            self._next()
            inner = {}
            self._item(inner, depth + 1)
        elif self._sign == "(":
            self._next()
            inner = self._list(depth + 1)
            if self._sign != ")":
                self._refuse()
            self._next()
        _merge(fields, name, inner)

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._place)
        if found is None and self._text[self._place :].strip():
            self._refuse()
        quoted, name, sign = found.groups() if found is not None else (None, None, None)
        self._name = _unquoted(quoted) if quoted else name or ""
        self._sign = sign or ""
        self._place = found.end() if found is not None else len(self._text)

    def _refuse(self) -> NoReturn:
        before = self._text[: self._place].strip()
        where = f"after {before[-40:]!r}" if before else "at its beginning"
        raise wrong_selection(f"syntax error {where}: expected {_NAMES}")


def _unquoted(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[1:-1])


def _merge(fields: Fields, name: str, inner: Fields | None) -> None:
    """Merge two selections of the same name; everything wins."""
    if name not in fields:
        fields[name] = inner
        return
    known = fields[name]
    if known is None or inner is None:
        fields[name] = None
        return
    for each, below in inner.items():
        _merge(known, each, below)


Schema: TypeAlias = Any  # an object, or true or false

# Keywords that stay valid for a value after a selection: those that do not constrain its parts.
_KEPT: Final = frozenset([
    "$schema", "type", "title", "description", "deprecated", "readOnly", "writeOnly", "$comment", "format",
    "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minItems", "maxItems", "contentEncoding", "contentMediaType",
])  # fmt: skip
_UNIONS: Final = ("anyOf", "oneOf")
_DEEPEST: Final = 200
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")


def narrowed_schema(schema: Schema, fields: Fields) -> Schema:
    """Return the schema of a valid value after a selection."""
    check_fields(schema, fields)
    return _Narrowing(schema).narrowed(fields)


def check_fields(schema: Schema, fields: Fields) -> None:
    """Reject a selection with a name that the schema does not have."""
    _check([compile_schema(schema).root], fields, "")


# --- what names there are -----------------------------------------------------------------------------------------


def _check(nodes: list[Node], fields: Fields, path: str) -> None:
    known = _KnownNames(nodes)
    for name, inner in fields.items():
        place = f"{path}{name}"
        below = known.below(name)
        if name != EVERY and not below and not known.is_open:
            raise _unknown(place, [f"{path}{each}" for each in known.by_name], path)
        if inner is not None and below and not known.is_open:
            _check(below, inner, f"{place}/")


def _unknown(place: str, known: list[str], path: str) -> Exception:
    if not known:
        where = f"{path.rstrip('/')} has" if path else "the result has"
        return wrong_selection(f"{where} no fields: {place[:200]} is unknown", reason="unknown")
    near = nearest(place, known)
    hint = f"did you mean {near}?" if near else f"use {', '.join(sorted(known)[:10])}"
    return wrong_selection(f"{place[:200]} is unknown: {hint}", near or ", ".join(sorted(known)[:10]), reason="unknown")


class _KnownNames:
    """The names that objects may have at a location, or in the lists there."""

    def __init__(self, nodes: list[Node]) -> None:
        parts = reachable(nodes, _beside)
        self.by_name: dict[str, list[Node]] = {}
        for part in parts:
            for name, child in (part.properties or {}).items():
                self.by_name.setdefault(name, []).append(child)
        self._patterns = [pattern for part in parts for pattern in part.patterns]
        self._others = [part.additional for part in parts if part.additional is not None and not part.additional.never]
        self.is_open = any(map(_is_open, parts))  # objects may have any name

    def below(self, name: str) -> list[Node]:
        """Return the nodes for the values of that name; empty for an unknown name."""
        if name == EVERY:
            named = [child for children in self.by_name.values() for child in children]
            return [*named, *(child for _, child in self._patterns), *self._others]
        # A pattern that exceeded its budget may match.
        matching = [child for pattern, child in self._patterns if pattern.search(name) is not False]
        return self.by_name.get(name) or [*matching, *self._others]


def _beside(node: Node) -> Iterator[Node]:
    """Return the nodes that apply to the same value, and to the items of a list."""
    yield from (*node.all_of, *node.any_of, *node.one_of, *node.dependent_schemas.values(), *node.prefix)
    yield from (each for each in (node.then, node.else_, node.items) if each is not None)


def _is_open(node: Node) -> bool:
    """Whether the described objects may have undeclared names."""
    if node.problem:
        return True
    speaks = node.never or node.properties is not None or node.patterns or node.additional is not None
    return not speaks and not any(True for _ in _beside(node)) and bool(outer_types(node) & CONTAINERS)


# --- what is left of a schema -------------------------------------------------------------------------------------


class _Narrowing:
    """Narrows one schema; referenced schemas become definitions, one per selection."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions: dict[str, Schema] = {}
        self._named: dict[tuple[str, int], str] = {}
        self._waiting: list[tuple[str, Schema, Fields | None]] = []

    def narrowed(self, fields: Fields) -> Schema:
        made = self._narrow(self._root, fields)
        while self._waiting:  # iterative: definitions may form long chains
            name, schema, inner = self._waiting.pop()
            self._definitions[name] = self._narrow(schema, inner)
        if isinstance(made, dict) and self._definitions:
            return {**made, "$defs": self._definitions}
        return made

    def _narrow(self, schema: Schema, fields: Fields | None, depth: int = 0) -> Schema:
        if not isinstance(schema, dict):
            return schema
        if depth > _DEEPEST or "$id" in schema:
            return {}
        if fields is None:
            return self._copied(schema, depth)
        made = {key: value for key, value in schema.items() if key in _KEPT}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._refer(made, reference, fields)
        self._compose(made, schema, fields, depth)
        self._select(made, schema, fields, depth)
        return made

    def _refer(self, made: dict[str, Any], reference: str, fields: Fields | None) -> None:
        found = local_schema(self._root, reference)  # a reference outside the document allows anything
        if isinstance(found, dict):
            made["$ref"] = f"#/$defs/{self._definition(reference, found, fields)}"
        elif found is False:
            made["not"] = {}

    def _definition(self, reference: str, schema: Schema, fields: Fields | None) -> str:
        key = reference, id(fields)
        name = self._named.get(key)
        if name is None:
            name = self._named[key] = self._free_name(reference)
            self._definitions[name] = {}
            self._waiting.append((name, schema, fields))
        return name

    def _free_name(self, reference: str) -> str:
        wanted = _ODD.sub("_", reference.rpartition("/")[2].removeprefix("#")) or "root"
        others = (f"{wanted}_{number}" for number in count(2))
        return next(name for name in chain([wanted], others) if name not in self._definitions)

    def _compose(self, made: dict[str, Any], schema: dict[str, Any], fields: Fields, depth: int) -> None:
        """Return the other keywords for the same value, and for the items of a list."""

        def narrow(part: Schema) -> Schema:
            return self._narrow(part, fields, depth + 1)

        for key in ("allOf", "items", "prefixItems", "additionalItems"):
            if key in schema:
                made[key] = with_parts(key, schema[key], narrow)
        # After a selection several variants may accept what only one accepted before.
        unions = [{"anyOf": list(map(narrow, schema[key]))} for key in _UNIONS if isinstance(schema.get(key), list)]
        if len(unions) == 1:
            made |= unions[0]
        elif unions:
            made["allOf"] = [*made.get("allOf", ()), *unions]

    def _select(self, made: dict[str, Any], schema: dict[str, Any], fields: Fields, depth: int) -> None:
        """Return the selected properties of an object, each narrowed."""
        declared = properties_of(schema)
        names = [name for name in declared if name in fields or EVERY in fields]
        inner = {name: fields[name] if name in fields else fields[EVERY] for name in names}
        properties = {name: self._narrow(declared[name], inner[name], depth + 1) for name in names}
        others = schema.get("additionalProperties", True)
        if isinstance(others, dict) and not schema.get("patternProperties"):
            missing = [name for name in fields if name not in declared and name != EVERY]
            properties |= {name: self._narrow(others, fields[name], depth + 1) for name in missing}
            if EVERY in fields:
                made["additionalProperties"] = self._narrow(others, fields[EVERY], depth + 1)
        if properties:
            made["properties"] = properties
        required = schema.get("required")
        if isinstance(required, list):
            kept = [name for name in required if name in fields or EVERY in fields]
            made |= {"required": kept} if kept else {}
        if _is_closed(schema) and EVERY not in fields:
            made["additionalProperties"] = False

    # --- what is taken whole

    def _copied(self, schema: Schema, depth: int) -> Schema:
        """Return a schema with its references adjusted to moved targets."""
        if not isinstance(schema, dict):
            return schema
        if depth > _DEEPEST or "$id" in schema or "$dynamicRef" in schema or "$recursiveRef" in schema:
            return {}
        copied = {
            key: with_parts(key, value, lambda each: self._copied(each, depth + 1))
            for key, value in schema.items()
            if key not in _PLACES
        }
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._refer(copied, reference, None)
        return copied


_PLACES: Final = frozenset({"$ref", "$defs", "definitions", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema"})
_COMPOSING: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "dependentSchemas")


def _is_closed(schema: dict[str, Any]) -> bool:
    """Whether the schema declares all names that an object may have."""
    return schema.get("additionalProperties") is False and not any(key in schema for key in _COMPOSING)
