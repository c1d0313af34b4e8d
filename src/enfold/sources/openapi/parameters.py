"""Parameter objects of every version, and their values as text by the style tables of OpenAPI 3.2 and RFC 6570. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from enfold.sources.openapi.document import DocumentPlace, Library
from enfold.sources.openapi.operations import FoundOperation, is_json

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


class MalformedOperationError(ValueError):
    """An operation whose request cannot be built; it is left out of the import."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter: what it is called on the wire, and how its value is written there."""

    name: str
    location: str
    place: DocumentPlace  # the parameter object
    schema: DocumentPlace
    required: bool
    style: str
    explode: bool
    allow_reserved: bool = False
    allow_empty: bool = False
    content_type: str | None = None
    items: Any = None  # of a list of 2.0: its lists may have a collectionFormat of their own

    @property
    def key(self) -> tuple[str, str]:
        """The key of a parameter: location and name, case-insensitive in headers."""
        return self.location, self.name.lower() if self.location == "header" else self.name

    def written(self, value: Any) -> Any:
        """Return the value of a parameter with `content` as text of its media type; that of any other as it is."""
        if self.content_type is None:
            return value
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
    style, explode = collection_style(node.get("collectionFormat")) if is_old else _style(node)
    content_type, schema = (None, place) if is_old else _content(place)
    return Parameter(
        name,
        location,
        place,
        schema,
        required=node.get("required") is True or location == "path",
        style=style,
        explode=explode,
        allow_reserved=node.get("allowReserved") is True,
        allow_empty=node.get("allowEmptyValue") is True,
        content_type=content_type,
        items=node.get("items") if is_old else None,
    )


def collection_style(collection_format: Any) -> tuple[str, bool]:
    """Return the style and explode of 2.0's collectionFormat; its default is csv, not multi."""
    if collection_format == "multi":
        return "form", True
    return _COLLECTION_STYLES.get(str(collection_format), "form"), False


def with_inner_lists_joined(value: Any, items: Any) -> Any:
    """Join inner lists of a 2.0 list to text, by the collectionFormat of their level."""
    if not isinstance(value, list) or not isinstance(items, dict) or items.get("type") != "array":
        return value
    delimiter = DELIMITERS.get(collection_style(items.get("collectionFormat"))[0], ",")
    rows = [with_inner_lists_joined(each, items.get("items")) for each in value]
    return [delimiter.join(map(scalar_text, each)) if isinstance(each, list) else each for each in rows]


def _style(node: dict[str, Any]) -> tuple[str, bool]:
    """Return the style and explode of a parameter since 3.0, or their defaults."""
    style, explode = node.get("style"), node.get("explode")
    if not isinstance(style, str):
        style = "form" if node["in"] in ("query", "cookie") else "simple"
    return style, explode if isinstance(explode, bool) else style in ("form", "cookie")


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
            yield Parameter(name, "path", place, place.child("schema"), required=True, style="simple", explode=False)


# --- on the wire --------------------------------------------------------------------------------------------------


def path_text(parameter: Parameter, value: Any, *, keeps_slashes: bool = False) -> str:
    """Return the text that replaces the placeholder of a path parameter."""
    escape = ENCODE_RESERVED["path rest"] if keeps_slashes else _encoder(parameter)
    return expand_path(parameter.name, parameter.written(value), parameter.style, parameter.explode, escape)


def query_pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Return the encoded pairs that a query parameter adds to the query string."""
    written, escape = parameter.written(value), _encoder(parameter)
    pairs = expand_query(parameter.name, written, parameter.style, parameter.explode, escape)
    # A required parameter is sent even where its value is empty.
    return pairs or ([(encode(parameter.name), "")] if parameter.allow_empty or parameter.required else [])


def querystring_text(parameter: Parameter, value: Any) -> str:
    """Return the whole query string, written in the media type of a `querystring` parameter."""
    if parameter.content_type == "application/x-www-form-urlencoded":
        return form_text(value) if isinstance(value, dict) else scalar_text(value)
    return encode(parameter.written(value))


def header_text(parameter: Parameter, value: Any) -> str | None:
    return expand_header(parameter.written(value), parameter.style, parameter.explode)


def cookie_texts(parameter: Parameter, value: Any) -> list[str]:
    """Return the cookies as `name=value`."""
    written, escape = parameter.written(value), _encoder(parameter)
    return expand_cookie(parameter.name, written, parameter.style, parameter.explode, escape)


def _encoder(parameter: Parameter) -> Encode:
    return ENCODE_RESERVED[parameter.location] if parameter.allow_reserved else encode


Encode: TypeAlias = Callable[[str], str]

_TRIPLE: Final = re.compile(r"(%[0-9A-Fa-f]{2})")
# A fragment sign would end the request; in a query, `&` would begin another parameter and `+` be read as a space; in a path,
# a question mark would end it, and a slash begin another segment.
_RESERVED_IN_QUERY: Final = ":/?[]@!$'()*,;="
_RESERVED_IN_PATH: Final = ":[]@!$&'()*+,;="

DELIMITERS: Final = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}


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


# --- path ---------------------------------------------------------------------------------------------------------


def expand_path(name: str, value: Any, style: str, explode: bool, escape: Encode) -> str:
    """Return the text for a placeholder of a path."""
    if _is_undefined(value):
        return ""
    if style == "matrix":
        pairs = expand_query(name, value, "form", explode, escape)
        return "".join(f";{key}={text}" if text else f";{key}" for key, text in pairs)
    if style == "label":
        return "." + _joined(value, explode, escape, separator="." if explode else ",")
    if style in DELIMITERS:  # only 2.0 has these in a path
        return encode(DELIMITERS[style]).join(escape(scalar_text(each)) for each in _flat(value))
    return _joined(value, explode, escape, separator=",")


def _joined(value: Any, explode: bool, escape: Encode, separator: str) -> str:
    if isinstance(value, dict) and explode:
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


# --- query and urlencoded bodies ----------------------------------------------------------------------------------


def expand_query(
    name: str, value: Any, style: str, explode: bool, escape: Encode, escape_name: Encode = encode
) -> list[tuple[str, str]]:
    """Return the encoded pairs of a query string, without their delimiters."""
    if _is_undefined(value):
        return []
    key = escape_name(name)
    if style == "deepObject" and isinstance(value, (dict, list)):
        return [(escape_name(path), escape(scalar_text(each))) for path, each in _deep(name, value)]
    if isinstance(value, list) and explode:
        return [(key, escape(scalar_text(each))) for each in _elements(value)]
    if isinstance(value, dict) and explode:
        return [pair for member, each in _members(value) for pair in _member_pairs(member, each, escape)]
    delimiter = encode(DELIMITERS[style]) if style in DELIMITERS else ","
    return [(key, delimiter.join(escape(scalar_text(each)) for each in _flat(value)))]


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


# --- header -------------------------------------------------------------------------------------------------------


def expand_header(value: Any, style: str, explode: bool) -> str | None:
    """Return a header's value, which is never percent-encoded."""
    if _is_undefined(value):
        return None
    separator = DELIMITERS.get(style, ",")
    return _joined(value, explode, unescaped, separator)


# --- cookie -------------------------------------------------------------------------------------------------------


def expand_cookie(name: str, value: Any, style: str, explode: bool, escape: Encode) -> list[str]:
    """Return the cookies of one parameter: `form` writes it like a query, `cookie` (3.2) unescaped (RFC 6265)."""
    if _is_undefined(value):
        return []
    if style != "cookie":
        return [join_pairs(expand_query(name, value, "form", explode, escape))]
    pairs = expand_query(name, value, "form", explode, unescaped, unescaped)
    return [f"{key}={text}" for key, text in pairs]


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
