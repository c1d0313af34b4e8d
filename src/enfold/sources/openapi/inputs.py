"""The input of an operation as one object: which argument goes where, and the schema of them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from enfold.sources.openapi.bodies import FILE_SCHEMA, Body, Fields, Media, is_binary_range
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.openapi.media_types import has_fields, is_form, is_json, is_multipart, is_range, is_stream, is_text
from enfold.sources.openapi.parameters import LOCATIONS, Parameter
from enfold.sources.openapi.schemas import ANYTHING, MAX_CHILDREN, Schema, Schemas, any_of, mentions_reference

MAX_EXAMPLES: Final = 3

_ORDER: Final = {location: index for index, location in enumerate(LOCATIONS)}
_MAX_ALL_OF: Final = 20

# An object with one of these is more than a list of fields.
_NOT_PLAIN: Final = frozenset(
    {"not", "if", "patternProperties", "propertyNames", "dependentSchemas", "enum", "const", "unevaluatedProperties"}
)
_ONLY_REQUIRED: Final = frozenset({"required", "title", "description"})


class Argument(msgspec.Struct, frozen=True):
    """One argument: the location and name it stands for, and what it looks like."""

    name: str
    location: str  # of a parameter, `body` for a field, `whole` for a body in one piece, `type` for its media type
    schema: Any
    required: bool
    parameter: Parameter | None = None


class Inputs(msgspec.Struct, frozen=True):
    """The arguments by the name callers use, the body they are written to, and the schema of the whole."""

    arguments: dict[str, Argument]
    fixed: dict[str, bool]  # the argument `stream` of an operation that exists with and without it
    body: Body | None
    schema: Schema


def plan_inputs(
    parameters: Iterable[Parameter], body: Body | None, schemas: Schemas, stream: bool | None = None
) -> Inputs:
    """Name and describe every argument; `stream` fixes the body's field of that name, where it has one."""
    body = None if body is None or not body.media else _with_fields(body, schemas)
    from_body = list(_body_arguments(body, schemas))
    if body is not None and stream is not None and any(map(_is_stream_field, from_body)):
        # The field is always sent, and with it the body and all that the body requires.
        body = msgspec.structs.replace(body, required=True)
        from_body = list(_body_arguments(body, schemas))
    in_order = sorted(parameters, key=lambda each: _ORDER[each.location])
    arguments = _with_names([*(_parameter_argument(each, schemas) for each in in_order), *from_body])
    fixed: dict[str, bool] = {}
    if stream is not None:  # which chooses between a response and a stream, as the operation has chosen
        fixed = {name: stream for name, each in arguments.items() if _is_stream_field(each)}
    for name in fixed:
        schema = {"type": "boolean", "const": stream, "default": stream}
        arguments[name] = msgspec.structs.replace(arguments[name], required=False, schema=schema)
    media = () if body is None else body.media
    whole = _object(arguments, media, _whole_examples(arguments, media, schemas.library))
    return Inputs(arguments, fixed, body, schemas.bundle(whole))


def _object(arguments: dict[str, Argument], media: Sequence[Media], examples: list[Schema]) -> Schema:
    """Return the schema of all arguments; unknown ones are rejected, unless the body accepts any field."""
    extra = (each.fields.extra for each in media if each.fields is not None and each.fields.extra is not None)
    schema: Schema = {
        "type": "object",
        "properties": {name: argument.schema for name, argument in arguments.items()},
        "required": [name for name, argument in arguments.items() if argument.required],
        "additionalProperties": next(extra, False),
    }
    if not schema["required"]:
        del schema["required"]
    if examples:
        schema["examples"] = examples
    return schema


# --- names --------------------------------------------------------------------------------------------------------


def _with_names(arguments: list[Argument]) -> dict[str, Argument]:
    """Name the arguments; if a name repeats, the first keeps it and the others add their location."""
    first: dict[str, Argument] = {}
    for argument in arguments:
        first.setdefault(argument.name, argument)
    named: dict[str, Argument] = {}
    for argument in arguments:
        name = argument.name
        if first[name] is not argument:
            name = f"{name}_{'body' if argument.location in ('whole', 'type') else argument.location}"
            while name in first or name in named:
                name += "_"
        named[name] = argument
    return named


def _is_stream_field(argument: Argument) -> bool:
    schema = argument.schema
    if argument.location != "body" or argument.name != "stream" or not isinstance(schema, dict):
        return False
    declared = [schema.get("type"), *(each.get("type") for each in schema.get("anyOf", []) if isinstance(each, dict))]
    return any(each == "boolean" or (isinstance(each, list) and "boolean" in each) for each in declared)


# --- parameters ---------------------------------------------------------------------------------------------------


def _parameter_argument(parameter: Parameter, schemas: Schemas) -> Argument:
    described = _described(schemas.convert_if_given(parameter.schema), parameter.place, schemas.library)
    return Argument(parameter.name, parameter.location, described, parameter.required, parameter)


def _described(schema: Any, place: DocumentPlace, library: Library) -> Any:
    """Add the description of the parameter object to a schema."""
    extra: Schema = {}
    node = place.fields
    description = node.get("description")
    if isinstance(description, str) and description:
        extra["description"] = description
    if node.get("deprecated") is True:
        extra["deprecated"] = True
    examples = [each for each in _examples(place, library) if not isinstance(each, (dict, list))]
    if examples:
        extra["examples"] = examples[:MAX_EXAMPLES]
    return {**(schema if isinstance(schema, dict) else {}), **extra} if extra else schema


def _examples(place: DocumentPlace, library: Library) -> Iterator[Any]:
    """Return the examples of a parameter, a media type or a schema."""
    if "example" in place.fields:
        yield place.fields["example"]
    for listed in place.child("examples").elements():
        yield listed.node
    for _, named in place.child("examples").items():  # noqa: PERF102  # this is no dict
        example = library.follow_if_possible(named).fields
        if "value" in example:
            yield example["value"]


# --- bodies -------------------------------------------------------------------------------------------------------


def _with_fields(body: Body, schemas: Schemas) -> Body:
    """Return the body with its fields; if some can be passed, the same object in another notation (XML) adds nothing."""
    media = tuple(_media_with_fields(each, schemas) for each in body.media)
    if media[0].fields is not None:
        media = tuple(
            each
            for each in media
            if each.fields is not None or each.is_sequence or _family_fields(each.schema, schemas) is None
        )
    return msgspec.structs.replace(body, media=media)


def _body_arguments(body: Body | None, schemas: Schemas) -> Iterator[Argument]:
    if body is None:
        return
    spread = body.media[0].fields is not None
    others = [each for each in body.media if each.fields is None] if spread else body.media
    if spread:
        yield from _field_arguments(body.media, required=body.required and not others)
    if others:
        whole = any_of(_whole_schema(each, schemas) for each in others)
        described = _described(whole, body.place, schemas.library)
        yield Argument("body", "whole", described, required=body.required and not spread)
    types = [each.type for each in body.media]
    has_range = any(map(is_range, types))
    if len(types) > 1 or has_range:
        listed = {"description": f"The media type of the body: {', '.join(types)}."} if has_range else {"enum": types}
        choice = {"type": "string", "description": "The media type of the body.", **listed}
        yield Argument("content_type", "type", choice, required=False)


def _whole_examples(arguments: dict[str, Argument], media: Sequence[Media], library: Library) -> list[Schema]:
    """Return the arguments that the examples of a body stand for, each with those of the parameters."""
    parameters = {name: each for name, each in arguments.items() if each.parameter is not None}
    others = {
        name: each.schema["examples"][0]
        for name, each in parameters.items()
        if isinstance(each.schema, dict) and each.schema.get("examples")
    }
    found: list[Schema] = []
    for body in _body_examples(media, library):
        fields = body if isinstance(body, dict) else {}
        given = {
            name: fields[each.name]
            for name, each in arguments.items()
            if each.location == "body" and each.name in fields
        }
        whole = {name: body for name, each in arguments.items() if each.location == "whole"}
        if (given or whole) and not mentions_reference(body):
            found.append({**others, **(given or whole)})
    return found[:MAX_EXAMPLES]


def _body_examples(media: Sequence[Media], library: Library) -> Iterator[Any]:
    for each in media:
        if each.place is not None:
            yield from _examples(each.place, library)
        if not each.is_sequence:
            yield from _examples(library.follow_if_possible(each.schema), library)


def _field_arguments(media: Sequence[Media], *, required: bool) -> Iterator[Argument]:
    """Return the fields of all kinds of body; only what all of them require is required."""
    plain = [(each.fields, each.files) for each in media if each.fields is not None]
    everywhere = frozenset.intersection(*(fields.required for fields, _ in plain))
    schemas: dict[str, list[tuple[Any, bool]]] = {}
    for fields, files in plain:
        for name, schema in fields.properties.items():
            schemas.setdefault(name, []).append((schema, name in files))
    for name, found in schemas.items():
        yield Argument(name, "body", _in_all_kinds(found), required and name in everywhere)


def _in_all_kinds(found: list[tuple[Any, bool]]) -> Any:
    """Return a field as the first kind describes it; if another accepts a file, both are allowed."""
    files = [schema for schema, is_file in found if is_file]
    first, is_file = found[0]
    return first if is_file or not files else any_of([first, files[0]])


def _whole_schema(kind: Media, schemas: Schemas) -> Any:
    if kind.is_sequence:
        return {"type": "array", "items": schemas.convert(kind.schema)}
    if is_text(kind.type) and not has_fields(kind.type):
        return {"type": "string"}
    if is_binary_range(kind, schemas.library):
        return FILE_SCHEMA
    if has_fields(kind.type) or is_range(kind.type) or is_stream(kind.type):
        return schemas.convert_if_given(kind.schema)
    return FILE_SCHEMA


def _media_with_fields(media: Media, schemas: Schemas) -> Media:
    """Return a media type with its fields, if its schema is a plain object."""
    fields = None if media.is_sequence or not has_fields(media.type) else _family_fields(media.schema, schemas)
    if fields is None or not fields.properties:
        return media
    fields = _with_undeclared(fields)
    if is_form(media.type) or is_multipart(media.type):
        return _with_files(media, fields, schemas)
    return msgspec.structs.replace(media, fields=fields)


def _family_fields(place: DocumentPlace, schemas: Schemas) -> Fields | None:
    """Return the fields of an object; of a base with a discriminator also those of its children, none required."""
    own = _plain_object(place, schemas, 0)
    children = schemas.children(place) if own is not None else []
    if own is None or not children:
        return own
    if len(children) > MAX_CHILDREN:
        return msgspec.structs.replace(own, extra=ANYTHING if own.extra is None else own.extra)
    read = [_plain_object(each, schemas, 0) for each in children]
    whole = _combined([own, *read], any_of)
    if whole is None:
        return None
    return msgspec.structs.replace(whole, required=own.required, hidden=whole.hidden - set(whole.properties))


def _plain_object(place: DocumentPlace, schemas: Schemas, depth: int) -> Fields | None:
    """Return an object that is only a list of fields, with `allOf` and references followed."""
    node = place.node
    if not isinstance(node, dict) or depth > _MAX_ALL_OF or not _is_plain(node):
        return None
    parts: list[DocumentPlace] = list(place.child("allOf").elements())
    if isinstance(node.get("$ref"), str):
        try:
            parts.append(schemas.library.resolve(node["$ref"], place.resource))
        except BrokenReferenceError:
            return None
    read = [_plain_object(each, schemas, depth + 1) for each in parts]
    own = _own_fields(place, schemas)
    return own if not read else _combined([*read, own], _all_of)


def _is_plain(node: dict[str, Any]) -> bool:
    declared = node.get("type")
    if declared is not None and declared != "object" and not (isinstance(declared, list) and "object" in declared):
        return False
    choices = [*(node.get("oneOf") or []), *(node.get("anyOf") or [])]
    # Branches that only constrain which fields go together do not change the list; the server checks them.
    return not _NOT_PLAIN & set(node) and all(
        isinstance(each, dict) and set(each) <= _ONLY_REQUIRED for each in choices
    )


def _own_fields(place: DocumentPlace, schemas: Schemas) -> Fields:
    properties = {
        name: schemas.convert(each) for name, each in place.child("properties").items() if not schemas.is_hidden(each)
    }
    hidden = frozenset(name for name, _ in place.child("properties").items() if name not in properties)
    declared = place.node.get("required")
    required = (
        frozenset(each for each in declared if isinstance(each, str)) if isinstance(declared, list) else frozenset()
    )
    extra = place.child("additionalProperties")
    allowed = extra.node is True or isinstance(extra.node, dict)
    return Fields(properties, required, hidden, extra=schemas.convert(extra) if allowed else None)


def _combined(parts: list[Fields | None], combine: Callable[[list[Any]], Any]) -> Fields | None:
    """Combine the fields of all parts by name; None if a part is more than a list of fields."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    schemas: dict[str, list[Any]] = {}
    for part in known:
        for name, schema in part.properties.items():
            schemas.setdefault(name, []).append(schema)
    return Fields(
        {name: combine(each) for name, each in schemas.items()},
        frozenset().union(*(part.required for part in known)),
        frozenset().union(*(part.hidden for part in known)),
        extra=next((part.extra for part in known if part.extra is not None), None),
    )


def _with_undeclared(fields: Fields) -> Fields:
    """Add fields that are required but not described: any value is allowed."""
    required = fields.required - fields.hidden
    unknown = dict.fromkeys(sorted(required - set(fields.properties)), ANYTHING)
    return msgspec.structs.replace(fields, properties={**fields.properties, **unknown}, required=required)


def _all_of(schemas: list[Any]) -> Any:
    return schemas[0] if all(each == schemas[0] for each in schemas) else {"allOf": schemas}


def _with_files(media: Media, fields: Fields, schemas: Schemas) -> Media:
    """Return a form with what the schemas of its fields say about its parts; files are described as such."""
    parts, properties = dict(media.parts), dict(fields.properties)
    for name, schema in fields.properties.items():
        found = _part_schema(schema, schemas)
        is_file = _is_file(found, media.part(name).declared_types)
        kind = found.get("contentMediaType")
        parts[name] = msgspec.structs.replace(media.part(name), is_file=is_file, schema_type=kind)
        if is_file:
            properties[name] = _file_schema(schema)
    return msgspec.structs.replace(media, parts=parts, fields=msgspec.structs.replace(fields, properties=properties))


def _part_schema(schema: Any, schemas: Schemas) -> Schema:
    """Return the schema of one part of a field: in a list, each item is a part."""
    schema = _target(schema, schemas)
    return _target(schema.get("items"), schemas) if schema.get("type") == "array" else schema


def _is_file(schema: Schema, declared_types: str) -> bool:
    if declared_types and not _is_readable(declared_types):
        return True
    content = schema.get("contentMediaType")
    is_content = content is not None and "contentEncoding" not in schema and not _is_readable(content)
    return schema.get("format") == "binary" or is_content


def _is_readable(content_type: str) -> bool:
    kinds = [each.strip() for each in content_type.split(",")]
    return all(is_json(each) or is_text(each) for each in kinds)


def _target(schema: Any, schemas: Schemas) -> Schema:
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = schemas.definition(schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _file_schema(schema: Any) -> Schema:
    schema = schema if isinstance(schema, dict) else {}
    declared = schema.get("description")
    described = (
        {**FILE_SCHEMA, "description": f"{declared} ({FILE_SCHEMA['description']})"} if declared else FILE_SCHEMA
    )
    if schema.get("type") != "array":
        return described
    kept = {key: value for key, value in schema.items() if key not in ("items", "description")}
    return {**kept, "items": described}
