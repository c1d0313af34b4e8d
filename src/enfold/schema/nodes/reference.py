"""Resolves `$ref` within one schema document, and computes schema digests. Nothing is fetched."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import msgspec

from enfold.schema.json_pointer import follow, names, step
from enfold.schema.keywords import VALUES


class SchemaPlace(msgspec.Struct, frozen=True):
    """A schema and the base URI for its relative references."""

    schema: Any
    base: str


class Unresolved(msgspec.Struct, frozen=True):
    """A reference without a target in this document, and the reason."""

    reference: str
    reason: str


class SchemaDocument:
    """One schema document. Embedded resources and anchors are indexed on first use."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def resolve(self, reference: str, base: str = "") -> SchemaPlace | Unresolved:
        """Resolve a reference from a schema whose base URI is `base`."""
        address, _, fragment = reference.partition("#")
        resource = self._resource(address, base)
        if resource is None:
            return Unresolved(reference, "it points outside the document")
        found = self._within(resource, unquote(fragment))
        if found is None and not address and resource.schema is not self.root:
            # Strictly, a pointer starts at the nearest `$id`; documents bundled by tools mean the root.
            found = self._within(SchemaPlace(self.root, root_base(self.root)), unquote(fragment))
        return found or Unresolved(reference, "the document has no such location")

    def resolve_dynamic(self, reference: str, base: str, scope: tuple[str, ...]) -> SchemaPlace | Unresolved:
        """Resolve a `$dynamicRef`; `scope` lists the resources entered, outermost first."""
        found = self.resolve(reference, base)
        name = reference.partition("#")[2]
        dynamic = self._names.dynamic
        if not isinstance(found, SchemaPlace) or (found.base, name) not in dynamic:
            return found
        return next(dynamic[entered, name] for entered in (*scope, found.base) if (entered, name) in dynamic)

    def has_dynamic_anchors(self, base: str) -> bool:
        return any(entered == base for entered, _ in self._names.dynamic)

    def _resource(self, address: str, base: str) -> SchemaPlace | None:
        if not address and not base:
            return SchemaPlace(self.root, root_base(self.root))
        full = join(base, address) if address else base
        resources = self._names.resources
        return next((SchemaPlace(resources[name], name) for name in (full, address) if name in resources), None)

    def _within(self, resource: SchemaPlace, fragment: str) -> SchemaPlace | None:
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return _follow(resource, fragment)
        return self._names.anchors.get((resource.base, fragment))

    @cached_property
    def _names(self) -> _Names:
        names = _Names({"": self.root}, {}, {})
        waiting = [SchemaPlace(self.root, "")]
        seen: set[tuple[int, str]] = set()
        while waiting:
            place = waiting.pop()
            if (id(place.schema), place.base) in seen:
                continue
            seen.add((id(place.schema), place.base))
            if isinstance(place.schema, dict):
                place = SchemaPlace(place.schema, base_of(place.schema, place.base))
                names.add(place)
                waiting.extend(SchemaPlace(item, place.base) for key, item in place.schema.items() if key not in VALUES)
            elif isinstance(place.schema, list):
                waiting.extend(SchemaPlace(item, place.base) for item in place.schema)
        return names


class _Names(msgspec.Struct, frozen=True):
    """What references can name in a document: resources by URI, anchors by base URI and name."""

    resources: dict[str, Any]
    anchors: dict[tuple[str, str], SchemaPlace]
    dynamic: dict[tuple[str, str], SchemaPlace]

    def add(self, place: SchemaPlace) -> None:
        """Add the names that one schema declares."""
        name, anchor, dynamic = (place.schema.get(keyword) for keyword in ("$id", "$anchor", "$dynamicAnchor"))
        if isinstance(name, str) and not name.startswith("#"):
            self.resources.setdefault(place.base, place.schema)
        elif isinstance(name, str):  # an anchor in older drafts
            self.anchors.setdefault((place.base, name[1:]), place)
        for each in (anchor, dynamic):
            if isinstance(each, str):
                self.anchors.setdefault((place.base, each), place)
        if isinstance(dynamic, str):
            self.dynamic.setdefault((place.base, dynamic), place)


def root_base(root: Any) -> str:
    """Return the base URI of a document."""
    return base_of(root, "") if isinstance(root, dict) else ""


def base_of(schema: dict[str, Any], base: str) -> str:
    """Return the base URI inside a schema: that of its parent unless it has an `$id`."""
    name = schema.get("$id")
    if not isinstance(name, str) or name.startswith("#"):
        return base
    return join(base, name).partition("#")[0]


def join(base: str, address: str) -> str:
    if not base:
        return address
    from urllib.parse import urljoin

    try:
        return urljoin(base, address)
    except ValueError:  # such as an unfinished IPv6 host
        return address


def unquote(fragment: str) -> str:
    if "%" not in fragment:
        return fragment
    from urllib.parse import unquote as percent_decoded

    return percent_decoded(fragment)


def _follow(resource: SchemaPlace, pointer: str) -> SchemaPlace | None:
    schema, base = resource.schema, resource.base
    for name in names(pointer):
        try:
            schema = step(schema, name)
        except LookupError:
            return None
        if isinstance(schema, dict):
            base = base_of(schema, base)
    return SchemaPlace(schema, base)


def local_schema(root: Any, reference: Any) -> Any:
    """Return the target of a JSON Pointer reference into the same document; None for any other reference."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    try:
        return follow(root, unquote(reference[1:]))
    except LookupError:
        return None


_MAX_REFERENCES: Final = 16


def opened(given: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema with its reference resolved; keywords beside the reference take precedence."""
    part: dict[str, Any] = given if isinstance(given, dict) else {}
    for _ in range(_MAX_REFERENCES):
        only = part.get("allOf")
        if isinstance(only, list) and len(only) == 1 and isinstance(only[0], dict):
            part = {**only[0], **{key: value for key, value in part.items() if key != "allOf"}}
        if "$ref" not in part:
            return part
        beside = {key: value for key, value in part.items() if key != "$ref"}
        found = local_schema(root, part["$ref"])
        part = {**(found if isinstance(found, dict) else {}), **beside}
    return {}


def digest(schema: Any) -> str:
    """Return a digest that is the same for equal schemas, independent of key order."""
    from hashlib import sha256  # slow to import

    try:
        text = msgspec.json.encode(schema, order="sorted")
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can only escape
        from json import dumps

        text = dumps(schema, sort_keys=True).encode()
    return sha256(text).hexdigest()
