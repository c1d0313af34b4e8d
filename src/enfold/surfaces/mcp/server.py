"""An MCP server for every revision and any transport: a request goes in, the message that answers it comes out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from enfold.log import Log
from enfold.mcp.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    ProtocolError,
    error_message,
    result_message,
)
from enfold.mcp.revisions import STATELESS, negotiate
from enfold.mcp.task_extension import TASK_METHODS, TASKS
from enfold.observing.call_record import OK, SpanStart
from enfold.observing.watching import Watch
from enfold.operation.asking import InputRequired, MissingCapability
from enfold.surfaces.mcp import prompts, resources, tools
from enfold.surfaces.mcp.changes import KINDS, ChangeListener
from enfold.surfaces.mcp.client_exchange import ClientExchange
from enfold.surfaces.mcp.clients import Session, check_level, revision_for
from enfold.surfaces.mcp.following import Release
from enfold.surfaces.mcp.mcp_service import Result, Service, cacheable

if TYPE_CHECKING:
    from enfold.surfaces.mcp.rounds import Rounds
    from enfold.surfaces.mcp.task_methods import TaskUpdates

Send: TypeAlias = Callable[[dict[str, Any]], None]


class MCPServer(Service):
    """A registry as an MCP server."""

    @cached_property
    def _rounds(self) -> Rounds:
        from enfold.surfaces.mcp.rounds import Rounds  # with the first question

        return Rounds(self.settings.secret)

    def is_quick(self, method: str) -> bool:
        """Whether the method runs no handler, so that it can be answered without an event loop."""
        return method not in _SLOW_WITH_SESSION and method not in TASK_METHODS and method != "subscriptions/listen"

    def respond_now(self, exchange: ClientExchange) -> dict[str, Any]:
        """The message that answers a request whose method runs no handler."""
        method = (_QUICK_STATELESS if exchange.is_stateless else _QUICK).get(exchange.method)
        if method is None:
            missing = ProtocolError(METHOD_NOT_FOUND, f"There is no method {exchange.method[:100]}")
            return error_message(exchange.id, missing)
        try:
            return self._response(exchange, method(self, exchange))
        except ProtocolError as error:
            return error_message(exchange.id, error)

    async def respond(self, exchange: ClientExchange) -> dict[str, Any]:
        """The message that answers any request: its result, an error, or questions that the client must answer first."""
        is_stateless = exchange.caller.revision.is_stateless
        method = (_SLOW if is_stateless else _SLOW_WITH_SESSION).get(exchange.method)
        if method is None:
            if not is_stateless or exchange.method not in TASK_METHODS:
                return self.respond_now(exchange)
            from enfold.surfaces.mcp.task_methods import METHODS  # which need asyncio

            method = METHODS[exchange.method]
        observers, watch = self.registry.observers, None
        if observers.is_on and exchange.method in _SLOW:
            watch = observers.begin(partial(_span, exchange))
        try:
            if exchange.method != "tasks/update" and (
                "inputResponses" in exchange.params or "requestState" in exchange.params
            ):
                self._rounds.restore(exchange)
            return self._response(exchange, await method(self, exchange))
        except (InputRequired, MissingCapability) as asking:
            exchange.code = asking.code
            return self._ask(exchange, asking)
        except ProtocolError as error:
            exchange.code = code_of_protocol(error) if exchange.code == OK else exchange.code
            exchange.status = error.code
            return error_message(exchange.id, error)
        except Exception as error:  # noqa: BLE001  # whatever went wrong in here, the client gets no stack
            exchange.code = "UNKNOWN_ERROR"
            Log("enfold.mcp").error("%s failed", exchange.method, error=error)
            return error_message(exchange.id, ProtocolError(INTERNAL_ERROR, "The server failed to answer"))
        except BaseException:
            exchange.code = "ABORTED"
            raise
        finally:
            if watch is not None:
                _observe_end(watch, exchange)

    def _ask(self, exchange: ClientExchange, asking: InputRequired | MissingCapability) -> dict[str, Any]:
        """The message that asks a client for what its request cannot go on without."""
        if isinstance(asking, MissingCapability):
            return error_message(exchange.id, _missing_capability(exchange, asking))
        result = self._rounds.questions(exchange, asking)
        return result_message(exchange.id, {**result, "_meta": {SERVER_KEY: self.info}})

    def _response(self, exchange: ClientExchange, result: Result) -> dict[str, Any]:
        """The response around a result, with what a stateless client gets besides."""
        if exchange.caller.revision.is_stateless:
            meta = result.get("_meta")
            result["_meta"] = {SERVER_KEY: self.info} if meta is None else {**meta, SERVER_KEY: self.info}
            result.setdefault("resultType", "complete")
        return {"jsonrpc": "2.0", "id": exchange.id, "result": result}

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
        from enfold.surfaces.mcp.task_methods import follow_tasks  # which needs asyncio

        try:
            return await follow_tasks(self, exchange, task_ids)
        except MissingCapability as missing:
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

    def subscription_end(self, exchange: ClientExchange) -> dict[str, Any]:
        """The message that ends a `subscriptions/listen`."""
        meta = {SERVER_KEY: self.info, SUBSCRIPTION_KEY: exchange.id}
        return result_message(exchange.id, {"resultType": "complete", "_meta": meta})


def _span(exchange: ClientExchange) -> SpanStart:
    """The span of a call, below its caller's trace: the one in `_meta`, or else that of the HTTP request."""
    from enfold.observing.conventions import mcp_span  # with the first trace

    headers, name = exchange.headers, exchange.params.get("name")
    carrier = exchange.meta if headers is None or "traceparent" in exchange.meta else headers
    is_over_http = headers is not None
    return mcp_span(exchange.method, name, exchange.id, exchange.revision.name, carrier, is_over_http=is_over_http)


def _observe_end(watch: Watch, exchange: ClientExchange) -> None:
    """Tell the observers how a call has ended."""
    from enfold.observing.conventions import mcp_outcome  # where somebody observes

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


def _missing_capability(exchange: ClientExchange, missing: MissingCapability) -> ProtocolError:
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


# --- methods ------------------------------------------------------------------------------------------------------

Quick: TypeAlias = Callable[[Service, ClientExchange], Result]
Slow: TypeAlias = Callable[[Service, ClientExchange], Coroutine[Any, Any, Result]]

_LISTS: Final[dict[str, Quick]] = {
    "tools/list": tools.list_tools,
    "resources/list": resources.list_resources,
    "resources/templates/list": resources.list_templates,
    "prompts/list": prompts.list_prompts,
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
    "resources/read": resources.read_resource,
    "prompts/get": prompts.get_prompt,
    "completion/complete": prompts.complete,
}
_SLOW_WITH_SESSION: Final[dict[str, Slow]] = {
    **_SLOW,
    "resources/subscribe": resources.subscribe,
    "resources/unsubscribe": resources.unsubscribe,
}
