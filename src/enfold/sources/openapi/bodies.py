"""Request bodies: what a document declares, and a value written as one of its media types."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.errors import CallError, invalid_argument
from enfold.sources.openapi.document import DocumentPlace, Library
from enfold.sources.openapi.operations import (
    SEQUENCE_STREAMS,
    FoundOperation,
    bare,
    declared_content,
    is_bytes,
    is_form,
    is_json,
    is_multipart,
    is_range,
    is_stream,
    is_text,
    is_within,
    is_yaml,
    json_first,
    listed_types,
    parameter,
    plainest,
    recognized,
)
from enfold.sources.openapi.parameters import (
    ENCODE_RESERVED,
    MalformedOperationError,
    collection_style,
    declared_parameters,
    encode_form,
    expand_header,
    expand_query,
    form_pairs,
    join_pairs,
    scalar_text,
    unescaped,
    with_inner_lists_joined,
)

# A file is base64 text, or an object that also names it. In this process it may as well be bytes or a path, which no
# JSON type describes: hence the last branch, and the check when the file is read.
FILE_SCHEMA: Final[dict[str, Any]] = {
    "description": "A file: its content as base64 text, or an object with `data`, `filename` and `content_type`.",
    "anyOf": [
        {"type": "string", "contentEncoding": "base64"},
        {
            "type": "object",
            "properties": {
                "data": {"contentEncoding": "base64"},
                "filename": {"type": "string"},
                "content_type": {"type": "string"},
                "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["data"],
        },
        {"contentEncoding": "binary"},
    ],
}

_JSON: Final = "application/json"
_URLENCODED: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_OWN_HEADERS: Final = frozenset({"content-disposition", "content-type"})  # of a part: we write these ourselves


class Media(msgspec.Struct, frozen=True):
    """One media type a body may have, with its schema and how its parts are encoded."""

    type: str
    schema: DocumentPlace
    encoding: DocumentPlace
    is_sequence: bool = False  # described by an itemSchema: one item after another
    headers: dict[str, dict[str, str | None]] = {}  # of parts: by field and name, None where the caller gives it
    place: DocumentPlace | None = None  # of all that; may have examples


class Body(msgspec.Struct, frozen=True):
    """The body of an operation: its media types, JSON first."""

    place: DocumentPlace
    required: bool
    media: tuple[Media, ...]


def read_body(library: Library, found: FoundOperation) -> Body | None:
    """Read the body that an operation declares, or None."""
    declared = found.place.child("requestBody")
    if library.version == "2.0" or declared.node is None:
        return _read_old(library, found)
    place = library.follow_described(declared)
    if not isinstance(place.node, dict):
        raise MalformedOperationError("a request body must be an object")
    kinds = tuple(_media(library, name, each) for name, each in declared_content(library, place).items())
    return Body(place, place.node.get("required") is True, kinds)


def _media(library: Library, name: str, place: DocumentPlace) -> Media:
    if "itemSchema" in place.fields and "schema" not in place.fields:
        return Media(name, place.child("itemSchema"), place.child("itemEncoding"), is_sequence=True, place=place)
    encoding = place.child("encoding")
    headers = _part_headers(library, encoding) if is_multipart(name) else {}
    return Media(name, place.child("schema"), encoding, headers=headers, place=place)


def _part_headers(library: Library, encoding: DocumentPlace) -> dict[str, dict[str, str | None]]:
    """Return the headers of parts by their encoding, with fixed values; the content type is not one of them."""
    return {
        field: {
            name: _fixed_header(library, header)
            for name, header in each.child("headers").items()
            if name.lower() != "content-type"
        }
        for field, each in encoding.items()
        if isinstance(each.child("headers").node, dict)
    }


def _fixed_header(library: Library, place: DocumentPlace) -> str | None:
    """Return the only or the default value of a header; None if the caller has to pass it."""
    schema = library.follow_if_possible(place).child("schema")
    node = library.follow_if_possible(schema).fields
    listed = node.get("enum")
    only = listed[0] if isinstance(listed, list) and len(listed) == 1 else node.get("default")
    value = node.get("const", only)
    return None if value is None else expand_header(value, "simple", explode=False)


# --- 2.0 ----------------------------------------------------------------------------------------------------------


def _read_old(library: Library, found: FoundOperation) -> Body | None:
    """Read the body of 2.0: a parameter in `body`, or all those in `formData` together."""
    fields: dict[str, DocumentPlace] = {}
    for place in map(library.follow, declared_parameters(found)):
        if place.node.get("in") == "body":
            kinds = json_first(listed_types(library, found, "consumes")) or [_JSON]
            schema, nothing = place.child("schema"), place.child("encoding")
            return Body(
                place, place.node.get("required") is True, tuple(Media(each, schema, nothing) for each in kinds)
            )
        if place.node.get("in") == "formData" and isinstance(place.node.get("name"), str):
            fields[place.node["name"]] = place
    return _form_body(library, found, fields) if fields else None


def _form_body(library: Library, found: FoundOperation, fields: dict[str, DocumentPlace]) -> Body:
    has_file = any(each.node.get("type") == "file" for each in fields.values())
    required = [name for name, each in fields.items() if each.node.get("required") is True]
    schema = {
        "type": "object",
        "properties": {name: each.node for name, each in fields.items()},
        **({"required": required} if required else {}),
    }
    encoding = {name: _old_encoding(each.node) for name, each in fields.items() if each.node.get("type") == "array"}
    listed = listed_types(library, found, "consumes")
    kinds = [each for each in listed if is_form(each) or is_multipart(each)]
    if has_file:
        kinds = [each for each in kinds if is_multipart(each)]
    kind = kinds[0] if kinds else _MULTIPART if has_file else _URLENCODED
    base = found.place
    whole = Media(
        kind, DocumentPlace(schema, base.resource, base.pointer), DocumentPlace(encoding, base.resource, base.pointer)
    )
    return Body(base.child("parameters"), bool(required), (whole,))


def _old_encoding(node: dict[str, Any]) -> dict[str, Any]:
    style, explode = collection_style(node.get("collectionFormat"))
    return {"style": style, "explode": explode, "items": node.get("items")}


# --- on the wire --------------------------------------------------------------------------------------------------


class FilePart(msgspec.Struct, frozen=True):
    """A file as it was given: content, and perhaps a name and a type."""

    data: bytes
    filename: str | None = None
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def is_binary_range(kind: Media, library: Library) -> bool:
    """Whether a media range takes files: of images and the like, or where its schema is that of bytes."""
    if not is_range(kind.type):
        return False
    node = library.follow_if_possible(kind.schema).fields
    if not node:
        return bare(kind.type) not in ("*/*", "text/*")
    declared = node.get("type")
    may_be_text = declared in (None, "string", "file") or (isinstance(declared, list) and "string" in declared)
    is_binary = node.get("format") in ("binary", "byte") or declared == "file" or "contentMediaType" in node
    return may_be_text and (is_binary or is_bytes(kind.type))


class Parts(msgspec.Struct, frozen=True):
    """What the schema of a body says about its parts: which are files, and their content types where it names them."""

    files: frozenset[str] = frozenset()
    types: dict[str, str] = {}


def write_body(kind: Media, value: Any, described: Parts, wanted: str | None = None) -> tuple[bytes, str]:
    """Encode a value for a media type; return the bytes and the content type. `wanted` is the caller's choice in a range."""
    if is_range(kind.type):
        return _write_in_range(kind, value, described, wanted)
    if is_json(kind.type) or (is_yaml(kind.type) and not isinstance(value, str)):
        return _json(value), kind.type
    if is_form(kind.type) and isinstance(value, dict):
        pairs = [
            pair for name, each in value.items() for pair in _form_pairs(name, each, kind.encoding.child(name).fields)
        ]
        return join_pairs(pairs).encode(), kind.type
    if is_multipart(kind.type):
        return _multipart(kind, value, described)
    if is_stream(kind.type) and isinstance(value, list):
        start = b"\x1e" if bare(kind.type) in SEQUENCE_STREAMS else b""
        return b"".join(start + _json(each) + b"\n" for each in value), kind.type
    if is_text(kind.type) and not isinstance(value, bytes):
        charset = parameter(kind.type, "charset") or "utf-8"
        return scalar_text(value).encode(charset, "replace"), kind.type
    return read_file(value).data, kind.type


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise CallError("VALIDATION_ERROR", f"The body cannot be written as JSON: {error}") from error


def _write_in_range(kind: Media, value: Any, described: Parts, wanted: str | None) -> tuple[bytes, str]:
    """Choose within a media range: the caller's type, else what the value looks like, else the plainest."""
    own = wanted or (value.get("content_type") if is_described_file(value) else None)
    if isinstance(own, str) and not is_range(own) and not is_described_file(value):
        return write_body(msgspec.structs.replace(kind, type=own), value, described)
    if isinstance(value, str) and not _takes_base64(kind):
        return value.encode(), own or plainest("text/*" if is_within("text/plain", kind.type) else kind.type)
    if isinstance(value, (str, bytes, bytearray, memoryview, os.PathLike, FilePart)) or is_described_file(value):
        part = read_file(value)
        return part.data, own or _type_of_file(part, kind.type)
    return _json(value), _JSON


def is_described_file(value: Any) -> bool:
    """Whether a value is a file as `{data, filename, content_type}`, and not an object that happens to have `data`."""
    if not isinstance(value, dict) or not set(value) <= {"data", "filename", "content_type", "headers"}:
        return False
    return isinstance(value.get("data"), (str, bytes, bytearray, os.PathLike))


def _takes_base64(kind: Media) -> bool:
    declared = kind.schema.fields
    return declared.get("format") == "binary" or declared.get("type") == "file" or is_bytes(kind.type)


def _type_of_file(part: FilePart, declared: str) -> str:
    """Choose the type of a file within the declared types: its own, by name, by content, the plainest."""
    listed = [each.strip() for each in declared.split(",") if each.strip()] or ["*/*"]
    guesses = [part.content_type, _guessed(part.filename) if part.filename else None, recognized(part.data)]
    for guess in guesses:
        if guess and any(is_within(guess, each) for each in listed):
            return guess
    return next((each for each in listed if not is_range(each)), plainest(listed[0]))


def read_file(value: Any, argument: str = "body") -> FilePart:
    """Read a file argument: bytes, a path, base64 text, or an object with more fields."""
    if isinstance(value, FilePart):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return FilePart(bytes(value))
    if isinstance(value, os.PathLike):
        # Only a caller in this process can hand over a path object; text is never taken for a path.
        return FilePart(Path(value).read_bytes(), Path(value).name)
    if isinstance(value, dict) and "data" in value:
        inner = read_file(value["data"], argument)
        declared = value.get("headers")
        headers = declared.items() if isinstance(declared, dict) else ()
        given = tuple((str(name), scalar_text(each)) for name, each in headers)
        return FilePart(inner.data, value.get("filename") or inner.filename, value.get("content_type"), given)
    if isinstance(value, str):
        try:
            return FilePart(b64decode("".join(value.split()), validate=True))
        except ValueError:
            raise invalid_argument(argument, "constraint", "base64 text") from None
    raise invalid_argument(argument, "type", "a file: base64 text, or an object with `data`")


# --- forms --------------------------------------------------------------------------------------------------------


def _form_pairs(name: str, value: Any, encoding: dict[str, Any]) -> list[tuple[str, str]]:
    if not {"style", "explode", "allowReserved"} & set(encoding):
        return form_pairs(name, value)
    style = encoding.get("style", "form")
    explode = encoding.get("explode", style == "form")
    escape = ENCODE_RESERVED["query"] if encoding.get("allowReserved") is True else encode_form
    return expand_query(name, with_inner_lists_joined(value, encoding.get("items")), style, explode, escape)


def _multipart(kind: Media, value: Any, described: Parts) -> tuple[bytes, str]:
    boundary = os.urandom(16).hex()
    named = isinstance(value, dict)
    parts = _named_parts(kind, value, described) if named else _unnamed_parts(value)
    body = b"".join(_part(boundary, name, part) for name, part in parts)
    return body + f"--{boundary}--\r\n".encode(), f"{bare(kind.type)}; boundary={boundary}"


def _named_parts(kind: Media, value: dict[str, Any], described: Parts) -> Iterator[tuple[str, FilePart]]:
    for name, each in value.items():
        encoding = kind.encoding.child(name).fields
        if each is None:
            continue
        given = with_inner_lists_joined(each, encoding.get("items"))
        for item in given if isinstance(given, list) and not _is_one_part(encoding) else [given]:
            for key, part in _field(name, item, encoding, described):
                yield key, _with_headers(part, kind.headers.get(name, {}))


def _with_headers(part: FilePart, declared: dict[str, str | None]) -> FilePart:
    """Add the headers that the encoding fixes to a part, unless the caller set them."""
    given = {name.lower() for name, _ in part.headers}
    fixed = [(name, value) for name, value in declared.items() if value is not None and name.lower() not in given]
    return msgspec.structs.replace(part, headers=(*fixed, *part.headers)) if fixed else part


def _is_one_part(encoding: dict[str, Any]) -> bool:
    """Whether a list is one part, by its encoding; otherwise each item is a part."""
    return is_json(str(encoding.get("contentType", ""))) or encoding.get("explode") is False


def _field(name: str, value: Any, encoding: dict[str, Any], described: Parts) -> Iterator[tuple[str, FilePart]]:
    declared = _first_type(encoding)
    by_schema = None if "contentType" in encoding else described.types.get(name)
    if name in described.files or isinstance(value, (bytes, bytearray, os.PathLike, FilePart)):
        yield name, _as_file(read_file(value, name), name, encoding.get("contentType", by_schema))
    elif by_schema is not None and isinstance(value, str):  # it is content of that type already
        yield name, FilePart(value.encode(), content_type=by_schema)
    elif {"style", "explode"} & set(encoding) and declared is None:
        style = encoding.get("style", "form")
        explode, raw = encoding.get("explode", style == "form"), unescaped
        for key, text in expand_query(name, value, style, explode, raw, raw):
            yield key, FilePart(text.encode())
    elif isinstance(value, (dict, list)) or is_json(declared or ""):
        yield name, FilePart(_json(value), content_type=declared or _JSON)
    else:
        yield name, FilePart(scalar_text(value).encode(), content_type=declared)


def _first_type(encoding: dict[str, Any]) -> str | None:
    declared = encoding.get("contentType")
    if not isinstance(declared, str):
        return None
    listed = [each.strip() for each in declared.split(",")]
    return next((each for each in listed if each and not is_range(each)), None)


def _as_file(part: FilePart, name: str, declared: Any) -> FilePart:
    named = msgspec.structs.replace(part, filename=part.filename or name)
    kind = part.content_type or (_type_of_file(named, declared) if isinstance(declared, str) else None)
    return msgspec.structs.replace(named, content_type=kind or _guessed(part.filename or name))


def _guessed(filename: str) -> str:
    import mimetypes  # slow to import, and only for files

    return mimetypes.guess_type(filename)[0] or "application/octet-stream"


def _unnamed_parts(value: Any) -> Iterator[tuple[None, FilePart]]:
    """Return the parts of other multipart types, which have an order and no names."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            yield None, FilePart(each.encode(), content_type="text/plain; charset=utf-8")
        elif isinstance(each, (bytes, FilePart, os.PathLike)) or (isinstance(each, dict) and "data" in each):
            yield None, read_file(each)
        else:
            yield None, FilePart(_json(each), content_type=_JSON)


def _part(boundary: str, name: str | None, part: FilePart) -> bytes:
    lines = [f"--{boundary}"]
    if name is not None:
        filename = "" if part.filename is None else f'; filename="{_quoted(part.filename)}"'
        lines.append(f'Content-Disposition: form-data; name="{_quoted(name)}"{filename}')
    if part.content_type is not None:
        lines.append(f"Content-Type: {' '.join(part.content_type.splitlines())}")
    lines += [f"{_one_line(key)}: {_one_line(value)}" for key, value in part.headers if key.lower() not in _OWN_HEADERS]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + part.data + b"\r\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quoted(text: str) -> str:
    """Quote a name for a part's header as browsers do, so that it cannot end the header."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
