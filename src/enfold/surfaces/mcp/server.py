"""An MCP server for every revision and any transport: a request goes in, the message that answers it comes out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from enfold.envelope import MCPResponseMeta
from enfold.log import Log
from enfold.mcp.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    AnyResponse,
    OutgoingMessage,
    ProtocolError,
    RPCResponse,
    error_response,
)
from enfold.mcp.offers import fields_of_result, prompt_messages, resource_contents
from enfold.mcp.revisions import STATELESS, negotiate
from enfold.mcp.tasks import TASK_METHODS, TASKS
from enfold.observability.observers import Watch
from enfold.observability.records import INPUT_REQUIRED, OK, SpanStart
from enfold.operations import OperationSpec
from enfold.operations.access import may_list
from enfold.operations.outcomes import NeedsInput
from enfold.operations.questions import MissingCapabilityError
from enfold.surfaces.mcp import tools
from enfold.surfaces.mcp.catalog import Prompt
from enfold.surfaces.mcp.exchange import ClientExchange, Rounds, Session, check_level, revision_for
from enfold.surfaces.mcp.service import Result, Service, arguments_of, cacheable, uri_of
from enfold.surfaces.mcp.subscriptions import KINDS, ChangeListener, Release
from enfold.surfaces.mcp.uris import with_prefix, without_prefix

if TYPE_CHECKING:
    from enfold.surfaces.mcp.tasks import TaskUpdates


Send: TypeAlias = Callable[[OutgoingMessage], None]


class MCPServer(Service):
    """A registry as an MCP server."""

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(self.settings.secret)

    def is_quick(self, method: str) -> bool:
        """Whether the method runs no handler, so that it can be answered without an event loop."""
        return method not in _SLOW_WITH_SESSION and method not in TASK_METHODS and method != "subscriptions/listen"

    def respond_now(self, exchange: ClientExchange) -> AnyResponse:
        """The message that answers a request whose method runs no handler."""
        method = (_QUICK_STATELESS if exchange.is_stateless else _QUICK).get(exchange.method)
        if method is None:
            missing = ProtocolError(METHOD_NOT_FOUND, f"There is no method {exchange.method[:100]}")
            return error_response(exchange.id, missing)
        try:
            return self._response(exchange, method(self, exchange))
        except ProtocolError as error:
            return error_response(exchange.id, error)

    async def respond(self, exchange: ClientExchange) -> AnyResponse:
        """The message that answers any request: its result, an error, or questions that the client must answer first."""
        is_stateless = exchange.caller.revision.is_stateless
        method = (_SLOW if is_stateless else _SLOW_WITH_SESSION).get(exchange.method)
        if method is None:
            if not is_stateless or exchange.method not in TASK_METHODS:
                return self.respond_now(exchange)
            from enfold.surfaces.mcp.tasks import METHODS  # which need asyncio

            method = METHODS[exchange.method]
        observers, watch = self.registry.observers, None
        if observers.is_on and exchange.method in _SLOW:
            watch = observers.begin(partial(_span, exchange))
        try:
            if exchange.method != "tasks/update" and (
                "inputResponses" in exchange.params or "requestState" in exchange.params
            ):
                self._rounds.restore(exchange)
            outcome = await method(self, exchange)
            if isinstance(outcome, NeedsInput):
                exchange.code = INPUT_REQUIRED
                return self._response(exchange, self._rounds.questions(exchange, outcome))
            return self._response(exchange, outcome)
        except MissingCapabilityError as missing:
            exchange.code = missing.code
            return error_response(exchange.id, _missing_capability(exchange, missing))
        except ProtocolError as error:
            exchange.code = code_of_protocol(error) if exchange.code == OK else exchange.code
            exchange.status = error.code
            return error_response(exchange.id, error)
        except Exception as error:  # noqa: BLE001  # whatever went wrong in here, the client gets no stack
            exchange.code = "UNKNOWN_ERROR"
            Log("enfold.mcp").error("%s failed", exchange.method, error=error)
            return error_response(exchange.id, ProtocolError(INTERNAL_ERROR, "The server failed to answer"))
        except BaseException:
            exchange.code = "ABORTED"
            raise
        finally:
            if watch is not None:
                _observe_end(watch, exchange)

    def _response(self, exchange: ClientExchange, result: Result) -> AnyResponse:
        """The response around a result, with what a stateless client gets besides."""
        if exchange.caller.revision.is_stateless:
            meta = result.get("_meta")
            result["_meta"] = {SERVER_KEY: self.info} if meta is None else {**meta, SERVER_KEY: self.info}
            result.setdefault("resultType", "complete")
        return RPCResponse(exchange.id, result)

    # notifications of changes

    async def subscribe(self, exchange: ClientExchange, send: Send) -> Callable[[], None]:
        """Send the notifications that a `subscriptions/listen` asks for, as far as they are offered; what is returned ends them."""
        asked = exchange.params.get("notifications")
        if not isinstance(asked, dict):
            raise ProtocolError(INVALID_PARAMS, "subscriptions/listen needs notifications")
        offered = self.capabilities()
        kinds = sorted(kind for kind in KINDS if kind in offered and asked.get(f"{kind}ListChanged") is True)
        updates = await self._follow_tasks(exchange, asked["taskIds"]) if "taskIds" in asked else None
        followed = await self._follow_readable(exchange, asked.get("resourceSubscriptions"))
        granted: Result = {f"{kind}ListChanged": True for kind in kinds}
        if followed:
            granted["resourceSubscriptions"] = list(followed)
        if updates is not None:
            granted["taskIds"] = updates.granted
        listener = ChangeListener(
            send, kinds, followed, exchange.id, lambda uri: self.may_be_told(exchange.identity, uri)
        )
        listener.notify("notifications/subscriptions/acknowledged", {"notifications": granted})
        endings = [self.changes.listen(listener), *followed.values()]
        if updates is not None:
            updates.begin(listener)
            endings.append(updates.end)
        return _call_all(*endings)

    async def _follow_tasks(self, exchange: ClientExchange, task_ids: object) -> TaskUpdates:
        from enfold.surfaces.mcp.tasks import follow_tasks  # which needs asyncio

        try:
            return await follow_tasks(self, exchange, task_ids)
        except MissingCapabilityError as missing:
            raise _missing_capability(exchange, missing) from None

    async def _follow_readable(self, exchange: ClientExchange, uris: object) -> dict[str, Release]:
        """Follow the resources that a client asks for and may read; what ends each, by URI."""
        followed: dict[str, Release] = {}
        identity = exchange.identity
        asked = [each for each in uris if isinstance(each, str)] if isinstance(uris, list) else []
        self.check_subscriptions(asked)
        try:
            for uri in asked:
                if uri not in followed and self.may_read(identity, uri):
                    followed[uri] = await self.follow(self.resource(exchange, uri), uri)
        except BaseException:  # the client has left
            _call_all(*followed.values())()
            raise
        return followed

    def subscription_end(self, exchange: ClientExchange) -> AnyResponse:
        """The message that ends a `subscriptions/listen`."""
        meta = {SERVER_KEY: self.info, SUBSCRIPTION_KEY: exchange.id}
        return RPCResponse(exchange.id, {"resultType": "complete", "_meta": meta})


def _span(exchange: ClientExchange) -> SpanStart:
    """The span of a call, below its caller's trace: the one in `_meta`, or else that of the HTTP request."""
    from enfold.observability.spans import mcp_span  # with the first trace

    headers, name = exchange.headers, exchange.params.get("name")
    carrier = exchange.meta if headers is None or "traceparent" in exchange.meta else headers
    is_over_http = headers is not None
    return mcp_span(exchange.method, name, exchange.id, exchange.revision.name, carrier, is_over_http=is_over_http)


def _observe_end(watch: Watch, exchange: ClientExchange) -> None:
    """Tell the observers how a call has ended."""
    from enfold.observability.spans import mcp_outcome  # only with observers

    if exchange.envelope is not None:
        watch.record_result(exchange.envelope)
    if exchange.envelope is None or exchange.code != OK:
        watch.code = exchange.code
    watch.request_bytes = exchange.size
    name, status = exchange.params.get("name"), exchange.status
    watch.end(
        "mcp",
        exchange.operation,
        exchange.context,
        exchange.identity,
        lambda record: mcp_outcome(record, exchange.method, name, status),
    )


_CODES: Final = {
    METHOD_NOT_FOUND: "OPERATION_NOT_FOUND",
    RESOURCE_NOT_FOUND: "OPERATION_NOT_FOUND",
    INTERNAL_ERROR: "UNKNOWN_ERROR",
}


def code_of_protocol(error: ProtocolError) -> str:
    """Our code for an error of the protocol; most say that the request was wrong."""
    return _CODES.get(error.code, "VALIDATION_ERROR")


def _call_all(*endings: Callable[[], None]) -> Callable[[], None]:
    def end() -> None:
        for each in endings:
            each()

    return end


def _missing_capability(exchange: ClientExchange, missing: MissingCapabilityError) -> ProtocolError:
    code = MISSING_CAPABILITY if exchange.is_stateless else INTERNAL_ERROR
    return ProtocolError(code, missing.message, {"requiredCapabilities": missing.required})


# --- the handshake, and what stands in its place ------------------------------------------------------------------


def _initialize(service: Service, exchange: ClientExchange) -> Result:
    revision = negotiate(exchange.params.get("protocolVersion"))
    session, capabilities = exchange.caller, exchange.params.get("capabilities")
    if isinstance(session, Session):
        session.revision = revision_for(revision, exchange.params.get("clientInfo"), service.text_clients)
        session.capabilities = capabilities if isinstance(capabilities, dict) else {}
    result = {"protocolVersion": revision.name, "capabilities": service.capabilities(), "serverInfo": service.info}
    return _with_instructions(service, exchange, result)


def _discover(service: Service, exchange: ClientExchange) -> Result:
    versions = [revision.name for revision in STATELESS]
    capabilities = service.capabilities()
    if service.settings.tasks is not None:
        capabilities["extensions"] = {TASKS: {}}
    result = _with_instructions(service, exchange, {"supportedVersions": versions, "capabilities": capabilities})
    return cacheable(exchange, result, service.settings.ttl_ms, is_private=service.has_private_instructions)


def _with_instructions(service: Service, exchange: ClientExchange, result: Result) -> Result:
    instructions = service.instructions_for(exchange.identity)
    return result if instructions is None else {**result, "instructions": instructions}


def _set_level(service: Service, exchange: ClientExchange) -> Result:  # noqa: ARG001  # every method gets both
    exchange.caller.log_level = check_level(exchange.params.get("level"))
    if isinstance(exchange.caller, Session):
        exchange.caller.has_set_level = True
    return {}


# --- resources -------------------------------------------------------------------------------------------------------


def list_resources(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    return service.listed(exchange, "resources", service.catalog.resources)


def list_templates(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    return service.listed(exchange, "resourceTemplates", service.catalog.templates)


async def read_resource(service: Service, exchange: ClientExchange) -> Result | NeedsInput:
    service.check_offered(exchange, "resources")
    uri = uri_of(exchange)
    match = service.resource(exchange, uri)
    spec = match.resource.spec
    envelope = await service.run(exchange, spec, dict(match.arguments))
    if isinstance(envelope, NeedsInput):
        return envelope
    blocks = envelope.meta.content if isinstance(envelope.meta, MCPResponseMeta) else ()
    contents = resource_contents(spec, without_prefix(uri, match.prefix), envelope.data, blocks)
    result: Result = {**fields_of_result(envelope), "contents": [_named_as(each, match.prefix) for each in contents]}
    return cacheable(exchange, result, 0, is_private=True)


def _named_as(content: Result, prefix: str) -> Result:
    return {**content, "uri": with_prefix(content.get("uri", ""), prefix)} if prefix else content


async def subscribe(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    session, uri = exchange.caller, uri_of(exchange)
    match = service.resource(exchange, uri)
    if isinstance(session, Session) and uri not in session.followed:
        service.check_subscriptions([*session.followed, uri])
        release = await service.follow(match, uri)
        if session.is_over or uri in session.followed:  # meanwhile
            release()
        else:
            session.followed[uri] = release
    return {}


async def unsubscribe(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    session, uri = exchange.caller, uri_of(exchange)
    if isinstance(session, Session) and uri in session.followed:
        session.followed.pop(uri)()
    else:
        service.resource(exchange, uri)
    return {}


MAX_COMPLETIONS: Final = 100


def list_prompts(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "prompts")
    return service.listed(exchange, "prompts", service.catalog.prompts)


async def get_prompt(service: Service, exchange: ClientExchange) -> Result | NeedsInput:
    service.check_offered(exchange, "prompts")
    prompt = _prompt(service, exchange, exchange.params.get("name"))
    envelope = await service.run(exchange, prompt.spec, arguments_of(exchange))
    if isinstance(envelope, NeedsInput):
        return envelope
    described = {"description": prompt.spec.description} if prompt.spec.description else {}
    return {**described, **fields_of_result(envelope), "messages": prompt_messages(envelope.data)}


def _prompt(service: Service, exchange: ClientExchange, name: object) -> Prompt:
    prompt = service.catalog.prompt(name)
    if prompt is None or not may_list(prompt.spec.access_control, exchange.identity):
        raise service.unknown_name(exchange, "prompt", name, service.catalog.prompts)
    return prompt


# --- completion ---------------------------------------------------------------------------------------------------


async def complete(service: Service, exchange: ClientExchange) -> Result | NeedsInput:
    """Values for an argument: those an operation proposes, or those its schema lists."""
    service.check_offered(exchange, "completions")
    reference, argument = exchange.params.get("ref"), exchange.params.get("argument")
    if not isinstance(reference, dict) or not isinstance(argument, dict):
        raise ProtocolError(INVALID_PARAMS, "completion/complete needs a ref and an argument")
    spec = _referenced_spec(service, exchange, reference)
    name, value = str(argument.get("name", "")), str(argument.get("value", ""))
    service.check_access(exchange, spec, {**_others(exchange), name: value})
    proposed = await _proposed_values(service, exchange, spec, name, value)
    if isinstance(proposed, NeedsInput):
        return proposed
    values, counts = proposed
    shown = values[:MAX_COMPLETIONS]
    return {"completion": {"total": len(values), "hasMore": len(values) > len(shown), **counts, "values": shown}}


def _referenced_spec(service: Service, exchange: ClientExchange, reference: dict[str, Any]) -> OperationSpec:
    if reference.get("type") == "ref/prompt":
        return _prompt(service, exchange, reference.get("name")).spec
    offer = service.offer(exchange, reference.get("uri"))
    if offer is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown resource: {reference.get('uri')!s:.200}")
    return offer.spec


async def _proposed_values(
    service: Service, exchange: ClientExchange, spec: OperationSpec, name: str, value: str
) -> tuple[list[str], Result] | NeedsInput:
    """The values, and what another server said of their number."""
    found = service.catalog.completion(spec, name)
    if found is None:
        return _enum_values(spec, name, value), {}
    envelope = await service.run(exchange, found, _completion_input(exchange, found, name, value))
    if isinstance(envelope, NeedsInput):
        return envelope
    values = [str(each) for each in envelope.data] if isinstance(envelope.data, list) else []
    return values, fields_of_result(envelope)


def _enum_values(spec: OperationSpec, argument: str, value: str) -> list[str]:
    """The values of an argument that has only a few, as far as they begin like what is typed."""
    part = spec.input_schema.get("properties", {}).get(argument)
    values = part.get("enum", []) if isinstance(part, dict) else []
    return [each for each in values if isinstance(each, str) and each.lower().startswith(value.lower())]


def _completion_input(exchange: ClientExchange, found: OperationSpec, argument: str, value: str) -> Result:
    """Of what is known, what the function asks for."""
    known = {"argument": argument, "value": value, "arguments": _others(exchange)}
    return {name: given for name, given in known.items() if name in found.input_schema.get("properties", {})}


def _others(exchange: ClientExchange) -> dict[str, Any]:
    context = exchange.params.get("context")
    others = context.get("arguments") if isinstance(context, dict) else None
    return others if isinstance(others, dict) else {}


# --- methods ------------------------------------------------------------------------------------------------------

Quick: TypeAlias = Callable[[Service, ClientExchange], Result]
Slow: TypeAlias = Callable[[Service, ClientExchange], Coroutine[Any, Any, Result | NeedsInput]]

_LISTS: Final[dict[str, Quick]] = {
    "tools/list": tools.list_tools,
    "resources/list": list_resources,
    "resources/templates/list": list_templates,
    "prompts/list": list_prompts,
}
_QUICK: Final[dict[str, Quick]] = {
    **_LISTS,
    "initialize": _initialize,
    "ping": lambda _service, _exchange: {},
    "logging/setLevel": _set_level,
}
_QUICK_STATELESS: Final[dict[str, Quick]] = {**_LISTS, "server/discover": _discover}
_SLOW: Final[dict[str, Slow]] = {
    "tools/call": tools.call_tool,
    "resources/read": read_resource,
    "prompts/get": get_prompt,
    "completion/complete": complete,
}
_SLOW_WITH_SESSION: Final[dict[str, Slow]] = {
    **_SLOW,
    "resources/subscribe": subscribe,
    "resources/unsubscribe": unsubscribe,
}
