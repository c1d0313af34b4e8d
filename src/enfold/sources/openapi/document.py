"""A document and the others it refers to: JSON and YAML 1.2 into data, references into places. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Self, TypeAlias
from urllib.parse import quote, unquote, urldefrag, urljoin

import msgspec

from enfold.errors import FormatError
from enfold.schema.json_pointer import escape, unescape

Load: TypeAlias = Callable[[str], bytes]

MAX_REFERENCE_STEPS: Final = 100


class BrokenReferenceError(LookupError):
    """A reference that leads nowhere, or to where it may not."""


class DocumentResource(msgspec.Struct, frozen=True, eq=False):
    """What references without an address are relative to: a document, or a schema with an `$id` of its own."""

    uri: str
    root: Any
    is_root: bool = False
    anchors: dict[str, Any] = {}
    resolved: dict[str, DocumentPlace] = {}


class DocumentPlace(msgspec.Struct, frozen=True):
    """A node, the resource it lies in, and the pointer by which it was reached."""

    node: Any
    resource: DocumentResource
    pointer: tuple[str, ...] = ()

    def child(self, *keys: str) -> DocumentPlace:
        """Return the place below; a missing key has None as its node."""
        node = self.node
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return DocumentPlace(node, self.resource, self.pointer + keys)

    def items(self) -> Iterator[tuple[str, DocumentPlace]]:
        """Return the places below a mapping; empty for anything else."""
        if isinstance(self.node, dict):
            for key, node in self.node.items():
                yield str(key), DocumentPlace(node, self.resource, (*self.pointer, str(key)))

    def elements(self) -> Iterator[DocumentPlace]:
        """Return the places below a list; empty for anything else."""
        if isinstance(self.node, list):
            for index, node in enumerate(self.node):
                yield DocumentPlace(node, self.resource, (*self.pointer, str(index)))

    @property
    def fields(self) -> dict[str, Any]:
        """The node, if it is an object; what is none has no fields."""
        return self.node if isinstance(self.node, dict) else {}

    def text(self, key: str) -> str:
        """Return the text of a field; empty if there is none."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else ""

    def texts(self, key: str) -> list[str]:
        """Return the texts of a field's list."""
        return [each.node for each in self.child(key).elements() if isinstance(each.node, str)]

    @property
    def where(self) -> str:
        """The place for people: the file, where it is not the first, and the pointer."""
        pointer = "/".join(map(escape, self.pointer))
        return f"{'' if self.resource.is_root else self.resource.uri}#/{pointer}"


def read_document(text: bytes) -> Any:
    """JSON or YAML 1.2 as data; JSON is tried first because it is faster by far."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return read_yaml(text)
    except RecursionError as error:
        raise FormatError("The document is nested too deeply") from error


class Library:
    """The documents that were read so far, by their address, and a loader for those that were not."""

    def __init__(self, root: Any, uri: str, load: Load) -> None:
        self.version = read_version(root)
        self.retrieved_from = uri
        self._load = load
        self._resources: dict[str, DocumentResource] = {}
        self._failed: dict[str, str] = {}
        self._has_ids = self.version not in (
            "2.0",
            "3.0",
        )  # `$id` and `$anchor` came with 3.1, and words beside a `$ref`
        self._unindexed: list[DocumentResource] = []
        own = root.get("$self")
        self.root = DocumentResource(urljoin(uri, own) if isinstance(own, str) else uri, root, is_root=True)
        self._add(self.root)
        self._resources[uri] = self.root

    def place(self) -> DocumentPlace:
        return DocumentPlace(self.root.root, self.root)

    def follow(self, place: DocumentPlace) -> DocumentPlace:
        """Return the place itself, or where its `$ref` finally leads."""
        for _ in range(MAX_REFERENCE_STEPS):
            ref = place.node.get("$ref") if isinstance(place.node, dict) else None
            if not isinstance(ref, str):
                return place
            place = self.resolve(ref, place.resource)
        raise BrokenReferenceError(f"{place.where} refers to itself")

    def follow_if_possible(self, place: DocumentPlace) -> DocumentPlace:
        """Follow a reference; return a place without a node if it is broken."""
        try:
            return self.follow(place)
        except BrokenReferenceError:
            return DocumentPlace(None, place.resource, place.pointer)

    def follow_described(self, place: DocumentPlace) -> DocumentPlace:
        """Follow a reference; since 3.1 its own summary and description take precedence."""
        target = self.follow(place)
        if target is place or not self._has_ids or not isinstance(target.node, dict):
            return target
        own = {key: place.node[key] for key in ("summary", "description") if isinstance(place.node.get(key), str)}
        return DocumentPlace({**target.node, **own}, target.resource, target.pointer) if own else target

    def resolve(self, ref: str, base: DocumentResource) -> DocumentPlace:
        """Return the place that a reference names; cached, since large documents repeat them thousands of times."""
        known = base.resolved.get(ref)
        if known is None:
            address, _, fragment = ref.partition("#")
            resource = self._resource(address, base) if address else base
            known = base.resolved[ref] = self._resolve_fragment(resource, fragment, ref)
        return known

    def _resolve_fragment(self, resource: DocumentResource, fragment: str, ref: str) -> DocumentPlace:
        if not fragment or fragment == "/":
            return DocumentPlace(resource.root, resource)
        if fragment.startswith("/"):
            return self._walk(DocumentPlace(resource.root, resource), fragment[1:].split("/"), ref)
        self._index_all()
        if fragment in resource.anchors:
            return DocumentPlace(resource.anchors[fragment], resource, (fragment,))
        raise BrokenReferenceError(f"{ref} names an anchor that does not exist")

    def _walk(self, place: DocumentPlace, keys: list[str], ref: str) -> DocumentPlace:
        for key in keys:
            step = self._step(place, key)
            if step is None:
                # What a reference points below may itself be a reference.
                step = self._step(self.follow(place), key)
            if step is None:
                raise BrokenReferenceError(f"{ref} cannot be resolved: there is no {_unescape(key)!r} in {place.where}")
            place = step
        return place

    def _step(self, place: DocumentPlace, key: str) -> DocumentPlace | None:
        node, name = place.node, _unescape(key)
        if isinstance(node, dict) and (name in node or key in node):
            name = name if name in node else key
            below = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            below = node[int(name)]
        else:
            return None
        resource = self.own_resource(below, place.resource)
        return DocumentPlace(below, resource, (*place.pointer, name) if resource is place.resource else ())

    def own_resource(self, node: Any, base: DocumentResource) -> DocumentResource:
        """Return the resource that a schema's references are relative to: its own if it has an `$id`."""
        if not self._has_ids or not isinstance(node, dict) or node is base.root:
            return base
        own = node.get("$id")
        if not isinstance(own, str) or own.startswith("#"):
            return base
        self._index_all()
        uri = urldefrag(urljoin(base.uri, own))[0]
        known = self._resources.get(uri)
        return known if known is not None and known.root is node else base

    def _resource(self, address: str, base: DocumentResource) -> DocumentResource:
        self._index_all()
        uri = urljoin(base.uri, address)
        known = self._resources.get(uri)
        if known is None and base is self.root and base.uri != self.retrieved_from:
            # A document may have an address of its own (`$self`) and still lie among its parts elsewhere.
            uri = urljoin(self.retrieved_from, address)
            known = self._resources.get(uri)
        return known or self._read(uri)

    def _read(self, uri: str) -> DocumentResource:
        if uri in self._failed:
            raise BrokenReferenceError(self._failed[uri])
        try:
            root = read_document(self._load(uri))
        except (FormatError, BrokenReferenceError, OSError) as error:
            self._failed[uri] = f"{uri} cannot be read: {error}"
            raise BrokenReferenceError(self._failed[uri]) from error
        resource = DocumentResource(uri, root)
        self._add(resource)
        return resource

    def _add(self, resource: DocumentResource) -> None:
        self._resources[resource.uri] = resource
        own = resource.root.get("$self") if isinstance(resource.root, dict) else None
        if isinstance(own, str):
            self._resources.setdefault(urljoin(resource.uri, own), resource)
        if self._has_ids:
            self._unindexed.append(resource)

    def _index_all(self) -> None:
        """Find every `$id` and `$anchor`; most documents have none, and are never searched for them."""
        waiting: list[tuple[Any, DocumentResource]] = [(resource.root, resource) for resource in self._unindexed]
        self._unindexed.clear()
        seen: set[int] = set()  # data that was resolved by other tools may hold itself
        while waiting:
            node, base = waiting.pop()
            if not isinstance(node, (dict, list)) or id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, dict):
                base = self._index_names(node, base)
            waiting.extend((value, base) for value in (node.values() if isinstance(node, dict) else node))

    def _index_names(self, node: dict[str, Any], base: DocumentResource) -> DocumentResource:
        own = node.get("$id")
        if isinstance(own, str) and not own.startswith("#") and node is not base.root:
            base = DocumentResource(urldefrag(urljoin(base.uri, own))[0], node)
            self._resources.setdefault(base.uri, base)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(keyword)
            if isinstance(anchor, str):
                base.anchors.setdefault(anchor, node)
        return base


def _unescape(key: str) -> str:
    return unescape(unquote(key))


def read_version(root: Any) -> str:
    """Return `2.0`, `3.0`, `3.1` or `3.2`, however the document writes it: a number, a later patch, a newer minor."""
    if not isinstance(root, dict):
        raise FormatError("An OpenAPI document must be an object")
    if "swagger" in root and "openapi" not in root:
        return "2.0"
    declared = str(root.get("openapi", ""))
    if declared.startswith(("3.0", "3.1")):
        return declared[:3]
    if declared == "3":
        return "3.0"
    if declared:
        return "3.2"
    if not any(key in root for key in ("paths", "components", "webhooks", "info")):
        raise FormatError("Not an OpenAPI document: it has neither `openapi` nor `swagger`")
    return "3.1"


MAX_NODES: Final = 5_000_000  # counted with every alias expanded: a bomb has more, the largest real document has not

_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_OTHER_INTEGER: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_MAX_DIGITS: Final = 400
_WORDS: Final[dict[str, bool | None]] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
# To the parser, which follows YAML 1.1, these are line breaks or forbidden; in 1.2 they are characters like others.
_UNLIKE: Final = (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF)
_UNLIKE_1_1: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|.\xef\xbb\xbf", re.DOTALL)
_FIRST_STAND_IN: Final = 0xFFF00
_STAND_INS: Final = re.compile(f"[{chr(_FIRST_STAND_IN)}-{chr(_FIRST_STAND_IN + len(_UNLIKE) - 1)}]")
_KEYWORDS: Final = ("allOf", "anyOf", "oneOf", "properties")  # whose values are no schemas, though schemas are in them
_STANDARD_TAG: Final = "tag:yaml.org,2002:"


def read_yaml(text: bytes) -> Any:
    """Read the first document of a YAML stream as JSON data; raise FormatError if it is invalid."""
    import yaml

    try:
        if _UNLIKE_1_1.search(text):
            return _first_value(_without_stand_ins(_events(_with_stand_ins(text.decode("utf-8-sig")))))
        return _first_value(_events(text))
    except (yaml.YAMLError, UnicodeError) as error:
        raise FormatError(f"Not YAML: {' '.join(str(error).split())[:300]}") from error


def _first_value(events: Iterator[Any]) -> Any:
    for event in events:
        if hasattr(event, "anchor"):  # the marks of streams and documents have none
            return _Reader(events).read(event)[0]
    return None


def plain_scalar(text: str) -> Any:
    """Return the value of a plain scalar in the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS or len(text) > _MAX_DIGITS:
        return text
    if _INTEGER.match(text):
        return int(text)
    if _OTHER_INTEGER.match(text):
        return int(text, 0)
    return _finite(text) if _FLOAT.match(text) else text


def _finite(text: str) -> float | str:
    # JSON has no infinity, so a number too large for a float stays the text it was.
    number = float(text)
    return number if number - number == 0 else text


def _with_stand_ins(text: str) -> str:
    """Replace characters that YAML 1.2 allows and the 1.1 parser does not with private ones."""
    if _STAND_INS.search(text):
        raise FormatError("Not YAML: private characters stand beside control characters")
    return text.translate({code: _FIRST_STAND_IN + index for index, code in enumerate(_UNLIKE)})


def _without_stand_ins(events: Iterator[Any]) -> Iterator[Any]:
    for event in events:
        if type(event).__name__ == "ScalarEvent":
            event.value = _STAND_INS.sub(lambda found: chr(_UNLIKE[ord(found[0]) - _FIRST_STAND_IN]), event.value)
        yield event


def _events(text: bytes | str) -> Iterator[Any]:
    import yaml

    # libyaml, where it was built, is some ten times faster; only its events are used, none of its constructors.
    loader = (yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader)(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


class _UnfinishedAnchor(msgspec.Struct, frozen=True):
    """An anchored value that is being read: a reference to it, or to the schema that it is a keyword of."""

    reference: dict[str, str]
    keyword: str  # empty where the value is no keyword's
    is_mapping: bool

    @classmethod
    def at(cls, path: list[str | int], *, is_mapping: bool) -> Self:
        is_keyword = bool(path) and path[-1] in _KEYWORDS and path[-2:-1] != ["properties"]
        names = path[:-1] if is_keyword else path
        pointer = "".join(f"/{quote(escape(str(name)), safe='~')}" for name in names)
        return cls({"$ref": f"#{pointer}"}, str(path[-1]) if is_keyword else "", is_mapping)


class _Reader:
    """Reads values from parser events, and counts how many nodes they are with every alias expanded."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchored: dict[str, tuple[Any, int]] = {}
        self._unfinished: dict[str, _UnfinishedAnchor] = {}
        self._path: list[str | int] = []

    def read(self, event: Any) -> tuple[Any, int]:
        """Return the value that begins with this event, and the number of its nodes."""
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event.anchor)
        anchor = event.anchor
        if anchor:
            self._unfinished[anchor] = _UnfinishedAnchor.at(self._path, is_mapping=kind == "MappingStartEvent")
        if kind == "ScalarEvent":
            found: tuple[Any, int] = _scalar_value(event), 1
        else:
            found = self._mapping() if kind == "MappingStartEvent" else self._sequence()
        if found[1] > MAX_NODES:
            raise FormatError("The YAML aliases of the document expand too far")
        if anchor:
            self._anchored[anchor] = found
            self._unfinished.pop(anchor, None)
        return found

    def _alias(self, anchor: str) -> tuple[Any, int]:
        """Return the value of an alias; inside that value, a reference to it."""
        unfinished = self._unfinished.get(anchor)
        if unfinished is not None and unfinished.is_mapping and not unfinished.keyword:
            return unfinished.reference, 1
        if unfinished is not None or anchor not in self._anchored:
            raise FormatError(f"The alias *{anchor} has no finished anchor")
        return self._anchored[anchor]

    def _owner(self, key: str, event: Any) -> dict[str, str] | None:
        """Return a reference to the schema whose keyword an alias repeats inside of it, such as `oneOf`."""
        unfinished = self._unfinished.get(event.anchor) if type(event).__name__ == "AliasEvent" else None
        return unfinished.reference if unfinished is not None and unfinished.keyword == key else None

    def _sequence(self) -> tuple[list[Any], int]:
        items: list[Any] = []
        nodes = 1
        for event in self._until("SequenceEndEvent"):
            self._path.append(len(items))
            item, size = self.read(event)
            self._path.pop()
            items.append(item)
            nodes += size
        return items, nodes

    def _mapping(self) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        merges: list[Any] = []
        owners: list[Any] = []
        nodes = 1
        for event in self._until("MappingEndEvent"):
            key = self._key(event)
            start = next(self._events)
            owner = self._owner(key, start)
            if owner is not None:
                owners.append(owner)
                continue
            self._path.append(key)
            value, size = self.read(start)
            self._path.pop()
            nodes += size
            if key == "<<" and isinstance(value, dict | list):
                if type(start).__name__ == "AliasEvent" and start.anchor in self._unfinished:
                    raise FormatError(f"The mapping &{start.anchor} is merged into itself")
                merges.append(value)
            else:
                members[key] = value
        _merge(members, merges)
        if owners:
            members["allOf"] = [*members.get("allOf", ()), *owners]
        return members, nodes

    def _key(self, event: Any) -> str:
        """Return a key as it is written: `200` and `true` are text, as in JSON."""
        kind = type(event).__name__
        if kind == "AliasEvent" and not isinstance(key := self._alias(event.anchor)[0], dict | list):
            return str(key)
        if kind != "ScalarEvent":
            raise FormatError("A mapping key must be a scalar: JSON has no other keys")
        if event.anchor:
            self._anchored[event.anchor] = event.value, 1
        return str(event.value)

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event


def _merge(target: dict[str, Any], merges: list[Any]) -> None:
    """Merge `<<`: keys of the mapping itself win, then those of the earlier source."""
    for merged in merges:
        for source in merged if isinstance(merged, list) else [merged]:
            if isinstance(source, dict):
                for key, value in source.items():
                    target.setdefault(key, value)


def _scalar_value(event: Any) -> Any:
    if event.tag is None:
        return plain_scalar(event.value) if event.implicit[0] else event.value
    if event.tag.startswith(_STANDARD_TAG) and event.tag[len(_STANDARD_TAG) :] in ("int", "float", "bool", "null"):
        return plain_scalar(event.value)
    return event.value
