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
from enfold.sources.openapi.media_types import (
    SEQUENCE_STREAMS,
    bare,
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
    parameter,
    plainest,
    recognized,
)
from enfold.sources.openapi.operations import FoundOperation, declared_content, listed_types
from enfold.sources.openapi.parameters import (
    ENCODE_RESERVED,
    MalformedOperationError,
    Notation,
    declared_parameters,
    encode_form,
    expand_pairs,
    form_pairs,
    header_text,
    join_pairs,
    read_collection_format,
    read_notation,
    scalar_text,
    unescaped,
    with_inner_lists_joined,
)
from enfold.sources.reports import Problem

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


class Part(msgspec.Struct, frozen=True):
    """How one field of a form is written: what the document declares, and what its schema implies."""

    notation: Notation | None = None
    declared_types: str = ""  # separated by commas
    headers: dict[str, str] = {}  # with fixed values
    is_file: bool = False
    schema_type: str | None = None  # the media type that its schema names


class Fields(msgspec.Struct, frozen=True):
    """A body that is a plain object: its properties, and what the document explicitly allows beyond them."""

    properties: dict[str, Any]  # their schemas
    required: frozenset[str]
    hidden: frozenset[str] = frozenset()  # properties of the other direction: required or not, they are no input
    extra: Any = None  # the schema of fields that are not listed; None where there may be none


class Media(msgspec.Struct, frozen=True):
    """One media type a body may have, with its schema and what is known of its fields."""

    type: str
    schema: DocumentPlace
    parts: dict[str, Part] = {}
    fields: Fields | None = None  # which callers pass one by one; None for a body in one piece
    is_sequence: bool = False  # described by an itemSchema: one item after another
    place: DocumentPlace | None = None  # of all that; may have examples

    def part(self, name: str) -> Part:
        return self.parts.get(name, _PLAIN)

    @property
    def files(self) -> frozenset[str]:
        return frozenset(name for name, part in self.parts.items() if part.is_file)


_PLAIN: Final = Part()


class Body(msgspec.Struct, frozen=True):
    """The body of an operation: its media types, JSON first."""

    place: DocumentPlace
    required: bool
    media: tuple[Media, ...]


def read_body(library: Library, found: FoundOperation, problems: list[Problem]) -> Body | None:
    """Read the body that an operation declares, or None; what callers have to give themselves is a problem."""
    declared = found.place.child("requestBody")
    if library.version == "2.0" or declared.node is None:
        return _read_old(library, found)
    place = library.follow_described(declared)
    if not isinstance(place.node, dict):
        raise MalformedOperationError("a request body must be an object")
    kinds = tuple(_media(library, name, each, problems) for name, each in declared_content(library, place).items())
    return Body(place, place.node.get("required") is True, kinds)


def _media(library: Library, name: str, place: DocumentPlace, problems: list[Problem]) -> Media:
    if "itemSchema" in place.fields and "schema" not in place.fields:
        return Media(name, place.child("itemSchema"), is_sequence=True, place=place)
    parts = {field: _part(library, name, field, each, problems) for field, each in place.child("encoding").items()}
    return Media(name, place.child("schema"), parts, place=place)


def _part(library: Library, kind: str, field: str, encoding: DocumentPlace, problems: list[Problem]) -> Part:
    declared = encoding.fields
    headers: dict[str, str] = {}
    for name, header in encoding.child("headers").items() if is_multipart(kind) else ():
        value = _fixed_header(library, header)
        if value is not None:
            headers[name] = value
        elif name.lower() != "content-type":
            why = f"the header {name} of the part {field} is only sent if its `headers` contain it"
            problems.append(Problem(encoding.where, why))
    notation = read_notation(declared) if {"style", "explode", "allowReserved"} & declared.keys() else None
    return Part(notation, encoding.text("contentType"), headers)


def _fixed_header(library: Library, place: DocumentPlace) -> str | None:
    """Return the only or the default value of a header; None if the caller has to pass it."""
    schema = library.follow_if_possible(place).child("schema")
    node = library.follow_if_possible(schema).fields
    listed = node.get("enum")
    only = listed[0] if isinstance(listed, list) and len(listed) == 1 else node.get("default")
    value = node.get("const", only)
    return None if value is None else header_text(value, Notation("simple", explode=False))


# --- 2.0 ----------------------------------------------------------------------------------------------------------


def _read_old(library: Library, found: FoundOperation) -> Body | None:
    """Read the body of 2.0: a parameter in `body`, or all those in `formData` together."""
    fields: dict[str, DocumentPlace] = {}
    for place in map(library.follow, declared_parameters(found)):
        if place.node.get("in") == "body":
            kinds = json_first(listed_types(library, found, "consumes")) or [_JSON]
            media = tuple(Media(each, place.child("schema")) for each in kinds)
            return Body(place, place.node.get("required") is True, media)
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
    lists = {name: each.node for name, each in fields.items() if each.node.get("type") == "array"}
    parts = {name: Part(read_collection_format(node)) for name, node in lists.items()}
    listed = listed_types(library, found, "consumes")
    kinds = [each for each in listed if is_form(each) or is_multipart(each)]
    if has_file:
        kinds = [each for each in kinds if is_multipart(each)]
    kind = kinds[0] if kinds else _MULTIPART if has_file else _URLENCODED
    base = found.place
    whole = Media(kind, DocumentPlace(schema, base.resource, base.pointer), parts)
    return Body(base.child("parameters"), bool(required), (whole,))


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


def write_body(kind: Media, value: Any, wanted: str | None = None) -> tuple[bytes, str]:
    """Encode a value for a media type; return the bytes and the content type. `wanted` is the caller's choice in a range."""
    if is_range(kind.type):
        return _write_in_range(kind, value, wanted)
    if is_json(kind.type) or (is_yaml(kind.type) and not isinstance(value, str)):
        return _json(value), kind.type
    if is_form(kind.type) and isinstance(value, dict):
        pairs = [pair for name, each in value.items() for pair in _form_pairs(name, each, kind.part(name).notation)]
        return join_pairs(pairs).encode(), kind.type
    if is_multipart(kind.type):
        return _multipart(kind, value)
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


def _write_in_range(kind: Media, value: Any, wanted: str | None) -> tuple[bytes, str]:
    """Choose within a media range: the caller's type, else what the value looks like, else the plainest."""
    own = wanted or (value.get("content_type") if is_described_file(value) else None)
    if isinstance(own, str) and not is_range(own) and not is_described_file(value):
        return write_body(msgspec.structs.replace(kind, type=own), value)
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
    listed = _listed(declared) or ["*/*"]
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


def _form_pairs(name: str, value: Any, notation: Notation | None) -> list[tuple[str, str]]:
    if notation is None:
        return form_pairs(name, value)
    escape = ENCODE_RESERVED["query"] if notation.allow_reserved else encode_form
    return expand_pairs(name, with_inner_lists_joined(value, notation.items), notation, escape)


def _multipart(kind: Media, value: Any) -> tuple[bytes, str]:
    boundary = os.urandom(16).hex()
    parts = _named_parts(kind, value) if isinstance(value, dict) else _unnamed_parts(value)
    body = b"".join(_written(boundary, name, part) for name, part in parts)
    return body + f"--{boundary}--\r\n".encode(), f"{bare(kind.type)}; boundary={boundary}"


def _named_parts(kind: Media, value: dict[str, Any]) -> Iterator[tuple[str, FilePart]]:
    for name, each in value.items():
        if each is None:
            continue
        part = kind.part(name)
        given = each if part.notation is None else with_inner_lists_joined(each, part.notation.items)
        for item in given if isinstance(given, list) and not _is_one_part(part) else [given]:
            for key, written in _field(name, item, part):
                yield key, _with_headers(written, part.headers)


def _with_headers(part: FilePart, fixed: dict[str, str]) -> FilePart:
    """Add the headers that the encoding fixes to a part, unless the caller set them."""
    given = {name.lower() for name, _ in part.headers}
    missing = [(name, value) for name, value in fixed.items() if name.lower() not in given]
    return msgspec.structs.replace(part, headers=(*missing, *part.headers)) if missing else part


def _is_one_part(part: Part) -> bool:
    """Whether a list is one part, by its encoding; otherwise each item is a part."""
    return is_json(part.declared_types) or (part.notation is not None and not part.notation.explode)


def _field(name: str, value: Any, part: Part) -> Iterator[tuple[str, FilePart]]:
    declared = next((each for each in _listed(part.declared_types) if not is_range(each)), None)
    by_schema = None if part.declared_types else part.schema_type
    if part.is_file or isinstance(value, (bytes, bytearray, os.PathLike, FilePart)):
        yield name, _as_file(read_file(value, name), name, part.declared_types or by_schema)
    elif by_schema is not None and isinstance(value, str):  # it is content of that type already
        yield name, FilePart(value.encode(), content_type=by_schema)
    elif part.notation is not None and declared is None:
        for key, text in expand_pairs(name, value, part.notation, unescaped, unescaped):
            yield key, FilePart(text.encode())
    elif isinstance(value, (dict, list)) or is_json(declared or ""):
        yield name, FilePart(_json(value), content_type=declared or _JSON)
    else:
        yield name, FilePart(scalar_text(value).encode(), content_type=declared)


def _listed(types: str) -> list[str]:
    return [each.strip() for each in types.split(",") if each.strip()]


def _as_file(part: FilePart, name: str, declared: str | None) -> FilePart:
    named = msgspec.structs.replace(part, filename=part.filename or name)
    kind = part.content_type or (None if declared is None else _type_of_file(named, declared))
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


def _written(boundary: str, name: str | None, part: FilePart) -> bytes:
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
