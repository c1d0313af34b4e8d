"""From plain JSON Schema, as TypeBox and everybody else writes it, to the kinds of TypeBox. It looks at no value."""

from __future__ import annotations

from collections import deque
from math import isfinite
from typing import Any, Final, TypeGuard

import msgspec

from enfold.schema.cast import kinds
from enfold.schema.cast.failure import too_large
from enfold.schema.cast.kinds import MISSING, Kind
from enfold.schema.nodes import reference

# A schema of a stranger may be of any size; ours, and those of the largest public services, stay far below.
_MOST_NODES: Final = 50_000

# Keywords that give a schema beside `allOf`, `anyOf` or `oneOf` a shape of its own.
_SHAPES: Final = ("enum", "const", "properties", "patternProperties", "items", "prefixItems")


def read_schema(schema: Any) -> kinds.CastSchema:
    """The kinds of a schema. What no kind stands for is Unknown: it accepts everything and changes nothing."""
    return _Reader(schema).document()


class _Scope(msgspec.Struct, frozen=True):
    """What a plain name means here: `$id`s of the schemas around, and of the module a `$ref` imports from."""

    ancestors: dict[str, Any]
    imported: dict[str, Any]


class _Reader:
    """Reads one schema once; targets of references wait in a queue, so that a long chain of them is not deep."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._places = reference.SchemaDocument(schema)
        self._base = reference.root_base(schema)
        self._count = 0
        self._targets: list[Kind] = []
        self._slots: dict[int, int] = {}
        self._waiting: deque[tuple[int, Any, _Scope]] = deque()

    def document(self) -> kinds.CastSchema:
        root = self._read(self._schema, _Scope({}, {}))
        while self._waiting:
            slot, schema, scope = self._waiting.popleft()
            self._targets[slot] = self._read(schema, scope)
        return kinds.CastSchema(root, _settle(self._targets))

    def _number(self) -> int:
        self._count += 1
        if self._count > _MOST_NODES:
            raise too_large("The schema")
        return self._count

    def _read(self, schema: Any, scope: _Scope) -> Kind:
        if schema is False:
            return kinds.Never(number=self._number())
        if not isinstance(schema, dict):
            return kinds.Unknown(number=self._number())
        scope = _enter(schema, scope)
        if schema.get("nullable") is True:
            return self._nullable(schema, scope)
        return self._not_nullable(schema, scope)

    def _nullable(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        variants = (self._not_nullable(schema, scope), kinds.Null(number=self._number()))
        return kinds.Union(number=self._number(), variants=variants, default=_default(schema))

    def _not_nullable(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        if _is_text(schema.get("$ref")):
            return self._reference(schema, scope)
        if any(_is_list(schema.get(name)) for name in ("allOf", "anyOf", "oneOf")):
            return self._combination(schema, scope)
        return self._plain(schema, scope)

    def _combination(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        match self._parts(schema, scope):
            case []:
                return self._plain(schema, scope)
            case [part]:
                return _with_default(part, _default(schema))
            case parts:
                return kinds.Intersect(
                    number=self._number(),
                    members=tuple(parts),
                    unevaluated=self._extra(schema.get("unevaluatedProperties"), scope),
                    default=_default(schema),
                )

    def _parts(self, schema: dict[str, Any], scope: _Scope) -> list[Kind]:
        """What a schema with `allOf`, `anyOf` or `oneOf` has to be at once: its own shape, the members, a choice."""
        own = [self._plain({**schema, "default": MISSING}, scope)] if _has_own_shape(schema) else []
        members = [self._read(member, scope) for member in _list(schema, "allOf")]
        choices = [self._choice(schema[name], scope) for name in ("anyOf", "oneOf") if _is_list(schema.get(name))]
        if own or members:
            # A choice of what is required, say, is nothing that TypeBox has a kind for.
            choices = [choice for choice in choices if not _accepts_everything(choice)]
        return own + members + choices

    def _choice(self, schemas: list[Any], scope: _Scope) -> Kind:
        return self._one_of(tuple(self._read(schema, scope) for schema in schemas), MISSING)

    def _one_of(self, variants: tuple[Kind, ...], default: Any) -> Kind:
        if not variants:
            return kinds.Never(number=self._number(), default=default)
        if len(variants) == 1:
            return _with_default(variants[0], default)
        if all(isinstance(variant, kinds.Literal) and variant.default is MISSING for variant in variants):
            values = tuple(variant.value for variant in variants if isinstance(variant, kinds.Literal))
            return kinds.Enum(number=self._number(), values=values, default=default)
        return kinds.Union(number=self._number(), variants=variants, default=default)

    def _plain(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        """A schema that combines no others: an enumeration, a constant, one type or several, a negation, or nothing."""
        if _is_list(schema.get("enum")):
            return self._enum(schema)
        if "const" in schema:
            return kinds.Literal(number=self._number(), value=schema["const"], default=_default(schema))
        match schema.get("type"):
            case list() as names:
                return self._one_of(tuple(self._typed(name, schema, scope) for name in names), _default(schema))
            case str() as name:
                return self._typed(name, schema, scope)
            case _:
                return self._untyped(schema, scope)

    def _enum(self, schema: dict[str, Any]) -> Kind:
        values = schema["enum"]
        match values:
            case []:
                return kinds.Never(number=self._number(), default=_default(schema))
            case [value]:
                return kinds.Literal(number=self._number(), value=value, default=_default(schema))
            case _:
                return kinds.Enum(number=self._number(), values=tuple(values), default=_default(schema))

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
                return kinds.Boolean(number=self._number(), default=_default(schema))
            case "null":
                return kinds.Null(number=self._number(), default=_default(schema))
            case _:
                return kinds.Unknown(number=self._number(), default=_default(schema))

    def _untyped(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        if _is_dict(schema.get("properties")) or _is_dict(schema.get("patternProperties")):
            return self._object(schema, scope)
        if "items" in schema or "prefixItems" in schema:
            return self._array(schema, scope)
        if "not" in schema:
            return self._negation(schema, scope)
        return kinds.Unknown(number=self._number(), default=_default(schema))

    def _negation(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        # TypeBox writes Never as {"not": {}}.
        if schema["not"] in ({}, True):
            return kinds.Never(number=self._number(), default=_default(schema))
        inner = self._read(schema["not"], scope)
        return kinds.Not(number=self._number(), inner=inner, default=_default(schema))

    def _string(self, schema: dict[str, Any]) -> Kind:
        pattern = schema.get("pattern")
        return kinds.String(
            number=self._number(),
            minimum_length=_real(schema, "minLength"),
            maximum_length=_real(schema, "maxLength"),
            pattern=pattern if isinstance(pattern, str) else None,
            default=_default(schema),
        )

    def _numeric(self, schema: dict[str, Any], *, integer: bool) -> Kind:
        minimum, maximum = _real(schema, "minimum"), _real(schema, "maximum")
        # Draft 4 and OpenAPI 3.0 write `exclusiveMinimum: true` beside `minimum`.
        above = minimum if schema.get("exclusiveMinimum") is True else _real(schema, "exclusiveMinimum")
        below = maximum if schema.get("exclusiveMaximum") is True else _real(schema, "exclusiveMaximum")
        return kinds.Number(
            number=self._number(),
            integer=integer,
            minimum=minimum,
            maximum=maximum,
            above=above,
            below=below,
            multiple_of=_real(schema, "multipleOf"),
            default=_default(schema),
        )

    def _object(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        properties = schema.get("properties")
        if _is_dict(properties):
            return self._closed_or_open(schema, properties, scope)
        if _is_dict(schema.get("patternProperties")) and schema["patternProperties"]:
            pattern, values = next(iter(schema["patternProperties"].items()))
            return self._record(schema, pattern, values, self._extra(schema.get("additionalProperties"), scope), scope)
        if schema.get("additionalProperties") is False:
            return self._closed_or_open(schema, {}, scope)
        return self._record(schema, None, schema.get("additionalProperties", True), extra=True, scope=scope)

    def _closed_or_open(self, schema: dict[str, Any], properties: dict[str, Any], scope: _Scope) -> Kind:
        required = _list(schema, "required")
        return kinds.Object(
            number=self._number(),
            properties={name: self._read(part, scope) for name, part in properties.items()},
            required=frozenset(name for name in required if isinstance(name, str)),
            required_count=len(required),
            extra=self._extra(schema.get("additionalProperties"), scope),
            minimum_size=_real(schema, "minProperties"),
            maximum_size=_real(schema, "maxProperties"),
            default=_default(schema),
        )

    def _record(
        self, schema: dict[str, Any], pattern: str | None, values: Any, extra: Kind | bool, scope: _Scope
    ) -> Kind:
        return kinds.Record(
            number=self._number(),
            pattern=pattern,
            values=self._read(values, scope),
            extra=extra,
            minimum_size=_real(schema, "minProperties"),
            maximum_size=_real(schema, "maxProperties"),
            default=_default(schema),
        )

    def _extra(self, schema: Any, scope: _Scope) -> Kind | bool:
        return self._read(schema, scope) if _is_dict(schema) else schema is not False

    def _array(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        for places in (schema.get("prefixItems"), schema.get("items")):
            if _is_list(places) and places:
                items = tuple(self._read(place, scope) for place in places)
                return kinds.Tuple(number=self._number(), items=items, default=_default(schema))
        if "items" not in schema and schema.get("maxItems") == 0:  # This is how TypeBox writes an empty tuple.
            return kinds.Tuple(number=self._number(), items=(), default=_default(schema))
        return kinds.Array(
            number=self._number(),
            items=self._read(schema.get("items", True), scope),
            minimum_size=_real(schema, "minItems"),
            maximum_size=_real(schema, "maxItems"),
            unique=schema.get("uniqueItems") is True,
            contains=self._read(schema["contains"], scope) if "contains" in schema else None,
            minimum_contains=_real(schema, "minContains"),
            maximum_contains=_real(schema, "maxContains"),
            default=_default(schema),
        )

    def _reference(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        name = schema["$ref"]
        if _is_import(schema):
            return kinds.Import(number=self._number(), slot=self._slot(schema["$defs"][name], scope))
        target = self._find(name, scope)
        return kinds.Ref(
            number=self._number(),
            name=name,
            slot=None if target is MISSING else self._slot(target, scope),
            to_ancestor=name in scope.ancestors and name not in scope.imported,
            default=_default(schema),
        )

    def _find(self, name: str, scope: _Scope) -> Any:
        """The schema a `$ref` names: one around it, one of its module, or one anywhere in the document."""
        for names in (scope.imported, scope.ancestors):
            if name in names:
                return names[name]
        place = self._places.resolve(name, self._base)
        if isinstance(place, reference.Unresolved) or not isinstance(place.schema, dict | bool):
            return MISSING
        return place.schema

    def _slot(self, schema: Any, scope: _Scope) -> int:
        known = self._slots.get(id(schema))
        if known is not None:
            return known
        slot = self._slots[id(schema)] = len(self._targets)
        self._targets.append(kinds.Unknown(number=0))
        self._waiting.append((slot, schema, scope))
        return slot


def _settle(targets: list[Kind]) -> tuple[Kind, ...]:
    """Targets with chains of references shortened to their ends; one that goes round in a circle stays a reference."""
    ends: dict[int, Kind] = {}
    for start in range(len(targets)):
        chain: dict[int, None] = {}
        slot = start
        while slot not in ends and slot not in chain:
            chain[slot] = None
            target = targets[slot]
            if not isinstance(target, kinds.Reference) or target.slot is None:
                break
            slot = target.slot
        end = ends.get(slot, targets[slot])
        ends.update(dict.fromkeys(chain, end))
    return tuple(ends[slot] for slot in range(len(targets)))


def _enter(schema: dict[str, Any], scope: _Scope) -> _Scope:
    if _is_import(schema):
        modules = {
            part["$id"]: part for part in schema["$defs"].values() if _is_dict(part) and _is_text(part.get("$id"))
        }
        scope = _Scope(scope.ancestors, {**schema["$defs"], **modules, **scope.imported})
    name = schema.get("$id")
    if _is_text(name) and name not in scope.ancestors:
        scope = _Scope({**scope.ancestors, name: schema}, scope.imported)
    return scope


def _is_import(schema: dict[str, Any]) -> bool:
    """Whether this is how TypeBox writes a type imported from a module: a `$ref` that names one of its own `$defs`."""
    name = schema.get("$ref")
    return _is_text(name) and _is_dict(schema.get("$defs")) and name in schema["$defs"]


def _has_own_shape(schema: dict[str, Any]) -> bool:
    # TypeBox writes `type: "object"` beside `allOf`; alone it says nothing that the members do not say.
    if schema.get("type", "object") != "object":
        return True
    return any(name in schema for name in _SHAPES) or _is_dict(schema.get("additionalProperties"))


def _accepts_everything(node: Kind) -> bool:
    return isinstance(node, kinds.Unknown) or (
        isinstance(node, kinds.Union) and any(map(_accepts_everything, node.variants))
    )


def _with_default(node: Kind, default: Any) -> Kind:
    """The only part of a combination, with the default written around it unless it has its own."""
    if node.default is not MISSING or default is MISSING:
        return node
    return msgspec.structs.replace(node, default=default)


def _default(schema: dict[str, Any]) -> Any:
    return schema.get("default", MISSING)


def _real(schema: dict[str, Any], name: str) -> float | None:
    """A keyword's number; anything else there limits nothing."""
    value = schema.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or isfinite(value) else None


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    return schema[name] if _is_list(schema.get(name)) else []


def _is_dict(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)
