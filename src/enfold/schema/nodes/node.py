"""A JSON Schema as a graph of nodes: keywords read once, references followed, malformed keywords left out."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.schema.nodes.reference import SchemaDocument, SchemaPlace, Unresolved, base_of, root_base, unquote

MOST_NODES: Final = 50_000

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
CONTAINERS: Final = frozenset({"array", "object"})


Scope = tuple[str, ...]


class TooLargeError(ValueError):
    """A schema with more nodes than we are willing to hold."""


class Missing(msgspec.Struct, frozen=True):
    """Says that there is no value, where None would be one."""


MISSING: Final = Missing()


class Discriminator(msgspec.Struct, frozen=True):
    """OpenAPI's hint: the property that names the variant, and what each of its values stands for."""

    name: str
    mapping: dict[str, Node]
    words: dict[str, str]  # the last words of the mapping: they stay right in documents that were moved about


class Node(msgspec.Struct, eq=False):
    """One schema. `all_of` holds the targets of references too: they apply at the same place."""

    index: int
    never: bool = False
    trouble: str | None = None  # why nothing can be said here: a reference to nowhere, a pattern we cannot read
    shared: bool = False  # a reference leads here, so it may be met again
    endless: bool = False  # it applies itself to the same value
    name: str = ""  # the last word of a reference that leads here
    source: dict[str, Any] = {}  # as it was written

    types: frozenset[str] | None = None
    enum: list[Any] | None = None
    default: Any = MISSING
    is_secret: bool = False  # a value for the other side alone: `writeOnly`, or the format `password`

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None
    multiple_of: float | None = None

    min_length: int | None = None
    max_length: int | None = None
    pattern: Any = None  # an enfold.schema.nodes.pattern.Pattern

    prefix: tuple[Node, ...] = ()
    items: Node | None = None
    contains: Node | None = None
    min_contains: int | None = None
    max_contains: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique: bool = False
    unevaluated_items: Node | None = None

    properties: dict[str, Node] | None = None
    patterns: tuple[tuple[Any, Node], ...] = ()
    unmatched: tuple[Node, ...] = ()  # what belongs to patterns that we cannot read
    additional: Node | None = None
    names: Node | None = None
    required: tuple[str, ...] = ()
    min_properties: int | None = None
    max_properties: int | None = None
    dependent_required: dict[str, tuple[str, ...]] = {}
    dependent_schemas: dict[str, Node] = {}
    unevaluated_properties: Node | None = None

    all_of: tuple[Node, ...] = ()
    any_of: tuple[Node, ...] = ()
    one_of: tuple[Node, ...] = ()
    not_: Node | None = None
    if_: Node | None = None
    then: Node | None = None
    else_: Node | None = None
    discriminator: Discriminator | None = None


def read_nodes(schema: Any) -> list[Node]:
    """All nodes a schema reaches, the root first."""
    reader = _NodeReader(schema, is_dynamic=False)
    nodes = reader.read()
    # Few schemas have dynamic references, and only they need to be read with the way that led to each node.
    return _NodeReader(schema, is_dynamic=True).read() if reader.met_dynamic else nodes


class _NodeReader:
    """Reads without recursion: a node is known before its schema is read, so that references may form cycles."""

    def __init__(self, schema: Any, *, is_dynamic: bool) -> None:
        self.document = SchemaDocument(schema)
        self.is_dynamic = is_dynamic
        self.met_dynamic = False
        self.nodes: list[Node] = []
        self._known: dict[tuple[int, str, Scope], Node] = {}
        self._waiting: list[_Keywords] = []

    def read(self) -> list[Node]:
        self.node(self.document.root, root_base(self.document.root), ())
        while self._waiting:
            self._waiting.pop().read()
        return self.nodes

    def node(self, schema: Any, base: str, scope: Scope) -> Node:
        """The node of a schema; `base` is the base address inside it, `scope` the resources entered on the way."""
        key = (id(schema), base, scope)
        if isinstance(schema, dict) and key in self._known:
            return self._known[key]
        node = self.new()
        node.never = schema is False
        if isinstance(schema, dict):
            self._known[key] = node
            self._waiting.append(_Keywords(self, node, schema, base, self._entering(base, scope)))
        return node

    def _entering(self, base: str, scope: Scope) -> Scope:
        is_new = self.is_dynamic and base not in scope and self.document.has_dynamic_anchors(base)
        return (*scope, base) if is_new else scope

    def new(self) -> Node:
        if len(self.nodes) >= MOST_NODES:
            raise TooLargeError(f"The schema has more than {MOST_NODES:,} parts")
        node = Node(len(self.nodes))
        self.nodes.append(node)
        return node

    def target(self, reference: str, found: SchemaPlace | Unresolved, scope: Scope) -> Node:
        if isinstance(found, SchemaPlace) and isinstance(found.schema, dict | bool):
            node = self.node(found.schema, found.base, scope)
            node.shared = True
            node.name = node.name or _last_word(reference)
            return node
        node = self.new()
        reason = found.reason if isinstance(found, Unresolved) else "that is no schema"
        node.trouble = f"The reference {reference!r} cannot be followed: {reason}"
        return node


class _Keywords:
    """The keywords of one schema, each read into its node; one of the wrong shape counts as absent."""

    def __init__(self, reader: _NodeReader, node: Node, schema: dict[str, Any], base: str, scope: Scope) -> None:
        self.reader = reader
        self.node = node
        node.source = schema
        self.schema = schema
        self.base = base
        self.scope = scope

    def read(self) -> None:
        self._any_type()
        for keywords, read in _GROUPS:
            if not keywords.isdisjoint(self.schema):
                read(self)
        if self.schema.get("nullable") is True:
            self._nullable()

    def _any_type(self) -> None:
        schema, node = self.schema, self.node
        node.types = _types(schema.get("type"))
        enum = schema.get("enum")
        if isinstance(enum, list | tuple):
            node.enum = list(enum)
        if "const" in schema:
            self._const(schema["const"])
        node.default = schema.get("default", MISSING)
        node.is_secret = schema.get("writeOnly") is True or schema.get("format") == "password"

    def _const(self, value: Any) -> None:
        if self.node.enum is None:
            self.node.enum = [value]
        else:
            also = self.reader.new()
            also.enum = [value]
            self.node.all_of += (also,)

    def _numbers(self) -> None:
        node = self.node
        node.minimum = number_at(self.schema, "minimum")
        node.maximum = number_at(self.schema, "maximum")
        node.exclusive_minimum = number_at(self.schema, "exclusiveMinimum")
        node.exclusive_maximum = number_at(self.schema, "exclusiveMaximum")
        multiple = number_at(self.schema, "multipleOf")
        node.multiple_of = multiple if multiple is not None and multiple > 0 else None
        # In draft 4 these two are flags that change the meaning of the bound.
        if self.schema.get("exclusiveMinimum") is True:
            node.exclusive_minimum, node.minimum = node.minimum, None
        if self.schema.get("exclusiveMaximum") is True:
            node.exclusive_maximum, node.maximum = node.maximum, None

    def _strings(self) -> None:
        self.node.min_length = self._count("minLength")
        self.node.max_length = self._count("maxLength")
        pattern = self.schema.get("pattern")
        if isinstance(pattern, str):
            self.node.pattern = self._pattern(pattern)

    def _arrays(self) -> None:
        node, items = self.node, self.schema.get("items")
        node.prefix = self._schemas("prefixItems")
        if isinstance(items, list):  # before 2020-12 a list of items was what prefixItems is now
            node.prefix = node.prefix or tuple(self._child(item) for item in items)
            items = self.schema.get("additionalItems")
        node.items = self._optional(items)
        node.contains = self._keyword("contains")
        if node.contains is not None:
            node.min_contains = self._count("minContains")
            node.max_contains = self._count("maxContains")
        node.min_items = self._count("minItems")
        node.max_items = self._count("maxItems")
        node.unique = self.schema.get("uniqueItems") is True
        node.unevaluated_items = self._keyword("unevaluatedItems")

    def _objects(self) -> None:
        node, schema = self.node, self.schema
        if isinstance(schema.get("properties"), dict):
            node.properties = self._mapping("properties")
        for source, child in self._mapping("patternProperties").items():
            pattern = self._pattern(source)
            if pattern is None:
                node.unmatched += (child,)
            else:
                node.patterns += ((pattern, child),)
        node.additional = self._keyword("additionalProperties")
        node.names = self._keyword("propertyNames")
        node.required = _words(schema.get("required"))
        node.min_properties = self._count("minProperties")
        node.max_properties = self._count("maxProperties")
        node.unevaluated_properties = self._keyword("unevaluatedProperties")
        self._dependencies()

    def _dependencies(self) -> None:
        node = self.node
        node.dependent_schemas = self._mapping("dependentSchemas")
        node.dependent_required = {
            name: _words(needed)
            for keyword in ("dependencies", "dependentRequired")
            for name, needed in _items(self.schema.get(keyword))
            if isinstance(needed, list)
        }
        for name, needed in _items(self.schema.get("dependencies")):
            if isinstance(needed, dict | bool):
                node.dependent_schemas.setdefault(name, self._child(needed))

    def _in_place(self) -> None:
        node = self.node
        node.all_of += self._references() + self._schemas("allOf")
        node.any_of = self._schemas("anyOf")
        node.one_of = self._schemas("oneOf")
        node.not_ = self._keyword("not")
        node.if_ = self._keyword("if")
        if node.if_ is not None:
            node.then = self._keyword("then")
            node.else_ = self._keyword("else")
        hint = self.schema.get("discriminator")
        if isinstance(hint, dict) and isinstance(hint.get("propertyName"), str):
            node.discriminator = self._discriminator(hint["propertyName"], hint.get("mapping"))

    def _references(self) -> tuple[Node, ...]:
        document, found = self.reader.document, []
        for keyword in ("$ref", "$recursiveRef"):
            reference = self.schema.get(keyword)
            if isinstance(reference, str):
                found.append(self.reader.target(reference, document.resolve(reference, self.base), self.scope))
        reference = self.schema.get("$dynamicRef")
        if isinstance(reference, str):
            self.reader.met_dynamic = True
            place = document.resolve_dynamic(reference, self.base, self.scope)
            found.append(self.reader.target(reference, place, self.scope))
        return tuple(found)

    def _discriminator(self, name: str, mapping: Any) -> Discriminator:
        references = {value: reference for value, reference in _items(mapping) if isinstance(reference, str)}
        nodes: dict[str, Node] = {}
        for value, reference in references.items():
            found = self.reader.document.resolve(reference, self.base)
            if isinstance(found, SchemaPlace) and isinstance(found.schema, dict):
                nodes[value] = self.reader.node(found.schema, found.base, self.scope)
        return Discriminator(name, nodes, {value: _last_word(reference) for value, reference in references.items()})

    def _nullable(self) -> None:
        """OpenAPI 3.0's `nullable`: the node becomes a choice between null and what it was."""
        node = self.node
        inner = self.reader.new()
        for field in node.__struct_fields__:
            if field not in _STAY_OUTSIDE:
                setattr(inner, field, getattr(node, field))
                setattr(node, field, _BLANK[field])
        null = self.reader.new()
        null.types = frozenset({"null"})
        node.any_of = (inner, null)

    def _pattern(self, source: str) -> Any:
        from enfold.schema.nodes.pattern import PatternError, compile_pattern

        try:
            return compile_pattern(source)
        except PatternError as error:
            self.node.trouble = f"The pattern {source[:80]!r} cannot be used: {error}"
            return None

    def _child(self, schema: Any) -> Node:
        base = base_of(schema, self.base) if isinstance(schema, dict) else self.base
        return self.reader.node(schema, base, self.scope)

    def _optional(self, schema: Any) -> Node | None:
        return self._child(schema) if isinstance(schema, dict | bool) else None

    def _keyword(self, keyword: str) -> Node | None:
        return self._optional(self.schema.get(keyword))

    def _schemas(self, keyword: str) -> tuple[Node, ...]:
        schemas = self.schema.get(keyword)
        return tuple(self._child(schema) for schema in schemas) if isinstance(schemas, list | tuple) else ()

    def _mapping(self, keyword: str) -> dict[str, Node]:
        return {name: self._child(schema) for name, schema in _items(self.schema.get(keyword))}

    def _count(self, keyword: str) -> int | None:
        value = number_at(self.schema, keyword)
        return int(value) if value is not None and value >= 0 and value == int(value) else None


# Most schemas have few keywords; whole groups of them are passed over at one glance.
_GROUPS: Final = (
    (
        frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
        _Keywords._numbers,
    ),
    (frozenset({"minLength", "maxLength", "pattern"}), _Keywords._strings),
    (
        frozenset({"items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"}),
        _Keywords._arrays,
    ),
    (
        frozenset(
            {
                "properties",
                "required",
                "additionalProperties",
                "patternProperties",
                "propertyNames",
                "minProperties",
                "maxProperties",
                "unevaluatedProperties",
                "dependencies",
                "dependentRequired",
                "dependentSchemas",
            }
        ),
        _Keywords._objects,
    ),
    (
        frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "discriminator"}),
        _Keywords._in_place,
    ),
)
_BLANK: Final[dict[str, Any]] = {field: getattr(Node(0), field) for field in Node.__struct_fields__}
# The fields that say nothing about which values are valid.
SILENT: Final = frozenset({"index", "shared", "name", "source", "default", "discriminator", "is_secret"})
_STAY_OUTSIDE: Final = frozenset({"index", "shared", "endless", "name", "default"})


def number_at(schema: dict[str, Any], keyword: str) -> float | None:
    """A keyword's number; anything else there limits nothing."""
    value = schema.get(keyword)
    return value if type(value) is int or (type(value) is float and value - value == 0) else None


def _last_word(reference: str) -> str:
    return unquote(reference.rpartition("/")[2])


def _types(value: Any) -> frozenset[str] | None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name in TYPES for name in names):
        return None
    # Every integer is a number: saying so makes types comparable as sets.
    return frozenset(names) | {"integer"} if "number" in names else frozenset(names)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(dict.fromkeys(word for word in value if isinstance(word, str)))


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(name, item) for name, item in value.items() if isinstance(name, str)] if isinstance(value, dict) else []
