"""A JSON Schema as a graph of nodes: keywords are parsed once, references resolved, malformed keywords ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from enfold.schema.nodes.reference import SchemaDocument, SchemaPlace, Unresolved, base_of, root_base, unquote

MAX_NODES: Final = 50_000

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
CONTAINERS: Final = frozenset({"array", "object"})


Scope = tuple[str, ...]


class TooLargeError(ValueError):
    """The schema has more nodes than the limit."""


class Missing(msgspec.Struct, frozen=True):
    """The type of `MISSING`: no value, where None would be one."""


MISSING: Final = Missing()


class Discriminator(msgspec.Struct, frozen=True):
    """OpenAPI's `discriminator`: the property that names the variant, and the variant for each of its values."""

    name: str
    mapping: dict[str, Node]
    names: dict[str, str]  # the last segment of each mapped reference, which survives moving the document


class Node(msgspec.Struct, eq=False):
    """One schema. `all_of` includes the targets of references: they apply at the same location."""

    index: int
    never: bool = False
    problem: str | None = None  # why the node cannot be evaluated: an unresolved reference, an unsupported pattern
    shared: bool = False  # the target of a reference, so it may be reached again
    cyclic: bool = False  # applies itself to the same value
    name: str = ""  # the last segment of a reference to this node
    source: dict[str, Any] = {}  # the original schema

    types: frozenset[str] | None = None
    enum: list[Any] | None = None
    default: Any = MISSING
    is_secret: bool = False  # `writeOnly`, or the format `password`

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None
    multiple_of: float | None = None

    min_length: int | None = None
    max_length: int | None = None
    pattern: Any = None  # an enfold.schema.regexp.Pattern

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
    unmatched: tuple[Node, ...] = ()  # the schemas of unsupported patterns
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
    """Return all nodes that a schema reaches, the root first."""
    reader = _NodeReader(schema, is_dynamic=False)
    nodes = reader.read()
    # Only schemas with dynamic references depend on the resources entered on the way to each node.
    return _NodeReader(schema, is_dynamic=True).read() if reader.met_dynamic else nodes


class _NodeReader:
    """Reads without recursion: a node is registered before its schema is read, so references may form cycles."""

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
        """Return the node of a schema; `base` is its base URI, `scope` the resources entered on the way."""
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
        if len(self.nodes) >= MAX_NODES:
            raise TooLargeError(f"The schema has more than {MAX_NODES:,} subschemas")
        node = Node(len(self.nodes))
        self.nodes.append(node)
        return node

    def target(self, reference: str, found: SchemaPlace | Unresolved, scope: Scope) -> Node:
        if isinstance(found, SchemaPlace) and isinstance(found.schema, dict | bool):
            node = self.node(found.schema, found.base, scope)
            node.shared = True
            node.name = node.name or _last_segment(reference)
            return node
        node = self.new()
        reason = found.reason if isinstance(found, Unresolved) else "the target is not a schema"
        node.problem = f"Cannot resolve the reference {reference!r}: {reason}"
        return node


class _Keywords:
    """Reads the keywords of one schema into its node; a malformed keyword counts as absent."""

    def __init__(self, reader: _NodeReader, node: Node, schema: dict[str, Any], base: str, scope: Scope) -> None:
        self.reader = reader
        self.node = node
        node.source = schema
        self.schema = schema
        self.base = base
        self.scope = scope

    def read(self) -> None:
        for keyword, value in self.schema.items():
            if keyword in VALUES:
                field, read_value = VALUES[keyword]
                setattr(self.node, field, read_value(value))
            elif keyword in _SCHEMAS:
                field, read_schemas = _SCHEMAS[keyword]
                setattr(self.node, field, read_schemas(self, value))
        self._older_drafts()
        self._combined()
        if self.schema.get("nullable") is True:
            self._nullable()

    def _older_drafts(self) -> None:
        """Apply older drafts: boolean `exclusiveMinimum`, a list of `items`, and `dependencies`."""
        node, schema = self.node, self.schema
        if schema.get("exclusiveMinimum") is True:
            node.exclusive_minimum, node.minimum = node.minimum, None
        if schema.get("exclusiveMaximum") is True:
            node.exclusive_maximum, node.maximum = node.maximum, None
        if isinstance(schema.get("items"), list):  # `prefixItems` before 2020-12
            node.prefix = node.prefix or self._list(schema["items"])
            node.items = self._schema(schema.get("additionalItems"))
        if "dependencies" in schema:
            either = _items(schema["dependencies"])
            parts = {name: self._child(part) for name, part in either if isinstance(part, dict | bool)}
            node.dependent_schemas = {**parts, **node.dependent_schemas}
            node.dependent_required = {**_needed(schema["dependencies"]), **node.dependent_required}

    def _combined(self) -> None:
        """Apply keywords that depend on each other."""
        node, schema = self.node, self.schema
        node.is_secret = schema.get("writeOnly") is True or schema.get("format") == "password"
        node.all_of = self._references() + node.all_of
        if "const" in schema:
            self._const(schema["const"])
        for source, child in self._map(schema.get("patternProperties")).items():
            pattern = self._pattern(source)
            if pattern is None:
                node.unmatched += (child,)
            else:
                node.patterns += ((pattern, child),)
        if node.contains is None:
            node.min_contains = node.max_contains = None
        if node.if_ is None:
            node.then = node.else_ = None

    def _const(self, value: Any) -> None:
        if self.node.enum is None:
            self.node.enum = [value]
        else:
            also = self.reader.new()
            also.enum = [value]
            self.node.all_of += (also,)

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

    def _discriminator(self, hint: Any) -> Discriminator | None:
        if not isinstance(hint, dict) or not isinstance(hint.get("propertyName"), str):
            return None
        references = {value: target for value, target in _items(hint.get("mapping")) if isinstance(target, str)}
        nodes: dict[str, Node] = {}
        for value, reference in references.items():
            found = self.reader.document.resolve(reference, self.base)
            if isinstance(found, SchemaPlace) and isinstance(found.schema, dict):
                nodes[value] = self.reader.node(found.schema, found.base, self.scope)
        names = {value: _last_segment(reference) for value, reference in references.items()}
        return Discriminator(hint["propertyName"], nodes, names)

    def _nullable(self) -> None:
        """Apply OpenAPI 3.0's `nullable`: the node becomes a choice between null and its former self."""
        node = self.node
        inner = self.reader.new()
        for field in node.__struct_fields__:
            if field not in _STAY_OUTSIDE:
                setattr(inner, field, getattr(node, field))
                setattr(node, field, BLANK[field])
        null = self.reader.new()
        null.types = frozenset({"null"})
        node.any_of = (inner, null)

    def _pattern(self, source: Any) -> Any:
        if not isinstance(source, str):
            return None
        from enfold.schema.regexp import PatternError, compile_pattern

        try:
            return compile_pattern(source)
        except PatternError as error:
            self.node.problem = str(error)
            return None

    def _child(self, schema: Any) -> Node:
        base = base_of(schema, self.base) if isinstance(schema, dict) else self.base
        return self.reader.node(schema, base, self.scope)

    def _schema(self, value: Any) -> Node | None:
        return self._child(value) if isinstance(value, dict | bool) else None

    def _list(self, value: Any) -> tuple[Node, ...]:
        return tuple(map(self._child, value)) if isinstance(value, list | tuple) else ()

    def _map(self, value: Any) -> dict[str, Node]:
        return {name: self._child(schema) for name, schema in _items(value)}


def number(value: Any) -> float | None:
    """Return the number of a keyword, or None where it is not a finite number."""
    return value if type(value) is int or (type(value) is float and value - value == 0) else None


def _positive(value: Any) -> float | None:
    step = number(value)
    return step if step is not None and step > 0 else None


def _count(value: Any) -> int | None:
    size = number(value)
    return int(size) if size is not None and size >= 0 and size == int(size) else None


def _last_segment(reference: str) -> str:
    return unquote(reference.rpartition("/")[2])


def types_named(value: Any) -> frozenset[str] | None:
    """Return the types that a `type` keyword names; None where it is invalid."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name in TYPES for name in names):
        return None
    # Every integer is a number; including it makes types comparable as sets.
    return frozenset(names) | {"integer"} if "number" in names else frozenset(names)


def _constants(value: Any) -> list[Any] | None:
    return list(value) if isinstance(value, list | tuple) else None


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(dict.fromkeys(word for word in value if isinstance(word, str)))


def _needed(value: Any) -> dict[str, tuple[str, ...]]:
    return {name: _words(needed) for name, needed in _items(value) if isinstance(needed, list)}


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(name, item) for name, item in value.items() if isinstance(name, str)] if isinstance(value, dict) else []


# The node field that each keyword is read into, and its parser. `_Keywords` reads what depends on several keywords.
VALUES: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "type": ("types", types_named),
    "enum": ("enum", _constants),
    "default": ("default", lambda value: value),
    "minimum": ("minimum", number),
    "maximum": ("maximum", number),
    "exclusiveMinimum": ("exclusive_minimum", number),
    "exclusiveMaximum": ("exclusive_maximum", number),
    "multipleOf": ("multiple_of", _positive),
    "minLength": ("min_length", _count),
    "maxLength": ("max_length", _count),
    "minContains": ("min_contains", _count),
    "maxContains": ("max_contains", _count),
    "minItems": ("min_items", _count),
    "maxItems": ("max_items", _count),
    "uniqueItems": ("unique", lambda value: value is True),
    "required": ("required", _words),
    "minProperties": ("min_properties", _count),
    "maxProperties": ("max_properties", _count),
    "dependentRequired": ("dependent_required", _needed),
}
_SCHEMAS: Final[dict[str, tuple[str, Callable[[_Keywords, Any], Any]]]] = {
    "pattern": ("pattern", _Keywords._pattern),
    "prefixItems": ("prefix", _Keywords._list),
    "items": ("items", _Keywords._schema),
    "contains": ("contains", _Keywords._schema),
    "unevaluatedItems": ("unevaluated_items", _Keywords._schema),
    "properties": ("properties", lambda keywords, value: keywords._map(value) if isinstance(value, dict) else None),
    "additionalProperties": ("additional", _Keywords._schema),
    "propertyNames": ("names", _Keywords._schema),
    "dependentSchemas": ("dependent_schemas", _Keywords._map),
    "unevaluatedProperties": ("unevaluated_properties", _Keywords._schema),
    "allOf": ("all_of", _Keywords._list),
    "anyOf": ("any_of", _Keywords._list),
    "oneOf": ("one_of", _Keywords._list),
    "not": ("not_", _Keywords._schema),
    "if": ("if_", _Keywords._schema),
    "then": ("then", _Keywords._schema),
    "else": ("else_", _Keywords._schema),
    "discriminator": ("discriminator", _Keywords._discriminator),
}
BLANK: Final[dict[str, Any]] = {field: getattr(Node(0), field) for field in Node.__struct_fields__}
# The fields that do not affect which values are valid.
SILENT: Final = frozenset({"index", "shared", "name", "source", "default", "discriminator", "is_secret"})
_STAY_OUTSIDE: Final = frozenset({"index", "shared", "cyclic", "name", "default"})


_OFTEN: Final = 64
_ROUNDS: Final = 80  # enough for work that doubles with each pass around a cycle to show


def in_place(node: Node) -> Iterator[Node]:
    """Yield the nodes that apply to the same value as this one."""
    yield from node.all_of
    yield from node.any_of
    yield from node.one_of
    yield from node.dependent_schemas.values()
    yield from (part for part in (node.not_, node.if_, node.then, node.else_) if part is not None)


def reachable(nodes: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return some nodes and all nodes reachable from them, each once, nearest first."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    for node in waiting:  # grows while it is read
        new = [part for part in dict.fromkeys(step(node)) if part not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return waiting


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes that apply to the items or properties of the value."""
    yield from node.prefix
    yield from (node.properties or {}).values()
    yield from (child for _, child in node.patterns)
    inside = (node.items, node.contains, node.unevaluated_items)
    around = (node.additional, node.names, node.unevaluated_properties)
    yield from (child for child in inside + around if child is not None)


def mark_cyclic(nodes: list[Node]) -> bool:
    """Mark the nodes on a cycle of in-place applications; return whether there are any."""
    onward = {node: list(in_place(node)) for node in nodes}
    looping = _in_or_after_cycles(nodes, onward)
    if looping:
        backward: dict[Node, list[Node]] = {node: [] for node in looping}
        for node in looping:
            for part in onward[node]:
                backward[part].append(node)
        looping = _in_or_after_cycles(looping, backward)
    for node in looping:
        node.cyclic = True
    return bool(looping)


def _in_or_after_cycles(nodes: list[Node], onward: dict[Node, list[Node]]) -> list[Node]:
    """Return the nodes on cycles and after them: those left when unreferenced nodes are removed repeatedly."""
    leading = dict.fromkeys(nodes, 0)
    for node in nodes:
        for part in onward[node]:
            leading[part] += 1
    loose = [node for node in nodes if not leading[node]]
    for node in loose:  # grows while it is read
        for part in onward[node]:
            leading[part] -= 1
            if not leading[part]:
                loose.append(part)
    return [node for node in nodes if leading[node]]


def multiplies(nodes: list[Node]) -> bool:
    """Whether one check may visit the same location of a value so often that results should be memoized."""
    applied = {node: list(in_place(node)) for node in nodes}
    inside = {node: list(children(node)) for node in nodes}
    if all(len(parts) + bool(inside[node]) < 2 for node, parts in applied.items()):
        return False
    often = _OFTEN + len(nodes)
    here = dict.fromkeys(nodes, 1)
    below = dict.fromkeys(nodes, 0)
    for _ in range(_ROUNDS):
        stable = True
        for node in reversed(nodes):
            now = 1 + sum(here[part] for part in applied[node]), _looks_below(applied[node], inside[node], below)
            if max(now) > often:
                return True
            stable = stable and now == (here[node], below[node])
            here[node], below[node] = now
        if stable:
            return False
    return True


def _looks_below(applied: list[Node], inside: list[Node], below: dict[Node, int]) -> int:
    """Count visits below a node: children are at different locations, so the maximum counts; variants add up."""
    own = max((below[child] or 1 for child in inside), default=0)
    objects = sum(below[part] for part in applied if may_be(part, "object"))
    arrays = sum(below[part] for part in applied if may_be(part, "array"))
    return own + max(objects, arrays)


def may_be(node: Node, kind: str) -> bool:
    return node.types is None or kind in node.types
