"""From plain JSON Schema, as TypeBox and everybody else writes it, to the kinds of TypeBox. It looks at no value."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from enfold.schema.cast.failure import too_large
from enfold.schema.cast.javascript import JavaScriptPattern
from enfold.schema.cast.kinds import Kind, KindName, accepts_anything
from enfold.schema.nodes import reference
from enfold.schema.nodes.node import MISSING, MOST_NODES, number

_NULL: Final = frozenset({"null"})
_BOOLEAN: Final = frozenset({"boolean"})
_STRING: Final = frozenset({"string"})
_INTEGER: Final = frozenset({"integer"})
_NUMBER: Final = frozenset({"number", "integer"})
_ARRAY: Final = frozenset({"array"})
_OBJECT: Final = frozenset({"object"})
# Keywords that give a schema beside `allOf`, `anyOf` or `oneOf` a shape of its own.
_SHAPES: Final = ("enum", "const", "properties", "patternProperties", "items", "prefixItems")


def read_kinds(schema: Any) -> list[Kind]:
    """The kinds of a schema, the root first. What no kind stands for is Unknown: it accepts everything and changes nothing."""
    return _KindReader(schema).read()


class _Scope(msgspec.Struct, frozen=True):
    """What a plain name means here: `$id`s of the schemas around, and of the module a `$ref` imports from."""

    ancestors: dict[str, Any]
    imported: dict[str, Any]


class _KindReader:
    """Reads one schema once; targets of references wait in a queue, so that a long chain of them is not deep."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._places = reference.SchemaDocument(schema)
        self._base = reference.root_base(schema)
        self._kinds: list[Kind] = []
        self._targets: dict[int, Kind] = {}  # by the identity of their schemas
        self._references: list[tuple[Kind, Any]] = []
        self._waiting: deque[tuple[Any, _Scope]] = deque()

    def read(self) -> list[Kind]:
        root = self._read(self._schema, _Scope({}, {}))
        while self._waiting:
            schema, scope = self._waiting.popleft()
            self._targets[id(schema)] = self._read(schema, scope)
        for node, schema in self._references:
            node.target = self._targets[id(schema)]
        _settle([node for node, _ in self._references])
        return [root, *(node for node in self._kinds if node is not root)]

    def _new(self, kind: KindName, default: Any = MISSING, **fields: Any) -> Kind:
        if len(self._kinds) >= MOST_NODES:
            raise too_large("The schema")
        node = Kind(index=len(self._kinds), kind=kind, default=default, **fields)
        self._kinds.append(node)
        return node

    def _read(self, schema: Any, scope: _Scope) -> Kind:
        if schema is False:
            return self._new("Never", never=True)
        if not isinstance(schema, dict):
            return self._new("Unknown")
        scope = _enter(schema, scope)
        if schema.get("nullable") is True:
            return self._nullable(schema, scope)
        return self._not_nullable(schema, scope)

    def _nullable(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        variants = (self._not_nullable(schema, scope), self._new("Null", types=_NULL))
        return self._new("Union", _default(schema), any_of=variants)

    def _not_nullable(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema, scope)
        if any(isinstance(schema.get(name), list) for name in ("allOf", "anyOf", "oneOf")):
            return self._combination(schema, scope)
        return self._plain(schema, scope)

    def _combination(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        match self._parts(schema, scope):
            case []:
                return self._plain(schema, scope)
            case [part]:
                return _with_default(part, _default(schema))
            case parts:
                unevaluated = schema.get("unevaluatedProperties")
                return self._new(
                    "Intersect",
                    _default(schema),
                    all_of=tuple(parts),
                    unevaluated_properties=self._other(unevaluated, scope),
                    is_closed=unevaluated is False,
                )

    def _parts(self, schema: dict[str, Any], scope: _Scope) -> list[Kind]:
        """What a schema with `allOf`, `anyOf` or `oneOf` has to be at once: its own shape, the members, a choice."""
        own = [self._plain({**schema, "default": MISSING}, scope)] if _has_own_shape(schema) else []
        members = [self._read(member, scope) for member in _list(schema, "allOf")]
        choices = [
            self._choice(schema[name], scope) for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)
        ]
        if own or members:
            # A choice of what is required, say, is nothing that TypeBox has a kind for.
            choices = [choice for choice in choices if not accepts_anything(choice)]
        return own + members + choices

    def _choice(self, schemas: list[Any], scope: _Scope) -> Kind:
        return self._one_of(tuple(self._read(schema, scope) for schema in schemas), MISSING)

    def _one_of(self, variants: tuple[Kind, ...], default: Any) -> Kind:
        if not variants:
            return self._new("Never", default, never=True)
        if len(variants) == 1:
            return _with_default(variants[0], default)
        if all(variant.kind == "Literal" and variant.default is MISSING for variant in variants):
            return self._new("Enum", default, enum=[value for variant in variants for value in variant.enum or ()])
        return self._new("Union", default, any_of=variants)

    def _plain(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        """A schema that combines no others: an enumeration, a constant, one type or several, a negation, or nothing."""
        if isinstance(schema.get("enum"), list):
            return self._enum(schema)
        if "const" in schema:
            return self._new("Literal", _default(schema), enum=[schema["const"]])
        match schema.get("type"):
            case list() as names:
                return self._one_of(tuple(self._typed(name, schema, scope) for name in names), _default(schema))
            case str() as name:
                return self._typed(name, schema, scope)
            case _:
                return self._untyped(schema, scope)

    def _enum(self, schema: dict[str, Any]) -> Kind:
        values = schema["enum"]
        if not values:
            return self._new("Never", _default(schema), never=True)
        return self._new("Literal" if len(values) == 1 else "Enum", _default(schema), enum=list(values))

    def _typed(self, name: Any, schema: dict[str, Any], scope: _Scope) -> Kind:
        match name:
            case "object":
                return self._object(schema, scope)
            case "array":
                return self._array(schema, scope)
            case "string":
                return self._string(schema)
            case "number" | "integer":
                return self._numeric(schema, integer=name == "integer")
            case "boolean":
                return self._new("Boolean", _default(schema), types=_BOOLEAN)
            case "null":
                return self._new("Null", _default(schema), types=_NULL)
            case _:
                return self._new("Unknown", _default(schema))

    def _untyped(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        if isinstance(schema.get("properties"), dict) or isinstance(schema.get("patternProperties"), dict):
            return self._object(schema, scope)
        if "items" in schema or "prefixItems" in schema:
            return self._array(schema, scope)
        if "not" in schema:
            return self._negation(schema, scope)
        return self._new("Unknown", _default(schema))

    def _negation(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        # TypeBox writes Never as {"not": {}}.
        if schema["not"] in ({}, True):
            return self._new("Never", _default(schema), never=True)
        return self._new("Not", _default(schema), not_=self._read(schema["not"], scope))

    def _string(self, schema: dict[str, Any]) -> Kind:
        pattern = schema.get("pattern")
        return self._new(
            "String",
            _default(schema),
            types=_STRING,
            min_length=number(schema.get("minLength")),
            max_length=number(schema.get("maxLength")),
            pattern=JavaScriptPattern(pattern) if isinstance(pattern, str) else None,
        )

    def _numeric(self, schema: dict[str, Any], *, integer: bool) -> Kind:
        minimum, maximum = number(schema.get("minimum")), number(schema.get("maximum"))
        # Draft 4 and OpenAPI 3.0 write `exclusiveMinimum: true` beside `minimum`.
        above = minimum if schema.get("exclusiveMinimum") is True else number(schema.get("exclusiveMinimum"))
        below = maximum if schema.get("exclusiveMaximum") is True else number(schema.get("exclusiveMaximum"))
        return self._new(
            "Number",
            _default(schema),
            types=_INTEGER if integer else _NUMBER,
            minimum=minimum,
            maximum=maximum,
            exclusive_minimum=above,
            exclusive_maximum=below,
            multiple_of=number(schema.get("multipleOf")),
        )

    def _object(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        properties = schema.get("properties")
        if isinstance(properties, dict):
            return self._closed_or_open(schema, properties, scope)
        if isinstance(schema.get("patternProperties"), dict) and schema["patternProperties"]:
            pattern, values = next(iter(schema["patternProperties"].items()))
            patterns = ((JavaScriptPattern(pattern), self._read(values, scope)),)
            return self._record(schema, patterns, self._other(schema.get("additionalProperties"), scope))
        if schema.get("additionalProperties") is False:
            return self._closed_or_open(schema, {}, scope)
        return self._record(schema, (), self._read(schema.get("additionalProperties", True), scope))

    def _closed_or_open(self, schema: dict[str, Any], properties: dict[str, Any], scope: _Scope) -> Kind:
        required = _list(schema, "required")
        return self._new(
            "Object",
            _default(schema),
            types=_OBJECT,
            properties={name: self._read(part, scope) for name, part in properties.items()},
            needed=frozenset(name for name in required if isinstance(name, str)),
            required_count=len(required),
            additional=self._other(schema.get("additionalProperties"), scope),
            is_closed=schema.get("additionalProperties") is False,
            min_properties=number(schema.get("minProperties")),
            max_properties=number(schema.get("maxProperties")),
        )

    def _record(self, schema: dict[str, Any], patterns: tuple[Any, ...], additional: Kind | None) -> Kind:
        return self._new(
            "Record",
            _default(schema),
            types=_OBJECT,
            patterns=patterns,
            additional=additional,
            min_properties=number(schema.get("minProperties")),
            max_properties=number(schema.get("maxProperties")),
        )

    def _other(self, schema: Any, scope: _Scope) -> Kind | None:
        """What other properties have to be; None where they may be anything."""
        return self._read(schema, scope) if isinstance(schema, dict) or schema is False else None

    def _array(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        for places in (schema.get("prefixItems"), schema.get("items")):
            if isinstance(places, list) and places:
                prefix = tuple(self._read(place, scope) for place in places)
                return self._new("Tuple", _default(schema), types=_ARRAY, prefix=prefix)
        if "items" not in schema and schema.get("maxItems") == 0:  # This is how TypeBox writes an empty tuple.
            return self._new("Tuple", _default(schema), types=_ARRAY, max_items=0)
        return self._new(
            "Array",
            _default(schema),
            types=_ARRAY,
            items=self._read(schema.get("items", True), scope),
            min_items=number(schema.get("minItems")),
            max_items=number(schema.get("maxItems")),
            unique=schema.get("uniqueItems") is True,
            contains=self._read(schema["contains"], scope) if "contains" in schema else None,
            min_contains=number(schema.get("minContains")),
            max_contains=number(schema.get("maxContains")),
        )

    def _reference(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        name = schema["$ref"]
        if _is_import(schema):
            return self._pointing(self._new("Import"), schema["$defs"][name], scope)
        to_ancestor = name in scope.ancestors and name not in scope.imported
        reference = self._new("Ref", _default(schema), name=name, to_ancestor=to_ancestor)
        return self._pointing(reference, self._find(name, scope), scope)

    def _find(self, name: str, scope: _Scope) -> Any:
        """The schema a `$ref` names: one around it, one of its module, or one anywhere in the document."""
        for names in (scope.imported, scope.ancestors):
            if name in names:
                return names[name]
        place = self._places.resolve(name, self._base)
        if isinstance(place, reference.Unresolved) or not isinstance(place.schema, dict | bool):
            return MISSING
        return place.schema

    def _pointing(self, reference: Kind, schema: Any, scope: _Scope) -> Kind:
        """The reference, whose target is read when its turn comes; one to nothing has none."""
        if schema is MISSING:
            reference.trouble = "It leads nowhere"
            return reference
        if id(schema) not in self._targets:
            self._targets[id(schema)] = reference  # until it is read
            self._waiting.append((schema, scope))
        self._references.append((reference, schema))
        return reference


def _settle(references: list[Kind]) -> None:
    """Let references point to the ends of their chains; one that goes round in a circle points to a reference."""
    for start in references:
        chain: dict[Kind, None] = {}
        node = start
        while node.target is not None and node not in chain:
            chain[node] = None
            node = node.target
        for each in chain:
            each.target = node
    for node in references:
        if node.followed.is_reference:
            node.trouble = "It leads nowhere"
        else:
            node.all_of = (node.followed,)
            node.followed.shared = True


def _enter(schema: dict[str, Any], scope: _Scope) -> _Scope:
    if _is_import(schema):
        modules = {
            part["$id"]: part
            for part in schema["$defs"].values()
            if isinstance(part, dict) and isinstance(part.get("$id"), str)
        }
        scope = _Scope(scope.ancestors, {**schema["$defs"], **modules, **scope.imported})
    name = schema.get("$id")
    if isinstance(name, str) and name not in scope.ancestors:
        scope = _Scope({**scope.ancestors, name: schema}, scope.imported)
    return scope


def _is_import(schema: dict[str, Any]) -> bool:
    """Whether this is how TypeBox writes a type imported from a module: a `$ref` that names one of its own `$defs`."""
    name = schema.get("$ref")
    return isinstance(name, str) and isinstance(schema.get("$defs"), dict) and name in schema["$defs"]


def _has_own_shape(schema: dict[str, Any]) -> bool:
    # TypeBox writes `type: "object"` beside `allOf`; alone it says nothing that the members do not say.
    if schema.get("type", "object") != "object":
        return True
    return any(name in schema for name in _SHAPES) or isinstance(schema.get("additionalProperties"), dict)


def _with_default(node: Kind, default: Any) -> Kind:
    """The only part of a combination, with the default written around it unless it has its own."""
    if node.default is MISSING:
        node.default = default
    return node


def _default(schema: dict[str, Any]) -> Any:
    return schema.get("default", MISSING)


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    return schema[name] if isinstance(schema.get(name), list) else []
