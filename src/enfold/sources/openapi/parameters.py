"""Parameter objects of every version as one kind of value, and what each puts on the wire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from enfold.sources.openapi import styles
from enfold.sources.openapi.document import DocumentPlace, Library
from enfold.sources.openapi.media import is_json
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
        """What tells parameters apart: location and name, whose case counts except in headers."""
        return self.location, self.name.lower() if self.location == "header" else self.name


def read_parameters(library: Library, found: FoundOperation) -> list[Parameter]:
    """The parameters of an operation, those of its path item included, and one for each placeholder nobody declared."""
    read: dict[tuple[str, str], Parameter] = {}
    for place in declared_parameters(found):
        parameter = _read(library.follow_described(place), library.version)
        if parameter is not None:
            read[parameter.key] = parameter
    placeholders = list(placeholder_names(found.path))
    kept = [each for each in read.values() if each.location != "path" or each.name in placeholders]
    return kept + list(_undeclared(found, placeholders, kept))


def placeholder_names(path: str) -> Iterator[str]:
    """The names in a path template; the operators of `{+name}` and `{name*}` are no part of them."""
    for text in PLACEHOLDER.findall(path.partition("#")[0]):
        yield placeholder_name(text)


def placeholder_name(text: str) -> str:
    return text.lstrip("+#./;?&").rstrip("*") or text


def declared_parameters(found: FoundOperation) -> Iterator[DocumentPlace]:
    """What an operation and its path item list; in 2.0 the parts of its body are among them."""
    for owner in (found.item, found.place):
        listed = owner.child("parameters")
        if listed.node is not None and not isinstance(listed.node, list):
            raise MalformedOperationError("parameters is a list")
        yield from listed.elements()


def _read(place: DocumentPlace, version: str) -> Parameter | None:
    """The parameter at a place; None for one that is part of a body, or that no caller may set."""
    node = place.node
    if not isinstance(node, dict):
        raise MalformedOperationError("a parameter is an object")
    name, location = node.get("name"), node.get("in")
    if not isinstance(name, str) or not isinstance(location, str):
        raise MalformedOperationError("a parameter needs a name and a location (`in`)")
    if location in ("body", "formData"):
        return None
    if location not in LOCATIONS:
        raise MalformedOperationError(f"there is no parameter location {location!r}")
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
    """The style and explode that 2.0's collectionFormat stands for; its default is csv, not multi."""
    if collection_format == "multi":
        return "form", True
    return _COLLECTION_STYLES.get(str(collection_format), "form"), False


def with_inner_lists_joined(value: Any, items: Any) -> Any:
    """A list of 2.0 with each list in it as one text, by the collectionFormat that its own level declares."""
    if not isinstance(value, list) or not isinstance(items, dict) or items.get("type") != "array":
        return value
    delimiter = styles.DELIMITERS.get(collection_style(items.get("collectionFormat"))[0], ",")
    rows = [with_inner_lists_joined(each, items.get("items")) for each in value]
    return [delimiter.join(map(styles.scalar_text, each)) if isinstance(each, list) else each for each in rows]


def _style(node: dict[str, Any]) -> tuple[str, bool]:
    """The style and explode of a parameter since 3.0, or their defaults."""
    style, explode = node.get("style"), node.get("explode")
    if not isinstance(style, str):
        style = "form" if node["in"] in ("query", "cookie") else "simple"
    return style, explode if isinstance(explode, bool) else style in ("form", "cookie")


def _content(place: DocumentPlace) -> tuple[str | None, DocumentPlace]:
    """The media type and schema of a parameter with `content`; else none, and the schema it has itself."""
    for media_type, media in place.child("content").items():
        return media_type, media.child("schema")
    return ("application/x-www-form-urlencoded" if place.node["in"] == "querystring" else None), place.child("schema")


def _undeclared(found: FoundOperation, placeholders: list[str], declared: list[Parameter]) -> Iterator[Parameter]:
    """A required scalar for each placeholder without a parameter; in the query part of a path, queries are declared."""
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
    """The text a path parameter puts in the place of its placeholder."""
    escape = styles.ENCODE_RESERVED["path rest"] if keeps_slashes else _encoder(parameter)
    if parameter.content_type is not None:
        return escape(content_text(parameter.content_type, value))
    return styles.expand_path(parameter.name, value, parameter.style, parameter.explode, escape)


def query_pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """The encoded pairs a query parameter adds to the query string."""
    escape = _encoder(parameter)
    if parameter.content_type is not None:
        return [(styles.encode(parameter.name), escape(content_text(parameter.content_type, value)))]
    pairs = styles.expand_query(parameter.name, value, parameter.style, parameter.explode, escape)
    # A required parameter is sent even where its value is empty.
    return pairs or ([(styles.encode(parameter.name), "")] if parameter.allow_empty or parameter.required else [])


def querystring_text(parameter: Parameter, value: Any) -> str:
    """The whole query string, as the media type of a `querystring` parameter writes it."""
    if parameter.content_type == "application/x-www-form-urlencoded":
        return styles.form_text(value) if isinstance(value, dict) else styles.scalar_text(value)
    return styles.encode(content_text(str(parameter.content_type), value))


def header_text(parameter: Parameter, value: Any) -> str | None:
    if parameter.content_type is not None:
        return content_text(parameter.content_type, value)
    return styles.expand_header(value, parameter.style, parameter.explode)


def cookie_texts(parameter: Parameter, value: Any) -> list[str]:
    """The cookies, `name=value` each."""
    if parameter.content_type is not None:
        return [f"{parameter.name}={styles.encode(content_text(parameter.content_type, value))}"]
    escape = _encoder(parameter)
    return styles.expand_cookie(parameter.name, value, parameter.style, parameter.explode, escape)


def _encoder(parameter: Parameter) -> styles.Encode:
    return styles.ENCODE_RESERVED[parameter.location] if parameter.allow_reserved else styles.encode


def content_text(content_type: str, value: Any) -> str:
    return styles.strict_json(value) if is_json(content_type) else styles.scalar_text(value)
