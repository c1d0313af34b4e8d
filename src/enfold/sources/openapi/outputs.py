"""The responses an operation declares: which mean success, which are streams, what their data looks like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from enfold.operation import ErrorSchema
from enfold.sources.openapi import media
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.openapi.operations import FoundOperation, declared_content, listed_types
from enfold.sources.openapi.schemas import ANYTHING, ConvertedSchema, Schema, Schemas
from enfold.sources.report import Problem
from enfold.sources.web.status_errors import code_of

_NOTHING: Final = ConvertedSchema({"type": "null"})
_TEXT: Final = ConvertedSchema({"type": "string"})
_BYTES: Final = ConvertedSchema({"type": "string", "contentEncoding": "base64"})


class DeclaredResponse(msgspec.Struct, frozen=True):
    """One declared response: its status as written (`200`, `2XX`, `default`) and its media types, JSON first."""

    status: str
    place: DocumentPlace
    media: dict[str, DocumentPlace]

    @property
    def plain_types(self) -> list[str]:
        return [each for each in self.media if not media.is_stream(each)]

    @property
    def stream_types(self) -> list[str]:
        return [each for each in self.media if media.is_stream(each)]


def read_responses(library: Library, found: FoundOperation, problems: list[Problem]) -> tuple[DeclaredResponse, ...]:
    """The responses of an operation; one that cannot be read is as if it were not declared, and a problem."""
    read: list[DeclaredResponse] = []
    for status, place in found.place.child("responses").items():
        if status.startswith("x-"):
            continue
        try:
            target = library.follow_described(place)
            read.append(DeclaredResponse(status, target, _media(library, found, target)))
        except BrokenReferenceError as error:
            problems.append(Problem(place.where, str(error)))
    return tuple(read)


def _media(library: Library, found: FoundOperation, place: DocumentPlace) -> dict[str, DocumentPlace]:
    if isinstance(place.child("content").node, dict):
        return declared_content(library, place)
    if library.version == "2.0" and "schema" in place.fields:
        return dict.fromkeys(media.json_first(listed_types(library, found, "produces")) or ["application/json"], place)
    return {}


def successes(responses: Iterable[DeclaredResponse]) -> tuple[DeclaredResponse, ...]:
    """The responses that mean success; where only a default is declared, it does."""
    listed = tuple(responses)
    found = tuple(each for each in listed if each.status.upper().startswith("2"))
    return found or tuple(each for each in listed if each.status == "default")


def errors(responses: Iterable[DeclaredResponse]) -> tuple[DeclaredResponse, ...]:
    """The responses that tell of a failure."""
    listed = tuple(responses)
    good = successes(listed)
    return tuple(each for each in listed if each not in good and not each.status.startswith(("1", "3")))


def response_for(responses: Iterable[DeclaredResponse], status: int) -> DeclaredResponse | None:
    """The declared response that an actual status belongs to."""
    by_status = {each.status.upper(): each for each in responses}
    return by_status.get(str(status)) or by_status.get(f"{status // 100}XX") or by_status.get("DEFAULT")


# --- schemas ------------------------------------------------------------------------------------------------------


def response_shape(response: DeclaredResponse, method: str, schemas: Schemas, kind: str = "") -> ConvertedSchema:
    """What the data of one response looks like, in one media type or in any; anything where none is declared."""
    if method == "HEAD" or response.status in ("204", "205", "304"):
        return _NOTHING
    kinds = [kind] if kind else response.plain_types
    return any_of(distinct(_media_shape(response, each, schemas) for each in kinds))


def _media_shape(response: DeclaredResponse, kind: str, schemas: Schemas) -> ConvertedSchema:
    """What the data of a response looks like in one of its media types."""
    schema = response.media[kind].child("schema")
    if media.is_json(kind) or (media.is_range(kind) and not media.is_bytes(kind) and not media.is_text(kind)):
        return ConvertedSchema(ANYTHING) if schema.node is None else schemas.shape(schema)
    return _TEXT if media.is_text(kind) else _BYTES


def kind_for(response: DeclaredResponse, content_type: str) -> str | None:
    """The declared media type that an answer has: by its name, as another kind of JSON, or within a range."""
    kinds = response.plain_types
    by_name = {media.bare(each): each for each in reversed(kinds)}
    found = by_name.get(media.bare(content_type))
    if found is None and media.is_json(content_type):
        found = next((each for each in kinds if media.is_json(each)), None)
    return found or next((each for each in kinds if media.is_within(content_type, each)), None)


def output_schema(responses: Iterable[DeclaredResponse], method: str, schemas: Schemas) -> Schema:
    """What the data of any success looks like, as one self-contained schema."""
    return schemas.bundle(any_of(distinct(response_shape(each, method, schemas) for each in successes(responses))))


def distinct(shapes: Iterable[ConvertedSchema]) -> list[ConvertedSchema]:
    """The shapes without those that are there already."""
    found: list[ConvertedSchema] = []
    for shape in shapes:
        if shape not in found:
            found.append(shape)
    return found


def any_of(shapes: list[ConvertedSchema]) -> ConvertedSchema:
    """The union of shapes; one of anything is anything."""
    if not shapes or any(shape.schema in ({}, True) for shape in shapes):
        return ConvertedSchema(ANYTHING)
    if len(shapes) == 1:
        return shapes[0]
    uses = frozenset().union(*(shape.uses for shape in shapes))
    return ConvertedSchema({"anyOf": [shape.schema for shape in shapes]}, uses)


def item_schema(responses: Iterable[DeclaredResponse], schemas: Schemas) -> Schema:
    """What the data of one item of a stream looks like."""
    shapes = [
        _item_shape(kind, response.media[kind], schemas)
        for response in successes(responses)
        for kind in response.stream_types
    ]
    return schemas.bundle(any_of(distinct(shapes)))


def _item_shape(kind: str, place: DocumentPlace, schemas: Schemas) -> ConvertedSchema:
    item, whole = place.child("itemSchema"), place.child("schema")
    if media.bare(kind) == media.EVENT_STREAM:
        return _event_shape(item if item.node is not None else whole, schemas)
    if item.node is None:
        target = schemas.library.follow_if_possible(whole)
        if target.fields.get("type") == "array" and "items" in target.fields:
            item = target.child("items")
    chosen = whole if item.node is None else item
    return ConvertedSchema(ANYTHING) if chosen.node is None else schemas.shape(chosen)


def _event_shape(place: DocumentPlace, schemas: Schemas) -> ConvertedSchema:
    """The data of a server-sent event: where the schema describes the event, the schema of its `data`."""
    target = schemas.library.follow_if_possible(place)
    node = target.node
    if not isinstance(node, dict):
        return ConvertedSchema(ANYTHING)
    for keyword in ("oneOf", "anyOf"):
        variants = list(target.child(keyword).elements())
        if variants and all(_is_event(schemas.library.follow_if_possible(each)) for each in variants):
            return any_of(distinct(_event_shape(each, schemas) for each in variants))
    if not _is_event(target):
        return schemas.shape(place)
    data = target.child("properties", "data")
    content = data.child("contentSchema")
    # That an event's data is a string is true of every event, and says nothing of what is in it.
    return schemas.shape(content) if content.node is not None else ConvertedSchema(ANYTHING)


def _is_event(place: DocumentPlace) -> bool:
    """Whether a schema speaks of the event and not of its payload: `data` beside only the fields an event has."""
    properties = place.child("properties").node
    if not isinstance(properties, dict) or "data" not in properties:
        return False
    return set(properties) <= {"data", "event", "id", "retry", "comment"}


def error_schemas(responses: Iterable[DeclaredResponse], schemas: Schemas, cache: dict[int, Any]) -> list[ErrorSchema]:
    """The declared failures; responses shared by many operations are described once."""
    described: list[ErrorSchema] = []
    for response in errors(responses):
        key = id(response.place.node)
        if key not in cache:
            cache[key] = _error_body(response, schemas)
        status = int(response.status) if response.status.isdecimal() else None
        described.append(ErrorSchema(code_of(status or 0), response.place.text("description"), cache[key], status))
    return described


def _error_body(response: DeclaredResponse, schemas: Schemas) -> Schema:
    for kind in response.plain_types:
        schema = response.media[kind].child("schema")
        if media.is_json(kind) and schema.node is not None:
            return schemas.bundle(schemas.shape(schema))
    return {}
