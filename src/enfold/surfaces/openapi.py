"""The OpenAPI 3.1 document of a registry: exactly what the HTTP surface accepts and returns. No server, no I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from enfold.errors import CODES
from enfold.formats import DEFAULT_FORMAT, Format, find_format
from enfold.formats.wrapper_schemas import WRAPPED, moved_below
from enfold.mcp.offers import tool_names
from enfold.operations import AccessControl, Identity, OperationSpec, OperationType
from enfold.operations.access import words
from enfold.operations.http_route import WITH_BODY, HTTPRoute, read_route
from enfold.operations.mcp_kind import kind_of
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import RESERVED, is_reserved
from enfold.schema.advertised import Advertising
from enfold.schema.files import FileArgument, file_arguments, media_types
from enfold.schema.json_pointer import escape, unescape
from enfold.schema.keywords import object_schema, references, with_references
from enfold.schema.nodes.reference import digest, opened, unquote
from enfold.search.selection import narrowed
from enfold.surfaces.request import PROBLEM, ArgumentKind, argument_kinds
from enfold.surfaces.responses import declared_status
from enfold.surfaces.rest import with_routes
from enfold.surfaces.uploads import MULTIPART, raw_types

__all__ = ["to_openapi"]

Schema: TypeAlias = dict[str, Any]

BEARER: Final = "bearer"

# What each status says; the first two and 500 are written into every operation, the others are shared.
_DESCRIPTIONS: Final = {
    400: "Invalid request",
    401: "A bearer token is missing or not valid",
    403: "Not allowed for this caller, host or origin",
    404: "Unknown operation, or an upstream service responded with 404",
    406: "No response format matches Accept",
    409: "The outcome of the first call with this idempotency key is unknown, or an upstream service responded with 409",
    410: "An upstream service responded with 410",
    412: "An upstream service responded with 412",
    413: "The body is too large",
    415: "The body has an unsupported media type",
    422: "An upstream service responded with 422",
    429: "Too many calls",
    499: "The client disconnected",
    500: "Internal server error",
    502: "An upstream service failed",
    503: "Temporarily unavailable",
    504: "The deadline passed",
}
_INLINE: Final = (400, 500)
_OF_A_BODY: Final = (413, 415)
_OF_TASKS: Final = (400, 401, 403, 404, 406, 429, 500, 503)


class Excerpt(msgspec.Struct, frozen=True):
    """A part of the document: the operations of a namespace, or one operation.

    Enfold's own operations are described only where they are named. An `outline` has no arguments, responses and schemas.
    """

    namespace: str | None = None
    operation: str | None = None
    outline: bool = False


def to_openapi(
    registry: Registry,
    *,
    format: str = DEFAULT_FORMAT,
    identity: Identity | None = None,
    everything: bool = False,
    excerpt: Excerpt = Excerpt(),
    servers: Iterable[str] = ("/",),
    title: str | None = None,
    version: str | None = None,
    has_tasks: bool = False,
) -> dict[str, Any]:
    """Build the OpenAPI document of the operations that a caller may call, or of all operations.

    With `has_tasks`, it describes how durable operations run as tasks.
    """
    operation, outline = excerpt.operation, excerpt.outline
    chosen = find_format(format)
    application = registry.application(title, version)
    asked = RESERVED if operation is not None and is_reserved(operation) else excerpt.namespace
    specs = registry.list(namespace=asked) if everything else registry.visible(identity, namespace=asked)
    if operation is not None:
        specs = [spec for spec in specs if spec.id == operation]
    components = _Components(chosen, has_tasks=has_tasks and any(spec.durable != "never" for spec in specs))
    if outline:
        paths = {f"/functions/{spec.id}": _outline(spec, registry) for spec in specs}
    else:
        notes = _notes(registry, specs, with_facts=operation is not None)
        paths = {f"/functions/{spec.id}": _path_item(spec, notes[spec.id], components) for spec in specs}
        seen = {spec.id for spec in specs}
        paths |= _rest_paths([spec for spec in with_routes(registry) if spec.id in seen], notes, components)
    if components.has_tasks and not outline and operation is None:
        security: list[Schema] = [] if all(spec.access_control.is_open for spec in specs) else [{}, {BEARER: []}]
        failures = {str(status): components.shared(status) for status in (*_OF_TASKS, *_OF_A_BODY)}
        paths |= _task_paths(failures, security=security)
    return {
        "openapi": "3.1.0",
        "info": {"title": application.name, "version": application.version},
        "servers": [{"url": url} for url in words(servers)],
        "tags": [{"name": name} for name in dict.fromkeys(tag for spec in specs for tag in _tags(spec))],
        "paths": paths,
        "components": components.to_dict(secured=any(not spec.access_control.is_open for spec in specs)),
    }


def _notes(registry: Registry, specs: list[OperationSpec], *, with_facts: bool) -> dict[str, Schema]:
    """Return the vendor extensions of each operation: its names elsewhere, and its properties."""
    # Names are given over all operations, so that each has the same name for every caller.
    tools, short = tool_names(registry), _short_paths(specs)
    notes = {spec.id: {"x-mcp-tool": tools[spec.id], **short.get(spec.id, {})} for spec in specs}
    if with_facts:
        notes = {spec.id: {**notes[spec.id], **_facts(spec, registry)} for spec in specs}
    return notes


def _short_paths(specs: Iterable[OperationSpec]) -> dict[str, Schema]:
    """Return the operations that are also found by their name alone, because it is unique for this caller."""
    names = Counter(name for spec in specs for name in {spec.id, spec.name})
    return {
        spec.id: {"x-short-path": f"/functions/{spec.name}"}
        for spec in specs
        if names[spec.name] == 1 and spec.namespace
    }


def _facts(spec: OperationSpec, registry: Registry) -> Schema:
    """Return the properties of an operation that people want to see and client generators ignore."""
    return {
        **_kind(spec, registry),
        "x-enfold-destructive": spec.destructive,
        "x-enfold-resumable": spec.resumable,
    }


def _kind(spec: OperationSpec, registry: Registry) -> Schema:
    """Return the kind of an operation, and the name of its source in `enfold.sources`."""
    origin, kind = registry.get(spec.id).origin, kind_of(spec)
    return {
        **({} if kind == "tool" else {"x-mcp-kind": kind}),
        "x-enfold-type": spec.type.value,
        "x-enfold-kind": origin.kind,
        "x-enfold-source": registry.services.sources.name_of(origin.kind, origin.name),
    }


def _outline(spec: OperationSpec, registry: Registry) -> Schema:
    return {"post": {"operationId": spec.id, **_words(spec), "tags": list(_tags(spec)), **_kind(spec, registry)}}


def _path_item(spec: OperationSpec, notes: Schema, components: _Components) -> Schema:
    post = _method(spec, "POST", spec.id, notes, components)
    if spec.type is OperationType.MUTATION:
        return {"post": post}
    return {"get": _method(spec, "GET", f"{spec.id}.get", notes, components), "post": post}


def _rest_paths(specs: Iterable[OperationSpec], notes: dict[str, Schema], components: _Components) -> dict[str, Schema]:
    """Describe the REST routes; methods of one path share the names of its parameters, as the format requires."""
    paths: dict[str, Schema] = {}
    places: dict[tuple[str, ...], HTTPRoute] = {}
    for spec in specs:
        if spec.http is None:
            continue
        route = read_route(spec.http)
        place = places.setdefault(route.shape[1:], route)
        names = dict(zip(route.arguments, place.arguments, strict=True))
        methods = paths.setdefault(place.path, {})
        if route.method.lower() not in methods:  # another process has the same route
            own = _method(spec, route.method, f"{spec.id}.rest", notes[spec.id], components, names)
            methods[route.method.lower()] = own
    return paths


def _method(
    spec: OperationSpec,
    method: str,
    operation_id: str,
    notes: Schema,
    components: _Components,
    in_path: Mapping[str, str] | None = None,
) -> Schema:
    """Describe one method of an operation's path; `in_path` are the names that arguments have there, None without a route."""
    with_body, is_route = method in WITH_BODY, in_path is not None
    arguments = {each["name"]: each for each in _parameters(spec, components)} if is_route or not with_body else {}
    placed = (in_path or {}).items()
    parameters = [{**arguments.pop(own), "name": name, "in": "path", "required": True} for own, name in placed]
    body = _body(spec, in_path, components) if with_body and (arguments or not is_route) else {}
    parameters += [*([] if with_body else arguments.values()), *_more_parameters(spec, components)]
    return {
        **_described(spec, operation_id, notes),
        **({"parameters": parameters} if parameters else {}),
        **body,
        "responses": _responses(spec, components, with_body=with_body),
    }


def _body(spec: OperationSpec, in_path: Mapping[str, str] | None, components: _Components) -> Schema:
    """Describe the arguments that are not in the path; without a route, a body is always sent."""
    schema, owner, name = spec.input_schema, spec.id, _input_name(spec)
    required = [each for each in schema.get("required", ()) if each not in (in_path or ())]
    if in_path:
        rest = {each: of for each, of in schema["properties"].items() if each not in in_path}
        schema = {**schema, "properties": rest, **({"required": required} if "required" in schema else {})}
        owner, name = f"{spec.id}.rest", f"{spec.id}.rest.input"
    content = {"application/json": {"schema": components.root(schema, name)}}
    is_required = bool(required) or in_path is None
    uploads = _upload_content(schema, owner, components)
    return {"requestBody": {"required": is_required, "content": {**content, **uploads}}}


def _more_parameters(spec: OperationSpec, components: _Components) -> list[Schema]:
    """Return the headers with which a caller asks for more than the response."""
    resumes = [_LAST_EVENT_ID] if spec.resumable else []
    return [*resumes, _PREFER] if components.runs_as_task(spec) else resumes


def _described(spec: OperationSpec, operation_id: str, notes: Schema) -> Schema:
    return {
        "operationId": operation_id,
        **_words(spec),
        "tags": list(_tags(spec)),
        **({} if spec.access_control.is_open else {"security": _security(spec.access_control)}),
        **notes,
    }


def _words(spec: OperationSpec) -> Schema:
    words = {"summary": spec.title, "description": spec.description}
    return {name: text for name, text in words.items() if text}


def _tags(spec: OperationSpec) -> tuple[str, ...]:
    return spec.tags or ((spec.namespace,) if spec.namespace else ())


def _security(access: AccessControl) -> list[Schema]:
    """Return one alternative per scope of which any suffices; scopes are roles of the token."""
    required = list(access.required_scopes)
    return [{BEARER: [*required, scope]} for scope in access.required_scopes_any] or [{BEARER: required}]


# --- requests -----------------------------------------------------------------------------------------------------

_LAST_EVENT_ID: Final[Schema] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event received: the stream continues after it",
    "schema": {"type": "string"},
}


def _input_name(spec: OperationSpec) -> str:
    return f"{spec.id}.input"


def _upload_content(given: Schema, owner: str, components: _Components) -> Schema:
    """Return the other bodies of an operation that takes files: a form, and the file itself if there is one."""
    files = file_arguments(given)
    if not files or "$id" in given:
        return {}
    schema = components.portable(opened(given, given))
    properties = {
        name: _file_schema(file, part) if (file := files.get(name)) else part
        for name, part in schema["properties"].items()
    }
    form = components.root({**schema, "properties": properties}, f"{owner}.form")
    types = {name: {"contentType": file.media_type} for name, file in files.items() if file.media_type}
    (name, *_) = files
    note = f"The content of `{name}`. Pass the other arguments in the query string."
    raw = {kind: {"schema": {**_BINARY, "description": note}} for kind in raw_types(files)}
    return {MULTIPART: {"schema": form, **({"encoding": types} if types else {})}, **raw}


def _file_schema(file: FileArgument, part: Any) -> Schema:
    """A file in a form, as generators of clients know it."""
    words = {"description": part["description"]} if isinstance(part, dict) and "description" in part else {}
    return {**words, "type": "array", "items": _BINARY} if file.is_list else {**words, **_BINARY}


_BINARY: Final[Schema] = {"type": "string", "format": "binary"}


def _parameters(spec: OperationSpec, components: _Components) -> Iterator[Schema]:
    schema = components.portable(spec.input_schema)
    kinds = argument_kinds(spec)
    move = components.move(schema, _input_name(spec))  # as in the body: an argument may refer to all of the input
    for name, argument in schema.get("properties", {}).items():
        given = argument if isinstance(argument, dict) else {}
        placed = with_references(given, move)
        yield {
            "name": name,
            "in": "query",
            **({"description": given["description"]} if "description" in given else {}),
            "required": name in schema.get("required", ()),
            **_parameter_form(kinds.get(name, "text"), placed),
        }


def _parameter_form(kind: ArgumentKind, schema: Schema) -> Schema:
    if kind in ("json", "jsons"):
        return {"content": {"application/json": {"schema": schema}}}
    if kind == "texts":
        return {"schema": schema, "style": "form", "explode": True}
    return {"schema": schema}


# --- responses ----------------------------------------------------------------------------------------------------


def _responses(spec: OperationSpec, components: _Components, *, with_body: bool) -> Schema:
    responses = {"200": _success(spec, components)}
    if components.runs_as_task(spec):
        responses["202"] = _ACCEPTED
    left_out: tuple[int, ...] = () if with_body else _OF_A_BODY
    for status in _DESCRIPTIONS:
        if status not in left_out:
            responses[str(status)] = components.failure(status) if status in _INLINE else components.shared(status)
    for status, errors in _own_errors(spec).items():
        responses[str(status)] = {**components.failure(status), "x-enfold-errors": errors}
    return responses


def _success(spec: OperationSpec, components: _Components) -> Schema:
    written = components.format.success_schema
    output = narrowed(spec)
    named = output.replace(output_schema=_with_named_root(output.output_schema))
    schema = {} if written is None else components.root(_unmarked(written(named)), f"{spec.id}.output", is_result=True)
    if spec.type is OperationType.SUBSCRIPTION:
        content = _stream_content(schema, f"{spec.id}.event", components)
    else:
        files = {kind: {"schema": {**_BINARY, "contentMediaType": kind}} for kind in media_types(spec.output_schema)}
        content = {"application/json": {"schema": schema}, **files}
    names = ["X-Request-Id", "Enfold-Warnings"]
    if components.format.shape is not None and spec.type is not OperationType.SUBSCRIPTION:
        names += _OF_SHAPES
    headers = {name: _header(name) for name in names}
    return {"description": "Successful execution", "headers": headers, "content": content}


def _unmarked(schema: Schema) -> Schema:
    """Remove keywords that only MCP clients use."""
    return {key: value for key, value in schema.items() if key != WRAPPED}


def _stream_content(item: Schema, event_name: str, components: _Components) -> Schema:
    """Return the schema of one event or line: an item, a failed result, or the end of the stream."""
    failure = components.error
    end = {"type": "object", "properties": {"complete": {"const": True}}, "required": ["complete"]}
    properties = components.format.error_schema.get("properties", {})
    error = properties["error"] if properties.keys() == {"error"} else failure
    broken = {"complete": {"const": False}, "error": error}
    items = [item]
    if components.format.shape is not None:  # an object that could be taken for the last line is wrapped
        items.append(object_schema({"result": {"type": "object", "required": ["complete"]}}))
    line = {"anyOf": [*items, failure, end, {"type": "object", "properties": broken, "required": list(broken)}]}
    event = {
        "type": "object",
        "properties": {
            "event": {"enum": ["message", "complete", "error"]},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [*items, failure, end]},
            },
            "id": {"type": "string"},
            "retry": {"type": "integer"},
        },
        "required": ["data"],
    }
    return {
        "text/event-stream": {"schema": components.add(event, _legal(event_name))},
        "application/x-ndjson": {"schema": line},
    }


def _own_errors(spec: OperationSpec) -> dict[int, list[Schema]]:
    """Return the custom error codes of an operation by HTTP status."""
    errors: dict[int, list[Schema]] = {}
    for error in spec.error_schemas:
        if error.code not in CODES:
            described = {"code": error.code, "description": error.description, "schema": error.schema}
            errors.setdefault(declared_status(spec, error.code), []).append(described)
    return errors


def _header(name: str) -> Schema:
    return {"$ref": f"#/components/headers/{name}"}


_HEADERS: Final[Schema] = {
    "X-Request-Id": {
        "description": "The id of this request: the caller's, or a new one",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "Enfold-Warnings": {
        "description": "The number of warnings of the result, and the code of the first",
        "schema": {"type": "string", "pattern": '^[1-9][0-9]*; first="[A-Za-z0-9._-]{1,128}"$'},
    },
    "Enfold-Format": {"description": "The format of the result", "required": True, "schema": {"type": "string"}},
    "Enfold-Shape": {
        "description": 'Whether the result is an object without a wrapper, or wrapped: `{"result": v}`',
        "required": True,
        "schema": {"enum": ["object", "result"]},
    },
    "Enfold-Code": {"description": "The code of the error", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "How to authenticate", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 0}},
}
_OF_SHAPES: Final = ("Enfold-Format", "Enfold-Shape")
_HEADERS_OF_ALL: Final = {name: header for name, header in _HEADERS.items() if name not in _OF_SHAPES}
_MORE_HEADERS: Final = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}


# --- components ---------------------------------------------------------------------------------------------------

_DEFINITION: Final = re.compile(r"#/\$defs/([^/]*)(.*)", re.DOTALL)
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_ERROR: Final = "Error"
_PROBLEM: Final = "Problem"


class _Components:
    """What the operations share: their schemas and the definitions of these, each once, and the answers of failures."""

    def __init__(self, format: Format, *, has_tasks: bool = False) -> None:
        self.format = format
        self.has_tasks = has_tasks
        self.portable = Advertising().portable  # generators of clients compile patterns too
        self._schemas: dict[str, Schema] = dict(_TASK_SCHEMAS) if has_tasks else {}
        self._origins = {
            name: name for name in (_ERROR, _PROBLEM, *_TASK_SCHEMAS)
        }  # what each stands for; these are ours
        self._titles: dict[str, str] = {}
        self._responses: dict[str, Schema] = {}
        self._result = "".join(word.capitalize() for word in format.name.split("_"))

    def to_dict(self, *, secured: bool) -> Schema:
        return {
            "schemas": self._schemas,
            "responses": self._responses,
            "headers": _HEADERS if self.format.shape is not None else _HEADERS_OF_ALL,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}} if secured else {},
        }

    def runs_as_task(self, spec: OperationSpec) -> bool:
        return self.has_tasks and spec.durable != "never"

    def failure(self, status: int) -> Schema:
        """Return an error response in the format in use."""
        more = _MORE_HEADERS.get(status)
        names = ("X-Request-Id", "Enfold-Code", *((more,) if more else ()))
        return {
            "description": _DESCRIPTIONS.get(status, "The operation failed"),
            "headers": {name: _header(name) for name in names},
            "content": self._error_content,
        }

    @property
    def _error_content(self) -> Schema:
        """The body of a failure, and that for callers who accept problem details."""
        content = {self.format.error_media_type: {"schema": self.error}}
        if PROBLEM not in content:
            content[PROBLEM] = {"schema": self._put(_PROBLEM, find_format("problem").error_schema)}
        return content

    @property
    def error(self) -> Schema:
        """A reference to the body of every failure."""
        if not self.format.error_schema:
            return {}
        return self._put(_ERROR, self.format.error_schema)

    def shared(self, status: int) -> Schema:
        self._responses.setdefault(f"Error{status}", self.failure(status))
        return {"$ref": f"#/components/responses/Error{status}"}

    def root(self, schema: Schema, owner: str, *, is_result: bool = False) -> Schema:
        """Return a reference to a body's schema, which becomes a component; results of one type share it."""
        schema = self.portable(schema)
        if "$id" in schema:
            return schema  # its references start at itself, wherever it stands
        move = self.move(schema, owner)
        placed: Schema = with_references({key: value for key, value in schema.items() if key != "$defs"}, move)
        inner = placed.get("properties", {}).values()
        if any(isinstance(each, dict) and "$id" in each for each in inner):
            return placed  # readers look for such an address only where they know that a schema stands
        if is_result and placed.keys() == {"type", "$ref"}:
            return {"$ref": placed["$ref"]}  # an object that is written as it is
        subject = _subject(placed) if is_result and not move.refers_to_itself else ""
        return self.add(placed, *([f"{subject}{self._result}"] if subject else []), _legal(owner))

    def add(self, placed: Schema, *wanted: str) -> Schema:
        """Return a reference to the schema as a component, under the first name that is free or means the same."""
        return self._put(self._claim(digest(placed), *wanted, otherwise=wanted[-1]), placed)

    def _put(self, name: str, schema: Any) -> Schema:
        """Return a reference to a component with a unique title, from which generators name classes."""
        title = schema.get("title") if isinstance(schema, dict) else None
        if isinstance(title, str) and self._titles.setdefault(title, name) != name:
            schema = {key: value for key, value in schema.items() if key != "title"}
        self._schemas.setdefault(name, schema)
        return _component(name)

    def move(self, schema: Schema, owner: str) -> _Move:
        """Turn the definitions of a schema into components; return where its references lead."""
        definitions: Schema = schema.get("$defs", {})
        move = _Move(owner, {name: self._name(name, schema, owner) for name in definitions})
        for name, definition in definitions.items():
            self._put(move.names[name], with_references(definition, move))
        return move

    def _name(self, name: str, schema: Schema, owner: str) -> str:
        """Name a definition: its own name, unless another schema uses that for something else."""
        origin = digest([name, _meaning(name, schema)])
        return self._claim(origin, _legal(name), _legal(f"{owner}.{name}"), otherwise=_legal(owner))

    def _claim(self, origin: str, *wanted: str, otherwise: str) -> str:
        """Return the first name that is free or stands for the same; `otherwise` with a digest if there is none."""
        free = (each for each in wanted if self._origins.setdefault(each, origin) == origin)
        return next(free, f"{otherwise}_{origin[:16]}")


def _component(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _with_named_root(schema: Any) -> Any:
    """Replace a schema whose root is a class with a reference to a definition of that name."""
    name = schema.get("title") if isinstance(schema, dict) else None
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    if not isinstance(name, str) or schema.get("type") != "object" or "$id" in schema or name in definitions:
        return schema
    place = f"#/$defs/{quote(escape(name), safe='~')}"
    moved: Schema = with_references(schema, partial(moved_below, place))
    inner = moved.pop("$defs", {})
    return {"$ref": place, "$defs": {**inner, name: moved}}


def _subject(placed: Schema) -> str:
    """Name a result: `Customer`, `CustomerList`, `Integer`; empty if no name fits."""
    properties = placed.get("properties", {})
    if placed.keys() == {"type", "additionalProperties"} and placed["additionalProperties"] is False:
        return "Empty"
    if properties.keys() - {"meta"} not in ({"result"}, {"data"}) or placed.get("additionalProperties") is not False:
        return ""
    inner = properties.get("result", properties.get("data"))
    is_list = isinstance(inner, dict) and inner.get("type") == "array" and inner.keys() == {"type", "items"}
    item = inner["items"] if is_list else inner
    if not isinstance(item, dict) or len(item) != 1:
        return ""
    kind = str(item.get("$ref", item.get("type"))).rpartition("/")[2]
    is_word = "$ref" in item or item.get("type") in ("string", "integer", "number", "boolean")
    return (kind if "$ref" in item else kind.capitalize()) + "List" * is_list if is_word else ""


class _Move:
    """Where the references of one schema lead when it has been placed in the document."""

    def __init__(self, owner: str, names: dict[str, str]) -> None:
        self._owner = owner
        self.names = names
        self.refers_to_itself = False

    def __call__(self, reference: str) -> str:
        found = _DEFINITION.fullmatch(reference)
        name = _definition_of(reference)
        if found and name in self.names:
            return f"#/components/schemas/{self.names[name]}{found[2]}"
        if reference == "#" or reference.startswith("#/"):
            self.refers_to_itself = True
            return f"#/components/schemas/{_legal(self._owner)}{reference[1:]}"
        return reference


def _meaning(name: str, schema: Schema) -> Schema:
    """Return everything a definition means: itself and what it refers to."""
    definitions: Schema = schema["$defs"]
    found: Schema = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found[each] = definitions[each]
        for reference in references(definitions[each]):
            target = _definition_of(reference)
            if target in definitions:
                waiting.append(target)
            elif reference.startswith("#"):
                found["#"] = schema
    return found


def _definition_of(reference: str) -> str:
    match = _DEFINITION.fullmatch(reference)
    return unescape(unquote(match[1])) if match else ""


def _legal(name: str) -> str:
    """Return a name that every client generator accepts: some read a dot as a path."""
    return _ILLEGAL.sub("_", name)


# --- tasks -----------------------------------------------------------------------------------------------------------

_TASK: Final = _component("EnfoldTask")
_TASK_HEADERS: Final = {name: _header(name) for name in ("X-Request-Id", "Retry-After")}

_PREFER: Final[Schema] = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async` starts a task and returns 202 immediately; `wait=n` waits up to n seconds for its result.",
    "schema": {"type": "string"},
}
_ACCEPTED: Final[Schema] = {
    "description": "The call continues as a task",
    "headers": {
        **_TASK_HEADERS,
        "Location": {"description": "The URL of the task", "schema": {"type": "string"}},
        "Preference-Applied": {"description": "`respond-async`", "schema": {"type": "string"}},
    },
    "content": {"application/json": {"schema": _TASK}},
}
_TASK_SCHEMAS: Final[dict[str, Schema]] = {
    "EnfoldTask": {
        "type": "object",
        "properties": {
            "taskId": {"type": "string"},
            "operation": {"type": "string"},
            "status": {"enum": ["working", "input_required", "completed", "failed", "cancelled"]},
            "createdAt": {"type": "string", "format": "date-time"},
            "lastUpdatedAt": {"type": "string", "format": "date-time"},
            "ttlMs": {"type": "integer", "description": "How long the task is kept after its creation"},
            "pollIntervalMs": {"type": "integer"},
            "statusMessage": {"type": "string"},
            "inputRequests": {"type": "object", "description": "Unanswered questions by key"},
            "result": {"description": "The result of the call, once it has completed"},
            "error": {"description": "The error of the call, once it has failed"},
        },
        "required": ["taskId", "operation", "status", "createdAt", "lastUpdatedAt", "ttlMs"],
    },
    "EnfoldTaskList": {
        "type": "object",
        "properties": {"tasks": {"type": "array", "items": _TASK}},
        "required": ["tasks"],
    },
    "EnfoldTaskAnswers": {
        "type": "object",
        "properties": {"inputResponses": {"type": "object", "additionalProperties": {"type": "object"}}},
        "required": ["inputResponses"],
    },
}

_TASK_ID: Final[Schema] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_TASK_WAIT: Final[Schema] = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "Seconds to wait for the end of the task, or a question; at most 60.",
    "schema": {"type": "number", "minimum": 0},
}


def _task_paths(failures: dict[str, Schema], *, security: list[Schema]) -> dict[str, Schema]:
    """Return the paths of tasks; `failures` are the error responses by status."""
    common: Schema = {"tags": ["tasks"], **({"security": security} if security else {})}
    tasks, answers = (_component(name) for name in ("EnfoldTaskList", "EnfoldTaskAnswers"))
    stream: Schema = {"text/event-stream": {"schema": {"type": "string"}}}
    without_body = {status: failure for status, failure in failures.items() if status not in ("413", "415")}
    without_task = {status: failure for status, failure in without_body.items() if status != "404"}
    taken = {"202": _task_response("Taken", _TASK)}
    return {
        "/tasks": {
            "get": {
                "operationId": "tasks.list",
                "summary": "The caller's own tasks",
                **common,
                "responses": {"200": _task_response("The tasks, newest first", tasks), **without_task},
            }
        },
        "/tasks/{id}": {
            "parameters": [_TASK_ID],
            "get": {
                "operationId": "tasks.get",
                "summary": "A task, with its result or error once it has ended",
                **common,
                "parameters": [_TASK_WAIT],
                "responses": {
                    "200": _task_response("The task, or a stream of its changes", _TASK, stream),
                    **without_body,
                },
            },
            "delete": {
                "operationId": "tasks.cancel",
                "summary": "Cancel a task",
                **common,
                "responses": {**taken, **without_body},
            },
        },
        "/tasks/{id}/result": {
            "parameters": [_TASK_ID],
            "get": {
                "operationId": "tasks.result",
                "summary": "Exactly the response of the call",
                **common,
                "parameters": [_TASK_WAIT],
                "responses": {
                    "200": _task_response("The result of the call", {}),
                    "202": _task_response("The task is still running", _TASK),
                    **without_body,
                    "default": {"description": "The call failed: the same response as without a task"},
                },
            },
        },
        "/tasks/{id}/input": {
            "parameters": [_TASK_ID],
            "post": {
                "operationId": "tasks.answer",
                "summary": "Answer some or all questions of a task",
                **common,
                "requestBody": {"required": True, "content": {"application/json": {"schema": answers}}},
                "responses": {**taken, **failures},
            },
        },
    }


def _task_response(description: str, schema: Schema, more: Schema | None = None) -> Schema:
    content = {"application/json": {"schema": schema}, **(more or {})}
    return {"description": description, "headers": _TASK_HEADERS, "content": content}
