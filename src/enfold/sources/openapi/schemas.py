"""Schema objects of every OpenAPI version into JSON Schema 2020-12, self-contained, one direction at a time.

A definition is converted once and shared by every operation that reaches it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from enfold.schema.keywords import LISTS, SCHEMAS, references
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, DocumentResource, Library
from enfold.sources.reports import Problem

Schema: TypeAlias = dict[str, Any]
Direction: TypeAlias = Literal["input", "output"]

ANYTHING: Final[Schema] = {}

# Variants of a definition: with its children in its place, or open as a part of a composition.
_ANY: Final = "_any"
_PART: Final = "_part"
_DEFINITIONS: Final = "#/$defs/"
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_LEGAL: Final = re.compile(r"[^A-Za-z0-9_.-]")
_INTEGER_FORMATS: Final = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "double-int"}
)
_HIDDEN: Final[dict[str, str]] = {"input": "readOnly", "output": "writeOnly"}


class Schemas:
    """The schemas of one document as seen in one direction: read-only properties are no input, write-only no output.

    A converted schema refers to definitions, which `bundle` adds.
    """

    def __init__(self, library: Library, direction: Direction, problems: list[Problem]) -> None:
        self.library = library
        self.problems = problems
        self.is_old = library.version in ("2.0", "3.0")
        self.is_input = direction == "input"
        self._hidden = _HIDDEN[direction]
        self._names: dict[tuple[int, str], str] = {}
        self._places: dict[str, tuple[DocumentPlace, str]] = {}
        self._families = Families(library)
        self._definitions: dict[str, Any] = {}  # by reference, converted on first use
        self._mentions: dict[str, frozenset[str]] = {}  # the references in each definition
        self._closures: dict[frozenset[str], Schema] = {}

    def convert(self, place: DocumentPlace) -> Any:
        """Return the schema at a place; one that cannot be read counts as `{}`."""
        try:
            return _Conversion(self, place).convert(place.node, place.resource)
        except RecursionError:
            self.problems.append(Problem(place.where, "the schema is nested too deeply"))
            return ANYTHING

    def convert_if_given(self, place: DocumentPlace) -> Any:
        return ANYTHING if place.node is None else self.convert(place)

    def bundle(self, schema: Any) -> Schema:
        """Return the converted schema with every definition it reaches, so that it is self-contained."""
        while isinstance(schema, dict) and schema.keys() == {"$ref"}:  # the root shows its type
            schema = self.definition(schema["$ref"])
        root: Schema = schema if isinstance(schema, dict) else {} if schema else {"not": {}}
        definitions = self._closure(frozenset(references(root)))
        return {**root, "$defs": definitions} if definitions else root

    def definition(self, reference: str) -> Any:
        """Return what a reference in a converted schema leads to."""
        if reference not in self._definitions:
            place, variant = self._places[reference]
            if variant == _PART:
                place = DocumentPlace(_opened(place.node), place.resource, place.pointer)
            self._definitions[reference] = self._family(place) if variant == _ANY else self.convert(place)
        return self._definitions[reference]

    def children(self, place: DocumentPlace) -> list[DocumentPlace]:
        """Return the schemas that a base with a discriminator stands for."""
        return self._families.children(self.library.follow_if_possible(place))

    def is_hidden(self, place: DocumentPlace) -> bool:
        """Whether a property is of the other direction only."""
        node = place.node
        if not isinstance(node, dict):
            return False
        if node.get(self._hidden) is True:
            return True
        if "$ref" not in node:
            return False
        return self.library.follow_if_possible(place).fields.get(self._hidden) is True

    # --- definitions

    def _closure(self, used: frozenset[str]) -> Schema:
        known = self._closures.get(used)
        if known is None:
            reached = sorted(self._reached(used))
            known = {each.removeprefix(_DEFINITIONS): self.definition(each) for each in reached}
            self._closures[used] = known
        return known

    def _reached(self, used: frozenset[str]) -> set[str]:
        reached = set(used)
        waiting = sorted(used)  # of definitions of one name, the first keeps it: the same one in every process
        for reference in waiting:  # grows during iteration
            if reference not in self._mentions:
                self._mentions[reference] = frozenset(references(self.definition(reference)))
            new = self._mentions[reference] - reached
            reached |= new
            waiting += sorted(new)
        return reached

    def _refer(self, target: DocumentPlace, variant: str = "") -> Schema:
        key = (id(target.node), variant)
        known = self._names.get(key)
        if known is None:
            known = f"{_DEFINITIONS}{_definition_name(target)}{variant}"
            if known in self._places:
                known = f"{known}_{hashlib.sha256(f'{target.resource.uri}{target.where}'.encode()).hexdigest()[:8]}"
            self._names[key] = known
            self._places[known] = target, variant
        return {"$ref": known}

    def _family(self, base: DocumentPlace) -> Schema:
        """Return the union of the children of a base and the base itself; any object if there are too many."""
        children = self._families.children(base)
        if len(children) > MAX_CHILDREN:
            return self._refer(base, _PART)
        declared = {"type": "object"} if base.node.get("type") == "object" else {}
        return {**declared, "anyOf": [self._refer(each) for each in (*children, base)]}

    def refer(self, target: DocumentPlace, owner: Any) -> Schema:
        """Return a reference to a definition; `owner` is what composes it in its `allOf`, None elsewhere."""
        is_part = owner is not None and (_composes(owner) or self._families.extends(owner, target))
        if not is_part:
            return self._refer(target, _ANY if self._families.children(target) else "")
        return self._refer(target, _PART if _is_closed(target.node) else "")


def any_of(schemas: Iterable[Any]) -> Any:
    """Return the union of schemas; one that allows anything makes it anything."""
    distinct: list[Any] = []
    for each in schemas:
        if each not in distinct:
            distinct.append(each)
    if not distinct or any(each in ({}, True) for each in distinct):
        return ANYTHING
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


class _Conversion:
    """One schema of a document on its way to JSON Schema."""

    def __init__(self, schemas: Schemas, place: DocumentPlace) -> None:
        self._schemas = schemas
        self._place = place
        self._is_condition = False  # inside `not` or `if`, where a wider schema asks for more

    def _report(self, why: str) -> None:
        self._schemas.problems.append(Problem(self._place.where, why))

    def convert(self, node: Any, base: DocumentResource, owner: Any = None) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            self._report(f"a schema must be an object, not {type(node).__name__}")
            return ANYTHING
        base = self._schemas.library.own_resource(node, base)
        ref = node.get("$ref", node.get("$dynamicRef", node.get("$recursiveRef")))
        if isinstance(ref, str):
            return self._reference(ref, node, base, owner)
        if owner is not None and _is_closed(node) and _composes(owner):
            node = _opened(node)
        return self._keywords(node, base)

    def _reference(self, ref: str, node: Schema, base: DocumentResource, owner: Any) -> Any:
        try:
            target = self._schemas.library.resolve(ref, base)
            self._schemas.library.follow(target)  # a circle of nothing but references means nothing
        except BrokenReferenceError as error:
            self._report(str(error))
            return self._siblings(node, base)
        if not isinstance(target.node, dict):
            return self.convert(target.node, target.resource)
        result = {**self._schemas.refer(target, owner), **self._siblings(node, base)}
        if node.get("nullable") is True:
            _allow_null(result)
        return result

    def _siblings(self, node: Schema, base: DocumentResource) -> Schema:
        """Return the keywords beside a reference: since 3.1 all count, before only descriptions."""
        rest = {key: value for key, value in node.items() if key not in _REFERENCES}
        if self._schemas.is_old:
            rest = {key: value for key, value in rest.items() if key in _DESCRIBING}
        converted: Schema = self._keywords(rest, base) if rest else {}
        return converted

    def _keywords(self, node: Schema, base: DocumentResource) -> Schema:
        result: Schema = {}
        for key, value in node.items():
            if key in _CONDITIONS:
                result[key] = self._condition(value, base)
            elif key in _SCHEMAS:
                result[key] = self.convert(value, base)
            elif key in _SCHEMA_LISTS:
                if isinstance(value, list) and value:
                    result[key] = self._each(value, base, node if key == "allOf" else None)
            elif key in _SCHEMA_MAPS:
                if isinstance(value, dict):
                    result[key] = self._named(value, base, hides=key == "properties")
            elif key == "items":
                self._items(node, value, result, base)
            else:
                self._plain(key, value, result)
        self._finish(node, result)
        # An untouched schema is shared with the document: most of a large one is.
        return node if _is_same(node, result) else result

    def _condition(self, value: Any, base: DocumentResource) -> Any:
        was, self._is_condition = self._is_condition, True
        try:
            return self.convert(value, base)
        finally:
            self._is_condition = was

    def _each(self, values: list[Any], base: DocumentResource, owner: Any = None) -> list[Any]:
        converted = [self.convert(each, base, owner) for each in values]
        return values if all(map(is_, converted, values)) else converted

    def _named(self, values: Schema, base: DocumentResource, *, hides: bool) -> Schema:
        converted = {
            name: self.convert(each, base)
            for name, each in values.items()
            if not (hides and self._schemas.is_hidden(DocumentPlace(each, base)))
        }
        return values if _is_same(values, converted) else converted

    def _items(self, node: Schema, value: Any, result: Schema, base: DocumentResource) -> None:
        if isinstance(value, list):  # the tuple form of older drafts
            if value:
                result["prefixItems"] = self._each(value, base)
            if "additionalItems" in node:
                result["items"] = self.convert(node["additionalItems"], base)
        else:
            result["items"] = self.convert(value, base)

    def _plain(self, key: str, value: Any, result: Schema) -> None:
        if key not in _VALUES:
            return  # extensions, and what only OpenAPI knows (xml, discriminator, nullable, example …)
        if _fits(value, _VALUES[key]):
            result[key] = value
        elif key not in ("required", "exclusiveMinimum", "exclusiveMaximum", "readOnly", "writeOnly", "type"):
            self._report(f"{key} has an invalid value")

    def _finish(self, node: Schema, result: Schema) -> None:
        self._type(node, result)
        if "required" in result:
            self._required(node, result)
        if self._schemas.is_input and not self._is_condition and "oneOf" in result:
            _widen(result)
        if _is_closed(result) and _composes(node):
            del result["additionalProperties"]  # it would refuse what the parts describe
        self._examples(node, result)
        for limit in ("minimum", "maximum"):
            exclusive = f"exclusive{limit.title()}"
            if node.get(exclusive) is True and limit in result:  # before 3.1 it was a boolean beside the limit
                result[exclusive] = result.pop(limit)
        if self._schemas.is_input and not self._is_condition and node.get("format") in _INTEGER_FORMATS:
            _make_whole(result)
        if node.get("format") == "byte":
            result.setdefault("contentEncoding", "base64")
        if node.get("nullable") is True:
            _allow_null(result)

    def _examples(self, node: Schema, result: Schema) -> None:
        """Examples help who writes an input; in an output they are only weight."""
        examples = node.get("examples", [node["example"]] if "example" in node else None)
        if self._schemas.is_input and isinstance(examples, list) and not mentions_reference(examples):
            result["examples"] = examples

    def _type(self, node: Schema, result: Schema) -> None:
        if "type" not in node:
            return
        declared = node["type"]
        if isinstance(declared, str) and declared in _TYPES:
            return
        names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
        known = list(dict.fromkeys("null" if name is None else name for name in names if name in (None, *_TYPES)))
        if "file" in names:
            result.update(type="string", format="binary")
        elif declared is None:  # `type: null` without quotes: the type in versions that have it, otherwise ignored
            result.pop("type", None)
            result |= {"type": "null"} if len(node) == 1 and not self._schemas.is_old else {}
        elif not known or any(name not in (None, *_TYPES) for name in names):
            self._report(f"there is no type {declared!r}")
            result.pop("type", None)
        elif known != names:
            result["type"] = known

    def _required(self, node: Schema, result: Schema) -> None:
        declared, shown = node.get("properties"), result.get("properties", {})
        hidden = declared.keys() - shown.keys() if isinstance(declared, dict) else set()
        kept = [name for name in dict.fromkeys(result["required"]) if name not in hidden]
        if not kept:
            del result["required"]
        elif kept != result["required"]:
            result["required"] = kept


def _composes(node: Schema) -> bool:
    """Whether an object is put together of several parts, each with properties of its own."""
    parts = node.get("allOf")
    return isinstance(parts, list) and (
        len(parts) > 1 or (len(parts) == 1 and isinstance(node.get("properties"), dict))
    )


def _is_closed(node: Any) -> bool:
    return isinstance(node, dict) and node.get("additionalProperties") is False


def _opened(node: Schema) -> Schema:
    """Open a part of a composition for the properties of the others."""
    return {key: value for key, value in node.items() if key not in ("additionalProperties", "unevaluatedProperties")}


def _widen(result: Schema) -> None:
    """Turn `oneOf` into `anyOf` for input: formats and number types often do not distinguish branches."""
    branches = result.pop("oneOf")
    if "anyOf" in result:
        result["allOf"] = [*result.get("allOf", ()), {"anyOf": branches}]
    else:
        result["anyOf"] = branches


def _make_whole(result: Schema) -> None:
    """Make a number with an integer format an integer."""
    declared = result.get("type")
    if declared == "number":
        result["type"] = "integer"
    elif isinstance(declared, list) and "number" in declared:
        result["type"] = list(dict.fromkeys("integer" if each == "number" else each for each in declared))


def _is_same(node: Schema, result: Schema) -> bool:
    return len(node) == len(result) and all(key in node and node[key] is value for key, value in result.items())


def mentions_reference(value: Any) -> bool:
    """Whether example data contains a `$ref`, which clients would try to resolve."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(mentions_reference, value.values()))
    return isinstance(value, list) and any(map(mentions_reference, value))


def _allow_null(result: Schema) -> None:
    declared = result.get("type")
    if declared is None and _COMPOSING.intersection(result):
        whole = {key: value for key, value in result.items() if key not in _DESCRIBING}
        for key in whole:
            del result[key]
        result["anyOf"] = [whole, {"type": "null"}]
        return
    if isinstance(declared, str) and declared != "null":
        result["type"] = [declared, "null"]
    elif isinstance(declared, list) and "null" not in declared:
        result["type"] = [*declared, "null"]
    if "enum" in result and None not in result["enum"]:
        result["enum"] = [*result["enum"], None]


def _definition_name(target: DocumentPlace) -> str:
    """Name a definition by its place: its own name in the components, else the path to it."""
    keys = [key for key in target.pointer if key not in ("components", "schemas", "definitions", "$defs")]
    if not target.resource.is_root:
        keys.insert(0, urlsplit(target.resource.uri).path.rsplit("/", 1)[-1].rsplit(".", 1)[0])
    return _LEGAL.sub("_", "_".join(keys))[:100] or "root"


# --- keywords -----------------------------------------------------------------------------------------------------


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_DESCRIBING: Final = frozenset({"title", "description", "default", "deprecated", "example", "examples"})
_COMPOSING: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_SCHEMAS: Final = SCHEMAS - {"items", "additionalItems"}  # which have two forms
_CONDITIONS: Final = frozenset({"not", "if"})
_SCHEMA_LISTS: Final = LISTS - {"items"}
_SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_Number: TypeAlias = int | float
_Positive: TypeAlias = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)]
_Count: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, multiple_of=1)]
# What the value of each keyword is that takes no schemas; the others are extensions, or known to OpenAPI alone.
_VALUES: Final[dict[str, Any]] = {
    **dict.fromkeys(("type", "const", "default"), Any),  # a type is read with more care later
    **dict.fromkeys(("title", "description", "format", "pattern", "contentEncoding", "contentMediaType"), str),
    **dict.fromkeys(("deprecated", "uniqueItems"), bool),
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _Number),
    **dict.fromkeys(("maxContains", "maxItems", "maxLength", "maxProperties"), _Count),
    **dict.fromkeys(("minContains", "minItems", "minLength", "minProperties"), _Count),
    "enum": Annotated[list[Any], Meta(min_length=1)],
    "multipleOf": _Positive,
    "required": list[str],
    "dependentRequired": dict[str, list[str]],
}


MAX_CHILDREN: Final = 50

_IN_PLACE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if"})


class Families:
    """The children of each base, found when the first is asked for."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._extending: dict[int, list[DocumentPlace]] = {}  # by the identity of what they extend
        self._read: set[int] = set()

    def children(self, base: DocumentPlace) -> list[DocumentPlace]:
        """Return the schemas that a base with a discriminator stands for, without itself; none for other schemas."""
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
        """Look for children where the base is defined, and in the document itself."""
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
        """Return what the discriminator maps to, unless it leads back to the base."""
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
    """Whether a schema has a discriminator without listing the schemas it distinguishes."""
    if not isinstance(node, dict) or node.get("oneOf") or node.get("anyOf"):
        return False
    declared = node.get("discriminator")
    return isinstance(declared, str) or (isinstance(declared, dict) and isinstance(declared.get("propertyName"), str))
