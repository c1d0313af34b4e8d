"""One operation: its schemas when first needed, its request when called, its response as an envelope."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning, has_no_content
from enfold.errors import CallError
from enfold.http_client import Request
from enfold.operations import Context, ErrorSchema
from enfold.runtime.pipeline import is_large
from enfold.runtime.threads import run_apart
from enfold.schema.compiled import compile_apart, compile_schema
from enfold.sources.openapi.bodies import Body, read_body
from enfold.sources.openapi.client import ResponseStream, ServiceClient
from enfold.sources.openapi.document import Library
from enfold.sources.openapi.inputs import Inputs, plan_inputs
from enfold.sources.openapi.media_types import bare, json_first
from enfold.sources.openapi.operations import FoundOperation
from enfold.sources.openapi.parameters import Parameter, read_parameters
from enfold.sources.openapi.requests import RequestBuilder
from enfold.sources.openapi.responses import (
    DeclaredResponse,
    ReceivedResponse,
    Responses,
    read_responses,
    to_envelope,
    to_error,
)
from enfold.sources.openapi.schemas import Schema, Schemas
from enfold.sources.openapi.security import Requirements, Scopes, Security, read_requirements
from enfold.sources.openapi.servers import Servers, in_query
from enfold.sources.reports import Problem


class SharedByEndpoints(msgspec.Struct, frozen=True, eq=False):
    """What all operations of a document share."""

    library: Library
    servers: Servers
    client: ServiceClient
    security: Security
    inputs: Schemas
    outputs: Schemas
    extras: Literal["strip", "keep"]
    problems: list[Problem]


class Blueprint(msgspec.Struct, frozen=True):
    """One operation as read from the document; none of its schemas is converted yet."""

    found: FoundOperation
    parameters: list[Parameter]
    body: Body | None
    responses: Responses
    requirements: Requirements
    base: str

    @property
    def kinds(self) -> list[bool]:
        """Whether it streams, for each operation that it is: one that answers, one that streams, or both."""
        streams = any(each.stream_types for each in self.responses.successes)
        answers = not streams or any(each.plain_types for each in self.responses.successes)
        return [False] * answers + [True] * streams

    @property
    def has_twin(self) -> bool:
        """Whether it is two operations: one that answers, and one that streams."""
        return len(self.kinds) > 1


def read_blueprint(shared: SharedByEndpoints, found: FoundOperation) -> Blueprint:
    """Read an operation; a MalformedOperationError or BrokenReferenceError says why it cannot be called."""
    library = shared.library
    return Blueprint(
        found,
        read_parameters(library, found),
        read_body(library, found, shared.problems),
        read_responses(library, found, shared.problems),
        read_requirements(library, found),
        shared.servers.base_for(found),
    )


class ServiceEndpoint:
    """The handler of one operation; everything costly is made when first needed."""

    def __init__(self, shared: SharedByEndpoints, blueprint: Blueprint, *, streams: bool) -> None:
        self._shared = shared
        self._blueprint = blueprint
        self._streams = streams
        self._schemas: dict[tuple[str, str], Schema] = {}  # by status and media type

    # --- what it looks like

    def input_schema(self) -> Schema:
        return self._inputs.schema

    def output_schema(self) -> Schema:
        responses, schemas = self._blueprint.responses, self._shared.outputs
        if self._streams:
            return responses.item_schema(schemas)
        return responses.output_schema(self._blueprint.found.method, schemas)

    def error_schemas(self) -> list[ErrorSchema]:
        return [each.error_schema(self._shared.outputs) for each in self._blueprint.responses.errors]

    @property
    def has_several_answers(self) -> bool:
        """Whether there are several successes or media types: then what came says which schema counts."""
        kinds = [kind for each in self._blueprint.responses.successes for kind in each.plain_types or [""]]
        return not self._streams and len(kinds) > 1

    # --- what it does

    async def answer(self, arguments: Mapping[str, Any], _context: Context) -> ResponseEnvelope[Any]:
        """Call the operation and give its answer."""
        answer = await self._fetch(arguments)
        if answer.status >= 400:
            raise self._failure(answer)
        response = self._blueprint.responses.success(answer.status)
        promises_json = response is not None and response.promises_json
        envelope = to_envelope(answer, expects_json=promises_json, private_headers=self._shared.client.private_headers)
        if response is None or not promises_json or not isinstance(envelope.data, str):
            return envelope
        return self._with_root_mismatch(envelope, self._schema_of(response, ""))

    def _with_root_mismatch(self, envelope: ResponseEnvelope[Any], schema: Schema) -> ResponseEnvelope[Any]:
        """Text where JSON was promised is no result, though the schema may allow any text: a login page, half a document."""
        is_page = bare(getattr(envelope.meta, "content_type", "")) in ("text/html", "application/xhtml+xml")
        is_broken = any(each.code == "invalid_json" for each in envelope.warnings)
        if not is_page and not (is_broken and schema in ({}, True)):
            return envelope
        # If the schema does not allow text, the pipeline will say so.
        return _mismatched(envelope) if compile_schema(schema).check(envelope.data) else envelope

    async def answer_by_kind(self, arguments: Mapping[str, Any], context: Context) -> ResponseEnvelope[Any]:
        """Run `answer`, and repair the result by the schema of its status and media type."""
        envelope = await self.answer(arguments, context)
        response = self._blueprint.responses.success(getattr(envelope.meta, "status_code", 0))
        if response is None or has_no_content(envelope):
            return envelope
        schema = self._schema_of(response, getattr(envelope.meta, "content_type", ""))
        if isinstance(envelope.data, bytes):
            is_wrong = any(each.code == "root_mismatch" for each in compile_schema(schema).mismatches(""))
            return _mismatched(envelope) if is_wrong else envelope
        if is_large(envelope):
            repaired = await run_apart(lambda: compile_apart(schema).repair(envelope.data, self._shared.extras))
        else:
            repaired = compile_schema(schema).repair(envelope.data, self._shared.extras)
        warnings = (*envelope.warnings, *repaired.warnings)
        return msgspec.structs.replace(envelope, data=repaired.data, warnings=warnings)

    def items(self, arguments: Mapping[str, Any], context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Open the operation's stream and give its items."""
        stream = ResponseStream(self._shared.client, is_text=self._is_text)
        return stream.items(lambda last_event_id: self._request(arguments, last_event_id), context)

    def _failure(self, answer: ReceivedResponse) -> CallError:
        """Return the error of a status; after a 401 it names the scheme that needs a credential, and where to set it."""
        error = to_error(answer)
        sentence, details = self._shared.security.refused(self._blueprint.requirements, self._schemes)
        if answer.status != 401 or not sentence:
            return error
        return CallError(error.code, f"{error.message} ({sentence})", {**(error.details or {}), **details})

    @cached_property
    def _is_text(self) -> bool:
        return self.output_schema().get("type") == "string"

    # --- requests

    async def _fetch(self, arguments: Mapping[str, Any]) -> ReceivedResponse:
        answer = await self._shared.client.fetch(await self._request(arguments))
        if answer.status == 401 and self._schemes and self._shared.security.tokens.forget():
            # The token may have ended before its time; a new one is tried once.
            answer = await self._shared.client.fetch(await self._request(arguments))
        return answer

    async def _request(self, arguments: Mapping[str, Any], last_event_id: str = "") -> Request:
        request = self._builder.build(arguments)
        request.add_header("Accept", self._accept)
        if self._schemes:
            await self._shared.security.add_to(request, self._schemes)
        if last_event_id:
            request.set_header("Last-Event-ID", last_event_id)
        return request.finished()

    @cached_property
    def _inputs(self) -> Inputs:
        supplied = self._shared.security.supplied(self._schemes) | in_query(self._blueprint.base)
        return plan_inputs(
            [each for each in self._blueprint.parameters if each.key not in supplied],
            self._blueprint.body,
            self._shared.inputs,
            stream=self._streams if self._blueprint.has_twin else None,
        )

    @cached_property
    def _builder(self) -> RequestBuilder:
        base, found = self._blueprint.base, self._blueprint.found
        refusal = self._shared.servers.refusal(base)
        if refusal is not None:
            raise CallError("EXECUTION_ERROR", refusal, {"reason": "server"})
        return RequestBuilder(found.method, found.path, base, self._inputs)

    @cached_property
    def _schemes(self) -> Mapping[str, Scopes]:
        if not self._shared.servers.reach.is_home(self._blueprint.base):
            return {}  # credentials are for the user's own server only
        declared = {each.key for each in self._blueprint.parameters}
        return self._shared.security.choose(self._blueprint.requirements, declared)

    @cached_property
    def _accept(self) -> str:
        """The Accept header: the types of successful responses, JSON first, and those of errors."""
        responses = self._blueprint.responses
        wanted = [
            kind for each in responses.successes for kind in (each.stream_types if self._streams else each.plain_types)
        ]
        for_errors = [kind for each in responses.errors for kind in each.plain_types]
        listed = list(dict.fromkeys(json_first(wanted)))
        if not listed:
            return "application/json, */*;q=0.8"
        others = [kind for kind in dict.fromkeys(for_errors) if kind not in listed]
        rest = [f"{kind};q=0.9" for kind in listed[1:]] + [f"{kind};q=0.8" for kind in others]
        return ", ".join([listed[0], *rest])

    def _schema_of(self, response: DeclaredResponse, content_type: str) -> Schema:
        """Return the schema of a response of this type; for an undeclared type, that of the first JSON type."""
        kind = response.kind_for(content_type)
        schema = self._schemas.get((response.status, kind))
        if schema is None:
            found = response.schema(self._blueprint.found.method, self._shared.outputs, kind)
            schema = self._schemas[response.status, kind] = self._shared.outputs.bundle(found)
        return schema


def _mismatched(envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
    """Add the warning that a result is not what its schema promises."""
    warning = ResultWarning("root_mismatch", "", type="string", size=len(envelope.data))
    return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, warning))
