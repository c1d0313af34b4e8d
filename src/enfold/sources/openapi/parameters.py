"""Parameter objects of every version, and their values as text by the style tables of OpenAPI 3.2 and RFC 6570. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from enfold.sources.openapi.document import DocumentPlace, Library
from enfold.sources.openapi.media_types import is_json
from enfold.sources.openapi.operations import FoundOperation

LOCATIONS: Final = ("path", "query", "querystring", "header", "cookie")

# Since 3.0 a document may not describe these: the content negotiation and the security do.
_DESCRIBED_ELSEWHERE: Final = frozenset({"accept", "authorization", "content-type"})
# No caller may set these: they would change where the request goes, or where it ends.
RESERVED_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_COLLECTION_STYLES: Final = {"ssv": "spaceDelimited", "pipes": "pipeDelimited", "tsv": "tabDelimited"}
_DELIMITERS: Final = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}


class MalformedOperationError(ValueError):
    """An operation whose request cannot be built; it is left out of the import."""


class Notation(msgspec.Struct, frozen=True):
    """How the value of a parameter, or of a field of a form, is written."""

    style: str
    explode: bool
    allow_reserved: bool = False
    items: Any = None  # of a list of 2.0: its lists may have a collectionFormat of their own

    def delimiter(self, escape: Encode) -> str:
        return escape(_DELIMITERS[self.style]) if self.style in _DELIMITERS else ","


def read_notation(node: dict[str, Any], usual: str = "form") -> Notation:
    """Read the style of a parameter or of a field since 3.0; `usual` is the one where it declares none."""
    style, explode = node.get("style"), node.get("explode")
    if not isinstance(style, str):
        style = usual
    explodes = explode if isinstance(explode, bool) else style in ("form", "cookie")
    return Notation(style, explodes, node.get("allowReserved") is True)


def read_collection_format(node: dict[str, Any]) -> Notation:
    """Read the collectionFormat of 2.0; its default is csv, not multi."""
    declared = str(node.get("collectionFormat"))
    return Notation(_COLLECTION_STYLES.get(declared, "form"), declared == "multi", items=node.get("items"))


def with_inner_lists_joined(value: Any, items: Any) -> Any:
    """Join inner lists of a 2.0 list to text, by the collectionFormat of their level."""
    if not isinstance(value, list) or not isinstance(items, dict) or items.get("type") != "array":
        return value
    inner = read_collection_format(items)
    rows = [with_inner_lists_joined(each, inner.items) for each in value]
    delimiter = inner.delimiter(unescaped)
    return [delimiter.join(map(scalar_text, each)) if isinstance(each, list) else each for each in rows]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter: what it is called on the wire, and how its value is written there."""

    name: str
    location: str
    place: DocumentPlace  # the parameter object
    schema: DocumentPlace
    required: bool
    notation: Notation
    allow_empty: bool = False
    content_type: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The key of a parameter: location and name, case-insensitive in headers."""
        return self.location, self.name.lower() if self.location == "header" else self.name

    @property
    def escape(self) -> Encode:
        return ENCODE_RESERVED[self.location] if self.notation.allow_reserved else encode

    def written(self, value: Any) -> Any:
        """Return the value of a parameter with `content` as text of its media type; that of any other to be expanded."""
        if self.content_type is None:
            return with_inner_lists_joined(value, self.notation.items)
        return strict_json(value) if is_json(self.content_type) else scalar_text(value)


def read_parameters(library: Library, found: FoundOperation) -> list[Parameter]:
    """Read the parameters of an operation and its path item, and add one for each undeclared placeholder."""
    read: dict[tuple[str, str], Parameter] = {}
    for place in declared_parameters(found):
        parameter = _read(library.follow_described(place), library.version)
        if parameter is not None:
            read[parameter.key] = parameter
    placeholders = list(placeholder_names(found.path))
    kept = [each for each in read.values() if each.location != "path" or each.name in placeholders]
    return kept + list(_undeclared(found, placeholders, kept))


def placeholder_names(path: str) -> Iterator[str]:
    """Return the names in a path template, without the operators of `{+name}` and `{name*}`."""
    for text in PLACEHOLDER.findall(path.partition("#")[0]):
        yield placeholder_name(text)


def placeholder_name(text: str) -> str:
    return text.lstrip("+#./;?&").rstrip("*") or text


def declared_parameters(found: FoundOperation) -> Iterator[DocumentPlace]:
    """Return what an operation and its path item list; in 2.0 this includes the parts of its body."""
    for owner in (found.item, found.place):
        listed = owner.child("parameters")
        if listed.node is not None and not isinstance(listed.node, list):
            raise MalformedOperationError("parameters must be a list")
        yield from listed.elements()


def _read(place: DocumentPlace, version: str) -> Parameter | None:
    """Read the parameter at a place; None for a part of a body, or one that callers may not set."""
    node = place.node
    if not isinstance(node, dict):
        raise MalformedOperationError("a parameter must be an object")
    name, location = node.get("name"), node.get("in")
    if not isinstance(name, str) or not isinstance(location, str):
        raise MalformedOperationError("a parameter needs a name and a location (`in`)")
    if location in ("body", "formData"):
        return None
    if location not in LOCATIONS:
        raise MalformedOperationError(f"unknown parameter location {location!r}")
    reserved = RESERVED_HEADERS if version == "2.0" else RESERVED_HEADERS | _DESCRIBED_ELSEWHERE
    if location == "header" and name.lower() in reserved:
        return None
    is_old = version == "2.0" and "schema" not in node
    usual = "form" if location in ("query", "cookie") else "simple"
    content_type, schema = (None, place) if is_old else _content(place)
    return Parameter(
        name,
        location,
        place,
        schema,
        required=node.get("required") is True or location == "path",
        notation=read_collection_format(node) if is_old else read_notation(node, usual),
        allow_empty=node.get("allowEmptyValue") is True,
        content_type=content_type,
    )


def _content(place: DocumentPlace) -> tuple[str | None, DocumentPlace]:
    """Return the media type and schema of a parameter with `content`; else none, and its own schema."""
    for media_type, media in place.child("content").items():
        return media_type, media.child("schema")
    return ("application/x-www-form-urlencoded" if place.node["in"] == "querystring" else None), place.child("schema")


def _undeclared(found: FoundOperation, placeholders: list[str], declared: list[Parameter]) -> Iterator[Parameter]:
    """Return a required scalar for each placeholder without a parameter; in a path's query part, a query parameter."""
    path, _, query = found.path.partition("#")[0].partition("?")
    known = {each.name for each in declared if each.location == "path"}
    in_query = {each.name for each in declared if each.location == "query"} & set(placeholder_names(query))
    for name in dict.fromkeys(placeholders):
        if name not in known and not (name in in_query and name not in placeholder_names(path)):
            node = {"name": name, "in": "path", "required": True, "schema": {"type": ["string", "number", "boolean"]}}
            place = DocumentPlace(node, found.place.resource, found.place.pointer)
            yield Parameter(name, "path", place, place.child("schema"), True, Notation("simple", explode=False))


# --- on the wire --------------------------------------------------------------------------------------------------


def path_text(parameter: Parameter, value: Any, *, keeps_slashes: bool = False) -> str:
    """Return the text that replaces the placeholder of a path parameter."""
    escape = ENCODE_RESERVED["path rest"] if keeps_slashes else parameter.escape
    notation, written = parameter.notation, parameter.written(value)
    if _is_undefined(written):
        return ""
    if notation.style == "matrix":
        pairs = expand_pairs(parameter.name, written, notation, escape)
        return "".join(f";{key}={text}" if text else f";{key}" for key, text in pairs)
    if notation.style == "label":
        return "." + _joined(written, notation, escape, separator="." if notation.explode else ",")
    return _joined(written, notation, escape, separator=notation.delimiter(encode))


def query_pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Return the encoded pairs that a query parameter adds to the query string."""
    pairs = expand_pairs(parameter.name, parameter.written(value), parameter.notation, parameter.escape)
    # A required parameter is sent even where its value is empty.
    return pairs or ([(encode(parameter.name), "")] if parameter.allow_empty or parameter.required else [])


def querystring_text(parameter: Parameter, value: Any) -> str:
    """Return the whole query string, written in the media type of a `querystring` parameter."""
    if parameter.content_type == "application/x-www-form-urlencoded":
        return form_text(value) if isinstance(value, dict) else scalar_text(value)
    return encode(parameter.written(value))


def header_text(value: Any, notation: Notation) -> str | None:
    """Return a header's value, which is never percent-encoded."""
    return None if _is_undefined(value) else _joined(value, notation, unescaped, notation.delimiter(unescaped))


def cookie_texts(parameter: Parameter, value: Any) -> list[str]:
    """Return the cookies as `name=value`: `form` writes them like a query, `cookie` (3.2) unescaped (RFC 6265)."""
    name, notation, written = parameter.name, parameter.notation, parameter.written(value)
    if notation.style == "cookie":
        return [f"{key}={text}" for key, text in expand_pairs(name, written, notation, unescaped, unescaped)]
    pairs = expand_pairs(name, written, notation, parameter.escape)
    return [join_pairs(pairs)] if pairs else []


Encode: TypeAlias = Callable[[str], str]

_TRIPLE: Final = re.compile(r"(%[0-9A-Fa-f]{2})")
# A fragment sign would end the request; in a query, `&` would begin another parameter and `+` be read as a space; in a path,
# a question mark would end it, and a slash begin another segment.
_RESERVED_IN_QUERY: Final = ":/?[]@!$'()*,;="
_RESERVED_IN_PATH: Final = ":[]@!$&'()*+,;="


def encode(text: str) -> str:
    """Percent-encode all but unreserved characters."""
    return quote(text, safe="", errors="surrogatepass")


def unescaped(text: str) -> str:
    return text


def _encode_around_triples(text: str, safe: str) -> str:
    parts = _TRIPLE.split(text)
    return "".join(part if index % 2 else quote(part, safe=safe) for index, part in enumerate(parts))


# Reserved expansion, by location: reserved characters and percent-encoded triples pass as they are.
ENCODE_RESERVED: Final[dict[str, Encode]] = {
    "query": partial(_encode_around_triples, safe=_RESERVED_IN_QUERY),
    "cookie": partial(_encode_around_triples, safe=_RESERVED_IN_QUERY.replace(";", "")),  # which begins another cookie
    "path": partial(_encode_around_triples, safe=_RESERVED_IN_PATH),
    "path rest": partial(_encode_around_triples, safe=f"{_RESERVED_IN_PATH}/"),  # for `{+rest}`: slashes stay
}


def scalar_text(value: Any) -> str:
    """Write a value as text: JSON words for booleans, whole floats as integers, JSON for nested values."""
    if isinstance(value, str):
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value.decode() if isinstance(value, bytes) else strict_json(value)


def strict_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _members(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(str(key), each) for key, each in value.items() if each is not None]


def _elements(value: list[Any]) -> list[Any]:
    return [each for each in value if each is not None]


def _is_undefined(value: Any) -> bool:
    """RFC 6570: null, and a list or object without a defined member, are as if they were not there."""
    if isinstance(value, dict):
        return not _members(value)
    if isinstance(value, (list, tuple)):
        return not _elements(list(value))
    return value is None


def _joined(value: Any, notation: Notation, escape: Encode, separator: str) -> str:
    if isinstance(value, dict) and notation.explode:
        return separator.join(f"{escape(member)}={escape(scalar_text(each))}" for member, each in _members(value))
    return separator.join(escape(scalar_text(each)) for each in _flat(value))


def _flat(value: Any) -> Iterator[Any]:
    """Flatten a value to scalars: names and values of an object in turn."""
    if isinstance(value, dict):
        for member, each in _members(value):
            yield member
            yield each
    elif isinstance(value, list):
        yield from _elements(value)
    else:
        yield value


# --- pairs: queries, urlencoded bodies, cookies -------------------------------------------------------------------


def expand_pairs(
    name: str, value: Any, notation: Notation, escape: Encode, escape_name: Encode = encode
) -> list[tuple[str, str]]:
    """Return the encoded pairs of a value, without their delimiters."""
    if _is_undefined(value):
        return []
    key = escape_name(name)
    if notation.style == "deepObject" and isinstance(value, (dict, list)):
        return [(escape_name(path), escape(scalar_text(each))) for path, each in _deep(name, value)]
    if isinstance(value, list) and notation.explode:
        return [(key, escape(scalar_text(each))) for each in _elements(value)]
    if isinstance(value, dict) and notation.explode:
        return [pair for member, each in _members(value) for pair in _member_pairs(member, each, escape)]
    return [(key, notation.delimiter(encode).join(escape(scalar_text(each)) for each in _flat(value)))]


def _member_pairs(member: str, value: Any, escape: Encode) -> list[tuple[str, str]]:
    """Return the pairs for a member of an exploded object; a list of scalars repeats the name."""
    key = escape(member) if escape is unescaped else escape(member).replace("=", "%3D")  # which would end the name
    if isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
        return [(key, escape(scalar_text(each))) for each in _elements(value)]
    return [(key, escape(scalar_text(value)))]


def _deep(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Return the leaves of a nested value as `a[b][c]`; list items are numbered, which most servers read."""
    if isinstance(value, dict):
        for member, each in _members(value):
            yield from _deep(f"{path}[{member}]", each)
    elif isinstance(value, list):
        for index, each in enumerate(_elements(value)):
            yield from _deep(f"{path}[{index}]", each)
    else:
        yield path, value


def join_pairs(pairs: list[tuple[str, str]]) -> str:
    return "&".join(f"{name}={value}" for name, value in pairs)


# --- forms --------------------------------------------------------------------------------------------------------


def encode_form(text: str) -> str:
    """Percent-encode for a form: a space is a plus sign."""
    return quote(text, safe=" ", errors="surrogatepass").replace(" ", "+")


def form_text(value: dict[str, Any]) -> str:
    """Encode an object as `application/x-www-form-urlencoded`: lists repeat their name, nested values are JSON."""
    return join_pairs([pair for name, each in _members(value) for pair in form_pairs(name, each)])


def form_pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """Return one field of a form without its own encoding: each item of a list, nested values as JSON."""
    if value is None:
        return []
    items = _elements(value) if isinstance(value, list) else [value]
    return [(encode_form(name), encode_form(scalar_text(each))) for each in items]
