"""The OpenAPI 3.1 document of a registry: exactly what the HTTP surface answers. Pure: no server, no I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from enfold.errors import CODES
from enfold.formats import DEFAULT_FORMAT, Format, find_format
from enfold.json_pointer import unescape
from enfold.mcp.tool_names import tool_names
from enfold.operation import AccessControl, Identity, OperationSpec, OperationType
from enfold.registry import Registry
from enfold.reserved import RESERVED, is_reserved
from enfold.schema.advertised import Advertising
from enfold.schema.keywords import with_references
from enfold.schema.nodes.reference import digest, unquote
from enfold.selection.defaults import narrowed
from enfold.surfaces.failures import declared_status
from enfold.surfaces.query_string import ArgumentKind, argument_kinds
from enfold.surfaces.task_document import ACCEPTED, PREFER, TASK_SCHEMAS, task_paths

__all__ = ["to_openapi"]

Schema: TypeAlias = dict[str, Any]

BEARER: Final = "bearer"

# What each status says; the first two and 500 are written into every operation, the others are shared.
_DESCRIPTIONS: Final = {
    400: "Invalid request",
    401: "A bearer token is missing or not valid",
    403: "The caller may not do this, or the host or the origin is not allowed",
    404: "There is no such operation",
    406: "The answer has no form that Accept allows",
    409: "The outcome of the first call with this idempotency key is unknown",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many calls",
    499: "The caller gave up",
    500: "Internal server error",
    502: "A service behind this one failed",
    503: "Nobody serves this now",
    504: "The deadline passed",
}
_INLINE: Final = (400, 500)
_OF_A_BODY: Final = (413, 415)
_OF_A_MUTATION: Final = (409,)


def to_openapi(
    registry: Registry,
    *,
    format: str = DEFAULT_FORMAT,
    identity: Identity | None = None,
    everything: bool = False,
    namespace: str | None = None,
    operation: str | None = None,
    outline: bool = False,
    servers: Iterable[str] = ("/",),
    title: str | None = None,
    version: str | None = None,
    has_tasks: bool = False,
) -> dict[str, Any]:
    """The document for one caller: only what this identity may call, or, for the owner, everything.

    `namespace` keeps to what lies in it, `operation` to the one with that id; those of the namespace `enfold` are described
    only where it is named so. An `outline` says what there is, without arguments, answers and schemas. `has_tasks` says that
    durable operations are run as tasks for those who ask.
    """
    chosen = find_format(format)
    application = registry.application(title, version)
    asked = RESERVED if operation is not None and is_reserved(operation) else namespace
    specs = registry.list(namespace=asked) if everything else registry.visible(identity, namespace=asked)
    if operation is not None:
        specs = [spec for spec in specs if spec.id == operation]
    components = _Components(chosen, has_tasks=has_tasks and any(spec.durable != "never" for spec in specs))
    if outline:
        paths = {f"/functions/{spec.id}": _outline(spec, registry) for spec in specs}
    else:
        notes = _notes(registry, specs, with_facts=operation is not None)
        paths = {f"/functions/{spec.id}": _path_item(spec, notes[spec.id], components) for spec in specs}
    if components.has_tasks and not outline and operation is None:
        security: list[Schema] = [] if all(spec.access_control.is_open for spec in specs) else [{}, {BEARER: []}]
        paths |= task_paths(components.shared(404), security=security)
    return {
        "openapi": "3.1.0",
        "info": {"title": application.name, "version": application.version},
        "servers": [{"url": url} for url in servers],
        "tags": [{"name": name} for name in dict.fromkeys(tag for spec in specs for tag in _tags(spec))],
        "paths": paths,
        "components": components.to_dict(secured=any(not spec.access_control.is_open for spec in specs)),
    }


def _notes(registry: Registry, specs: list[OperationSpec], *, with_facts: bool) -> dict[str, Schema]:
    """What the document says of each operation in words of its own: the names that it has elsewhere, and its facts."""
    # Names are given over all operations, so that each has the same name for every caller.
    tools, short = tool_names(registry), _short_paths(specs)
    notes = {spec.id: {"x-mcp-tool": tools[spec.id], **short.get(spec.id, {})} for spec in specs}
    if with_facts:
        notes = {spec.id: {**notes[spec.id], **_facts(spec, registry)} for spec in specs}
    return notes


def _short_paths(specs: Iterable[OperationSpec]) -> dict[str, Schema]:
    """Where an operation is also found by its name alone: what this caller sees has that name once."""
    names = Counter(name for spec in specs for name in {spec.id, spec.name})
    return {
        spec.id: {"x-short-path": f"/functions/{spec.name}"}
        for spec in specs
        if names[spec.name] == 1 and spec.namespace
    }


def _facts(spec: OperationSpec, registry: Registry) -> Schema:
    """What a person wants to know of an operation, and a generator of clients has no use for."""
    return {
        **_kind(spec, registry),
        "x-enfold-destructive": spec.destructive,
        "x-enfold-resumable": spec.resumable,
    }


def _kind(spec: OperationSpec, registry: Registry) -> Schema:
    """What an operation is, and its source by the name that it has in `enfold.sources`."""
    origin = registry.get(spec.id).origin
    return {
        "x-enfold-type": spec.type.value,
        "x-enfold-kind": origin.kind,
        "x-enfold-source": registry.sources.name_of(origin.kind, origin.name),
    }


def _outline(spec: OperationSpec, registry: Registry) -> Schema:
    return {"post": {"operationId": spec.id, **_words(spec), "tags": list(_tags(spec)), **_kind(spec, registry)}}


def _path_item(spec: OperationSpec, notes: Schema, components: _Components) -> Schema:
    item = {"post": _post(spec, notes, components)}
    return item if spec.type is OperationType.MUTATION else {"get": _get(spec, notes, components), **item}


def _post(spec: OperationSpec, notes: Schema, components: _Components) -> Schema:
    schema = components.place(spec.input_schema, _input_name(spec))
    return {
        **_described(spec, spec.id, notes),
        **({"parameters": more} if (more := _more_parameters(spec, components)) else {}),
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _responses(spec, components, with_body=True),
    }


def _get(spec: OperationSpec, notes: Schema, components: _Components) -> Schema:
    parameters = [*_parameters(spec, components), *_more_parameters(spec, components)]
    return {
        **_described(spec, f"{spec.id}.get", notes),
        "parameters": parameters,
        "responses": _responses(spec, components, with_body=False),
    }


def _more_parameters(spec: OperationSpec, components: _Components) -> list[Schema]:
    """The headers by which a caller asks for more than the answer."""
    resumes = [_LAST_EVENT_ID] if spec.resumable else []
    return [*resumes, PREFER] if components.runs_as_task(spec) else resumes


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
    """One way for each scope of which any will do; the scopes are named as roles of the token."""
    required = list(access.required_scopes)
    return [{BEARER: [*required, scope]} for scope in access.required_scopes_any] or [{BEARER: required}]


# --- requests -----------------------------------------------------------------------------------------------------

_LAST_EVENT_ID: Final[Schema] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that arrived: the stream goes on after it",
    "schema": {"type": "string"},
}


def _input_name(spec: OperationSpec) -> str:
    return f"{spec.id}.input"


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
        responses["202"] = ACCEPTED
    left_out: tuple[int, ...] = () if with_body else _OF_A_BODY
    left_out += () if spec.type is OperationType.MUTATION else _OF_A_MUTATION
    for status in _DESCRIPTIONS:
        if status not in left_out:
            responses[str(status)] = components.failure(status) if status in _INLINE else components.shared(status)
    for status, errors in _own_errors(spec).items():
        responses[str(status)] = {**components.failure(status), "x-enfold-errors": errors}
    return responses


def _success(spec: OperationSpec, components: _Components) -> Schema:
    written = components.format.success_schema
    schema = components.place({} if written is None else written(narrowed(spec)), f"{spec.id}.output")
    if spec.type is OperationType.SUBSCRIPTION:
        content = _stream_content(schema, components.format.error_schema)
    else:
        content = {"application/json": {"schema": schema}}
    headers = {"X-Request-Id": _header("X-Request-Id"), "Enfold-Warnings": _header("Enfold-Warnings")}
    return {"description": "Successful execution", "headers": headers, "content": content}


def _stream_content(item: Schema, failure: Schema) -> Schema:
    """What one event or one line holds: an item, which may be a failed result, or how the stream ended."""
    end = {"type": "object", "properties": {"complete": {"const": True}}, "required": ["complete"]}
    properties = failure.get("properties", {})
    error = properties["error"] if properties.keys() == {"error"} else failure
    broken = {"complete": {"const": False}, "error": error}
    line = {"anyOf": [item, failure, end, {"type": "object", "properties": broken, "required": list(broken)}]}
    event = {
        "type": "object",
        "properties": {
            "event": {"enum": ["message", "complete", "error"]},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [item, failure, end]},
            },
            "id": {"type": "string"},
            "retry": {"type": "integer"},
        },
        "required": ["data"],
    }
    return {"text/event-stream": {"schema": event}, "application/x-ndjson": {"schema": line}}


def _own_errors(spec: OperationSpec) -> dict[int, list[Schema]]:
    """The codes an operation declares for itself, by the status they leave with."""
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
        "description": "How many warnings the result came with, if any, and the code of the first",
        "schema": {"type": "string", "pattern": '^[1-9][0-9]*; first="[A-Za-z0-9._-]{1,128}"$'},
    },
    "Enfold-Code": {"description": "The code of the error", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "How to say who calls", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 0}},
}
_MORE_HEADERS: Final = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}


# --- components ---------------------------------------------------------------------------------------------------

_DEFINITION: Final = re.compile(r"#/\$defs/([^/]*)(.*)", re.DOTALL)
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")


class _Components:
    """What the operations share; the definitions of their schemas are moved here, each once."""

    def __init__(self, format: Format, *, has_tasks: bool = False) -> None:
        self.format = format
        self.has_tasks = has_tasks
        self.portable = Advertising().portable  # generators of clients compile patterns too
        self._schemas: dict[str, Schema] = dict(TASK_SCHEMAS) if has_tasks else {}
        self._origins: dict[str, str] = {}
        self._responses: dict[str, Schema] = {}

    def to_dict(self, *, secured: bool) -> Schema:
        return {
            "schemas": self._schemas,
            "responses": self._responses,
            "headers": _HEADERS,
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}} if secured else {},
        }

    def runs_as_task(self, spec: OperationSpec) -> bool:
        return self.has_tasks and spec.durable != "never"

    def failure(self, status: int) -> Schema:
        """An error response in the format in use."""
        more = _MORE_HEADERS.get(status)
        names = ("X-Request-Id", "Enfold-Code", *((more,) if more else ()))
        return {
            "description": _DESCRIPTIONS.get(status, "The operation failed"),
            "headers": {name: _header(name) for name in names},
            "content": {"application/json": {"schema": self.format.error_schema}},
        }

    def shared(self, status: int) -> Schema:
        self._responses.setdefault(f"Error{status}", self.failure(status))
        return {"$ref": f"#/components/responses/Error{status}"}

    def place(self, schema: Schema, owner: str) -> Schema:
        """The schema as it stands in the document: what it defines or repeats of itself becomes a component."""
        schema = self.portable(schema)
        if "$id" in schema:
            return schema  # its references start at itself, wherever it stands
        move = self.move(schema, owner)
        placed: Schema = with_references({key: value for key, value in schema.items() if key != "$defs"}, move)
        if not move.refers_to_itself:
            return placed
        self._schemas[_legal(owner)] = placed
        return {"$ref": f"#/components/schemas/{_legal(owner)}"}

    def move(self, schema: Schema, owner: str) -> _Move:
        """Where the references of a schema lead, after what it defines has become components."""
        definitions: Schema = schema.get("$defs", {})
        move = _Move(owner, {name: self._name(name, schema, owner) for name in definitions})
        for name, definition in definitions.items():
            self._schemas.setdefault(move.names[name], with_references(definition, move))
        return move

    def _name(self, name: str, schema: Schema, owner: str) -> str:
        """A name for a definition: its own, unless another schema gives that to something else."""
        origin = digest([name, _meaning(name, schema)])
        for candidate in (_legal(name), _legal(f"{owner}.{name}")):
            if self._origins.setdefault(candidate, origin) == origin:
                return candidate
        return f"{_legal(owner)}_{origin[:16]}"


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
    """All that a definition says: itself and what it leads to, which is the whole schema where it refers to that."""
    definitions: Schema = schema["$defs"]
    found: Schema = {}
    waiting = [name]

    def follow(reference: str) -> str:
        target = _definition_of(reference)
        if target in definitions:
            waiting.append(target)
        elif reference.startswith("#"):
            found["#"] = schema
        return reference

    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = definitions[each]
            with_references(definitions[each], follow)
    return found


def _definition_of(reference: str) -> str:
    match = _DEFINITION.fullmatch(reference)
    return unescape(unquote(match[1])) if match else ""


def _legal(name: str) -> str:
    """A name that every generator of clients takes: some read a dot as a path."""
    return _ILLEGAL.sub("_", name)
