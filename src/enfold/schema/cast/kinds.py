"""TypeBox kinds read from JSON Schema, CastError with TypeBox's messages, and values with JavaScript semantics."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from enfold.schema.nodes import MAX_NODES, MISSING, VALUES, Node, number, reference, types_named
from enfold.schema.regexp import PatternError, compile_pattern


class CastError(ValueError):
    """A value cannot be cast: `kind` is the name of the error that TypeBox throws, with its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[CastError], tuple[str, str]]:
        return type(self), (self.kind, self.message)


def cannot_create(message: str) -> CastError:
    return CastError("ValueCreateError", message)


def cannot_cast(message: str) -> CastError:
    return CastError("ValueCastError", message)


def unknown_reference(name: str) -> CastError:
    return CastError("TypeDereferenceError", f"Unable to dereference schema with $id '{name}'")


def bad_pattern(source: str, reason: str) -> CastError:
    return CastError("SyntaxError", f"Invalid regular expression: /{source[:200]}/: {reason}")


def too_deep() -> CastError:
    return CastError("RangeError", "Maximum call stack size exceeded")


def too_large(what: str) -> CastError:
    return CastError("RangeError", f"{what} is too large to cast")


# The prefix of each type in TypeBox's hash.
_UNDEFINED, _NULL, _BOOLEAN, _NUMBER, _STRING, _OBJECT, _ARRAY = (bytes([mark]) for mark in range(7))

_EXACT_INTEGERS: Final = 2**53


def length(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_multiple(value: float, divisor: float) -> bool:
    try:
        return divisor != 0 and value % divisor == 0
    except OverflowError:  # An integer beyond every float, and a divisor with a fraction.
        return False


class JavaScriptPattern:
    """A JavaScript pattern; an invalid one raises on its first search."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def search(self) -> Callable[[str], bool | None]:
        try:
            return compile_pattern(self.source).search
        except PatternError as error:
            return _raiser(bad_pattern(self.source, str(error)))


def _raiser(error: CastError) -> Callable[[Any], bool]:
    def refuse(_: Any) -> bool:
        raise CastError(error.kind, error.message)

    return refuse


def is_unique(items: list[Any]) -> bool:
    """Whether no two items are equal as TypeBox hashes them."""
    return len(set(map(_hashed, items))) == len(items)


def _hashed(value: Any) -> bytes:
    """Return the bytes that TypeBox hashes. Nested values have no end mark: [[1], 2] and [[1, 2]] are equal."""
    match value:
        case None:
            return _NULL
        case bool():
            return _BOOLEAN + bytes([value])
        case int() | float():
            return _NUMBER + _number_bytes(value)
        case str():
            return _STRING + _text_bytes(value)
        case list():
            return _ARRAY + b"".join(map(_hashed, value))
        case dict():
            keys = sorted(value, key=str)
            return _OBJECT + b"".join(_hashed(str(key)) + _hashed(value[key]) for key in keys)
        case _:
            return _UNDEFINED


def _number_bytes(value: float) -> bytes:
    if isinstance(value, int) and abs(value) > _EXACT_INTEGERS:
        return b"%x" % value  # JavaScript would round.
    return struct.pack(">d", value)


def _text_bytes(text: str) -> bytes:
    if text.isascii():
        return text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    return b"".join(units[i : i + 2].lstrip(b"\0") or b"\0" for i in range(0, len(units), 2))


def distinct(items: list[Any]) -> list[Any]:
    """Return the items without duplicate scalars; objects and arrays are never equal."""
    first: dict[tuple[str, Any], Any] = {}
    for position, item in enumerate(items):
        first.setdefault(_identity(item, position), item)
    return list(first.values())


def _identity(item: Any, position: int) -> tuple[str, Any]:
    if isinstance(item, dict | list):
        return "position", position
    is_number = isinstance(item, int | float) and not isinstance(item, bool)
    return "number" if is_number else type(item).__name__, item


def as_object(value: Any) -> dict[str, Any] | None:
    """Return the own properties of an object or array; in JavaScript indices and length are properties."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {**{str(i): item for i, item in enumerate(value)}, "length": len(value)}
    return None


def own_values(value: Any) -> Iterable[tuple[str, Any]]:
    """Return the own properties of any value, like `Object.getOwnPropertyNames`."""
    if value is None or value is MISSING:
        raise CastError("TypeError", "Cannot convert undefined or null to object")
    if isinstance(value, str):
        value = list(value)
    return (as_object(value) or {}).items()


def spread(value: Any) -> dict[str, Any]:
    """Return the result of `{...value}`."""
    if isinstance(value, str | list):
        return {str(i): item for i, item in enumerate(value)}
    return dict(value) if isinstance(value, dict) else {}


KindName = Literal[
    "Unknown", "Never", "Not", "Null", "Boolean", "String", "Number", "Literal", "Enum",
    "Object", "Record", "Array", "Tuple", "Union", "Intersect", "Ref", "Import",
]  # fmt: skip


class Kind(Node, eq=False, kw_only=True):
    """A schema as TypeBox sees it, with the node fields that TypeBox considers.

    A Record is a map: its values are of `additional` or of its single pattern. An Import is a type imported from a
    module: like a reference, but a union does not resolve it.
    """

    kind: KindName = "Unknown"
    required_names: frozenset[str] = frozenset()  # the required names of an Object
    required_count: int = 0  # the length of `required`, including undeclared and repeated names
    is_closed: bool = False  # an Object or Intersect without other properties
    to_ancestor: bool = False  # a Ref to an enclosing schema
    target: Kind | None = None  # the final target of a reference; a reference again if unresolved

    @property
    def is_reference(self) -> bool:
        return self.kind in {"Ref", "Import"}

    @property
    def followed(self) -> Kind:
        """The target of a reference; a reference again if it is unresolved or circular."""
        return self if self.target is None else self.target


# The kind of each type, and its limits in TypeBox, which may be any numbers.
_TYPED: Final[dict[Any, tuple[KindName, tuple[str, ...]]]] = {
    "null": ("Null", ()),
    "boolean": ("Boolean", ()),
    "string": ("String", ("minLength", "maxLength")),
    "number": ("Number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "integer": ("Number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "array": ("Array", ("minItems", "maxItems", "minContains", "maxContains")),
    "object": ("Object", ("minProperties", "maxProperties")),
}
# Keywords that give a schema with `allOf`, `anyOf` or `oneOf` its own shape.
_SHAPES: Final = ("enum", "const", "properties", "patternProperties", "items", "prefixItems")


def read_kinds(schema: Any) -> list[Kind]:
    """Return the kinds of a schema, the root first. A schema without a kind is Unknown and accepts everything."""
    return _KindReader(schema).read()


class _Scope(msgspec.Struct, frozen=True):
    """The meaning of names in a scope: `$id`s of enclosing schemas and of the imported module."""

    ancestors: dict[str, Any]
    imported: dict[str, Any]


class _KindReader:
    """Reads one schema; targets of references are read last, so that long chains do not recurse."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._document = reference.SchemaDocument(schema)
        self._base = reference.root_base(schema)
        self._kinds: list[Kind] = []
        self._references: list[tuple[Kind, Any, _Scope]] = []  # each with the schema it leads to

    def read(self) -> list[Kind]:
        root = self._read(self._schema, _Scope({}, {}))
        targets: dict[int, Kind] = {}  # by the identity of their schemas
        for node, schema, scope in self._references:  # grows during iteration
            if id(schema) not in targets:
                targets[id(schema)] = self._read(schema, scope)
            node.target = targets[id(schema)]
        _shorten_chains([node for node, _, _ in self._references])
        return [root, *(node for node in self._kinds if node is not root)]

    def _new(self, kind: KindName, schema: dict[str, Any], **fields: Any) -> Kind:
        """Return a new kind with the default of its schema."""
        if len(self._kinds) >= MAX_NODES:
            raise too_large("The schema")
        default = schema.get("default", MISSING)
        node = Kind(index=len(self._kinds), kind=kind, never=kind == "Never", default=default, **fields)
        self._kinds.append(node)
        return node

    def _read(self, schema: Any, scope: _Scope) -> Kind:
        if not isinstance(schema, dict):
            return self._new("Never" if schema is False else "Unknown", {})
        scope = _enter(schema, scope)
        if schema.get("nullable") is True:
            variants = (self._not_nullable(schema, scope), self._typed("null", {}, scope))
            return self._new("Union", schema, any_of=variants)
        return self._not_nullable(schema, scope)

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
                return _with_default(part, schema)
            case parts:
                unevaluated = schema.get("unevaluatedProperties")
                return self._new(
                    "Intersect",
                    schema,
                    all_of=tuple(parts),
                    unevaluated_properties=self._other(unevaluated, scope),
                    is_closed=unevaluated is False,
                )

    def _parts(self, schema: dict[str, Any], scope: _Scope) -> list[Kind]:
        """Return the parts of a combined schema: its own shape, the members of `allOf`, and its choices."""
        own = [self._plain({**schema, "default": MISSING}, scope)] if _has_own_shape(schema) else []
        members = [self._read(member, scope) for member in _list(schema, "allOf")]
        choices = [
            self._one_of(tuple(self._read(variant, scope) for variant in schema[name]), {})
            for name in ("anyOf", "oneOf")
            if isinstance(schema.get(name), list)
        ]
        if own or members:
            # TypeBox has no kind for a choice of `required`, for example.
            choices = [choice for choice in choices if not _accepts_anything(choice)]
        return own + members + choices

    def _one_of(self, variants: tuple[Kind, ...], schema: dict[str, Any]) -> Kind:
        if not variants:
            return self._new("Never", schema)
        if len(variants) == 1:
            return _with_default(variants[0], schema)
        if all(variant.kind == "Literal" and variant.default is MISSING for variant in variants):
            return self._new("Enum", schema, enum=[value for variant in variants for value in variant.enum or ()])
        return self._new("Union", schema, any_of=variants)

    def _plain(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        """Read a schema without combinators: an enum, a constant, one or several types, a negation, or nothing."""
        if isinstance(schema.get("enum"), list):
            values = list(schema["enum"])
            return self._new(("Never", "Literal", "Enum")[min(len(values), 2)], schema, enum=values or None)
        if "const" in schema:
            return self._new("Literal", schema, enum=[schema["const"]])
        match schema.get("type"):
            case list() as names:
                return self._one_of(tuple(self._typed(name, schema, scope) for name in names), schema)
            case str() as name:
                return self._typed(name, schema, scope)
            case _:
                return self._untyped(schema, scope)

    def _untyped(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        if isinstance(schema.get("properties"), dict) or isinstance(schema.get("patternProperties"), dict):
            return self._typed("object", schema, scope)
        if "items" in schema or "prefixItems" in schema:
            return self._typed("array", schema, scope)
        if "not" not in schema:
            return self._new("Unknown", schema)
        if schema["not"] in ({}, True):  # TypeBox's form of Never
            return self._new("Never", schema)
        return self._new("Not", schema, not_=self._read(schema["not"], scope))

    def _typed(self, name: Any, schema: dict[str, Any], scope: _Scope) -> Kind:
        if not isinstance(name, str) or name not in _TYPED:
            return self._new("Unknown", schema)
        kind, limits = _TYPED[name]
        fields = {VALUES[keyword][0]: number(schema.get(keyword)) for keyword in limits}
        node = self._new(kind, schema, types=types_named(name), **fields)
        if kind == "Number":
            _read_flags(node, schema)
        elif kind == "String" and isinstance(schema.get("pattern"), str):
            node.pattern = JavaScriptPattern(schema["pattern"])
        elif kind == "Object":
            self._read_object(node, schema, scope)
        elif kind == "Array":
            self._read_array(node, schema, scope)
        return node

    def _read_object(self, node: Kind, schema: dict[str, Any], scope: _Scope) -> None:
        others, properties = schema.get("additionalProperties"), schema.get("properties")
        patterns: Any = schema.get("patternProperties")
        is_by_pattern = isinstance(patterns, dict) and bool(patterns)
        if isinstance(properties, dict) or (others is False and not is_by_pattern):
            parts = properties.items() if isinstance(properties, dict) else ()
            required = _list(schema, "required")
            node.properties = {name: self._read(part, scope) for name, part in parts}
            node.required_names = frozenset(name for name in required if isinstance(name, str))
            node.required_count = len(required)
            node.additional = self._other(others, scope)
            node.is_closed = others is False
            return
        node.kind = "Record"
        if is_by_pattern:
            pattern, values = next(iter(patterns.items()))
            node.patterns = ((JavaScriptPattern(pattern), self._read(values, scope)),)
            node.additional = self._other(others, scope)
        else:
            node.additional = self._read(schema.get("additionalProperties", True), scope)

    def _other(self, schema: Any, scope: _Scope) -> Kind | None:
        """Return the kind of other properties; None where they are unconstrained."""
        return self._read(schema, scope) if isinstance(schema, dict) or schema is False else None

    def _read_array(self, node: Kind, schema: dict[str, Any], scope: _Scope) -> None:
        lists = (schema.get("prefixItems"), schema.get("items"))
        places = next((each for each in lists if isinstance(each, list) and each), [])
        if places or ("items" not in schema and schema.get("maxItems") == 0):  # TypeBox's form of an empty tuple
            node.kind = "Tuple"
            node.prefix = tuple(self._read(place, scope) for place in places)
            return
        node.items = self._read(schema.get("items", True), scope)
        node.unique = schema.get("uniqueItems") is True
        node.contains = self._read(schema["contains"], scope) if "contains" in schema else None

    def _reference(self, schema: dict[str, Any], scope: _Scope) -> Kind:
        name = schema["$ref"]
        if _is_import(schema):
            return self._pointing(self._new("Import", {}), schema["$defs"][name], scope)
        to_ancestor = name in scope.ancestors and name not in scope.imported
        node = self._new("Ref", schema, name=name, to_ancestor=to_ancestor)
        return self._pointing(node, self._find(name, scope), scope)

    def _find(self, name: str, scope: _Scope) -> Any:
        """Find the target of a `$ref`: an enclosing schema, one of its module, or one in the document."""
        for names in (scope.imported, scope.ancestors):
            if name in names:
                return names[name]
        place = self._document.resolve(name, self._base)
        if isinstance(place, reference.Unresolved) or not isinstance(place.schema, dict | bool):
            return MISSING
        return place.schema

    def _pointing(self, node: Kind, schema: Any, scope: _Scope) -> Kind:
        """Register the target of a reference, to be read later."""
        if schema is MISSING:
            node.problem = "The reference cannot be resolved"
        else:
            self._references.append((node, schema, scope))
        return node


def _shorten_chains(references: list[Kind]) -> None:
    """Point references to the ends of their chains; a circular one points to a reference."""
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
            node.problem = "The reference cannot be resolved"
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
    """Whether this is TypeBox's form of an imported type: a `$ref` to one of its own `$defs`."""
    name = schema.get("$ref")
    return isinstance(name, str) and isinstance(schema.get("$defs"), dict) and name in schema["$defs"]


def _has_own_shape(schema: dict[str, Any]) -> bool:
    # TypeBox adds `type: "object"` to `allOf`, which alone is redundant.
    if schema.get("type", "object") != "object":
        return True
    return any(name in schema for name in _SHAPES) or isinstance(schema.get("additionalProperties"), dict)


def _with_default(node: Kind, schema: dict[str, Any]) -> Kind:
    """Return the single part of a combination, with the outer default unless it has its own."""
    if node.default is MISSING:
        node.default = schema.get("default", MISSING)
    return node


def _read_flags(node: Kind, schema: dict[str, Any]) -> None:
    """Apply the boolean `exclusiveMinimum` and `exclusiveMaximum` of draft 4 and OpenAPI 3.0."""
    if schema.get("exclusiveMinimum") is True:
        node.exclusive_minimum = node.minimum
    if schema.get("exclusiveMaximum") is True:
        node.exclusive_maximum = node.maximum


def _accepts_anything(node: Any) -> bool:
    return node.kind == "Unknown" or (node.kind == "Union" and any(map(_accepts_anything, node.any_of)))


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    return schema[name] if isinstance(schema.get(name), list) else []
