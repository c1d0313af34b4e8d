"""An MCP server for every revision and any transport: a request goes in, the message that answers it comes out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument, safe_code
from enfold.formats import find_format
from enfold.mcp.json_rpc import (
    FORMAT_KEY,
    IDEMPOTENCY_KEY,
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
    RPCNotification,
    RPCResponse,
    error_response,
)
from enfold.mcp.messages import Listen, Resumable, WantedNotifications, read_params
from enfold.mcp.results import Result
from enfold.mcp.revisions import LATEST, Revision, urgency_of
from enfold.observability.log import Log
from enfold.observability.observers import Watch
from enfold.observability.records import INPUT_REQUIRED, OK, SpanStart
from enfold.operations import Context, Identity, OperationSpec
from enfold.operations.access import check_access, may_call, may_list
from enfold.operations.context import Invocation
from enfold.operations.outcomes import NeedsInput, envelope_of
from enfold.operations.questions import MissingCapabilityError
from enfold.runtime.registry import Registry
from enfold.surfaces.mcp.catalog import (
    Catalog,
    MCPTool,
    Prompt,
    Resource,
    read_exposure,
)
from enfold.surfaces.mcp.exchange import ClientExchange, Rounds, Session, read_text_clients
from enfold.surfaces.mcp.methods import IN_SESSION, STATELESS_ONES, Method
from enfold.surfaces.mcp.results import protocol_error, too_many
from enfold.surfaces.mcp.settings import MCPSettings
from enfold.surfaces.mcp.subscriptions import KINDS, ChangeListener, Changes, Following, Release
from enfold.surfaces.mcp.uris import ResourceMatch

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.surfaces.mcp.search_tools import SearchTools
    from enfold.surfaces.mcp.tasks import TaskUpdates

T = TypeVar("T", MCPTool, Resource, Prompt)
Send: TypeAlias = Callable[[OutgoingMessage], None]

MAX_URI: Final = 8_192  # characters
MAX_REPORTED: Final = 20  # clashes of URIs that are written to the log


class MCPServer:
    """A registry as an MCP server: what it offers now, and how requests are answered."""

    def __init__(self, registry: Registry, settings: MCPSettings, *, has_identities: bool = True) -> None:
        find_format(settings.format)  # an unknown format is refused here
        self.registry = registry = registry.guarded(has_identities=has_identities, may_be_mounted=True, surface="mcp")
        self.settings = settings
        self.knows_callers = has_identities
        self._exposure = read_exposure(settings.expose, settings.pinned, settings.budget)
        self._search: SearchTools | None = None
        if not self._exposure.is_all:
            from enfold.surfaces.mcp.search_tools import SearchTools  # where not all are listed

            self._search = SearchTools(registry, settings.format)
        self.text_clients = read_text_clients(settings.clients)
        self._clashes: list[str] = []
        self._catalog = self._new_catalog()
        self.changes = Changes(lambda: self.catalog.lists())  # noqa: PLW0108  # of the catalog of the moment
        self.following = Following(registry, self.changes.resource_updated)
        self.known_tools: dict[str, MCPTool] = {}  # that were called, until the registry changes
        registry.watch(self.known_tools.clear)
        registry.watch(self.changes.lists_changed)

    @cached_property
    def info(self) -> dict[str, str]:
        """The name and version of the server, for the client."""
        return msgspec.structs.asdict(self.registry.application(self.settings.name, self.settings.version))

    def listed_tool(self, operation_id: str) -> bytes | None:
        """Return the JSON of a tool as `tools/list` has it."""
        tool = self.catalog.tool(operation_id)
        return None if tool is None else tool.text(LATEST)

    @property
    def catalog(self) -> Catalog:
        """What is offered now."""
        if self._catalog.version != self.registry.version:
            self._catalog = self._new_catalog()
        return self._catalog

    def _new_catalog(self) -> Catalog:
        catalog = Catalog(self.registry, self.settings.format, self.settings.tool_names)
        clashes = catalog.addresses.clashes[:MAX_REPORTED]
        for clash in clashes:
            if clash not in self._clashes:
                Log("enfold.mcp").warning("%s", clash)
        self._clashes = clashes
        if self._search is not None:
            catalog.add_search_tools(self._search.tools(catalog))
        return catalog

    def tools_for(self, exchange: ClientExchange) -> list[MCPTool]:
        """The tools that are listed to a client, as far as it may call them: all, or some and what finds the others."""
        tools = self.catalog.tools
        if self._search is None:
            return tools
        from enfold.search.signatures import estimate_tokens  # where not all are listed

        identity = exchange.identity
        tools = [tool for tool in tools if may_list(tool.spec.access_control, identity)]
        shown = self._exposure.shown(tools, lambda tool: estimate_tokens(tool.text(exchange.revision)))
        return tools if len(shown) == len(tools) else [*self.catalog.search_tools, *shown]

    def instructions_for(self, identity: Identity | None) -> str | UnsetType:
        """The instructions for a client: the operator's text, or those of the sources whose operations it sees."""
        if self.settings.instructions is not None:
            return self.settings.instructions
        told = [] if self._search is None else [self._search.instructions()]
        sources = [source for source in self.registry.services.sources if source.instructions]
        if sources and self.settings.max_instructions:
            told += [
                f"## {source.name}\n\n{source.instructions}"
                for source in sources
                if self._sees_source(identity, source.name)
            ]
        return _joined(told, self.settings.max_instructions) if told else UNSET

    @property
    def has_private_instructions(self) -> bool:
        """Whether clients of different rights may be told different things."""
        return self.knows_callers and any(source.instructions for source in self.registry.services.sources)

    def _sees_source(self, identity: Identity | None, name: str) -> bool:
        """Whether a caller may use at least one operation of a source."""
        name_of = self.registry.services.sources.name_of
        return any(
            may_list(operation.spec.access_control, identity)
            for operation in self.registry
            if name_of(operation.origin.kind, operation.origin.name) == name
        )

    def capabilities(self) -> dict[str, Any]:
        catalog = self.catalog
        has_resources, has_prompts = bool(catalog.resources or catalog.templates), bool(catalog.prompts)
        capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "logging": {}}
        if has_resources:
            capabilities["resources"] = {"subscribe": True, "listChanged": True}
        if has_prompts:
            capabilities["prompts"] = {"listChanged": True}
        if has_resources or has_prompts:
            capabilities["completions"] = {}
        return capabilities

    # lists

    def listed(
        self,
        exchange: ClientExchange,
        cursor: str | None,
        type: Callable[[list[msgspec.Raw], str | UnsetType], Result],
        offers: Iterable[T],
        among: Iterable[T] | None = None,
    ) -> Result:
        """The page of a list that a client asks for, with only what it may use; `among` is what others may be shown."""
        offers = list(offers)
        visible = [offer for offer in offers if may_list(offer.spec.access_control, exchange.identity)]
        rest = _after(visible, cursor)
        page = self._page(rest, exchange.revision)
        result = type(page, rest[len(page) - 1].spec.id if len(page) < len(rest) else UNSET)
        everything = offers if among is None else among
        is_same = all(offer.spec.access_control.is_open for offer in everything)
        is_private = exchange.revision.is_text_alone or not is_same
        return exchange.cacheable(result, self.settings.ttl_ms, is_private=is_private)

    def unknown_name(
        self, exchange: ClientExchange, kind: str, name: str, offers: Iterable[MCPTool | Prompt]
    ) -> ProtocolError:
        """The error for a name that nothing has, or that is hidden from the caller: the same, with the nearest they may use."""
        identity = exchange.identity
        exchange.operation, exchange.code = None, "OPERATION_NOT_FOUND"
        from enfold.errors import nearest_id  # for what is not there

        near = nearest_id(name, [each.name for each in offers if may_list(each.spec.access_control, identity)])
        hint = "" if near is None else f". Did you mean {near}?"
        return ProtocolError(INVALID_PARAMS, f"Unknown {kind}: {name:.200}{hint}")

    def _page(self, offers: list[T], revision: Revision) -> list[msgspec.Raw]:
        """The first of some offers, as many as one answer may hold."""
        page: list[msgspec.Raw] = []
        size = 0
        for offer in offers[: self.settings.page_size]:
            text = offer.text(revision)
            size += len(text)
            if page and size > self.settings.page_bytes:
                break
            page.append(msgspec.Raw(text))
        return page

    # resources

    def resource(self, exchange: ClientExchange, uri: str) -> ResourceMatch:
        """The resource at a URI that the caller may read; every method about a resource asks here.

        A resource that they may not read is not found; an ambiguous URI is an error that says how to name the server.
        """
        found = [match for match in self.catalog.addresses.find(uri) if _is_visible(exchange.identity, match.resource)]
        if not found:
            exchange.code = "OPERATION_NOT_FOUND"
            code = INVALID_PARAMS if exchange.is_stateless else RESOURCE_NOT_FOUND
            raise ProtocolError(code, "Resource not found", {"uri": uri})
        if len(found) > 1:
            choice = " or ".join(self.catalog.addresses.alternatives(uri, found))
            raise ProtocolError(INVALID_PARAMS, f"Several servers have this URI: use {choice}", {"uri": uri})
        self.check_access(exchange, found[0].resource.spec, found[0].arguments)
        return found[0]

    def may_read(self, identity: Identity | None, uri: str) -> bool:
        """Whether a URI is that of one resource, and the caller may read it."""
        found = [match for match in self.catalog.addresses.find(uri) if _is_visible(identity, match.resource)]
        return len(found) == 1 and may_call(found[0].resource.spec.access_control, identity, found[0].arguments)

    def may_be_told(self, identity: Identity | None, uri: str) -> bool:
        """Whether a changed part of a followed resource may be named to a caller: it is no resource itself, or they may read it."""
        return not self.catalog.addresses.find(uri) or self.may_read(identity, uri)

    def offer(self, exchange: ClientExchange, uri: str) -> Resource | None:
        """The resource or template that is listed to the caller with exactly this URI."""
        found = [each for each in self.catalog.addresses.listed(uri) if _is_visible(exchange.identity, each)]
        return found[0] if len(found) == 1 else None

    def check_subscriptions(self, uris: Collection[str]) -> None:
        """Refuse to follow more resources for one client than it may, or what has a very long name."""
        if any(len(uri) > MAX_URI for uri in uris):
            raise ProtocolError(INVALID_PARAMS, f"The URI of a subscription may have at most {MAX_URI} characters")
        if len(uris) > self.settings.limits.subscriptions:
            raise too_many("subscriptions", self.settings.limits.subscriptions)

    def notify_of_changes(
        self, session: Session, identity: Identity | None, send: Callable[[OutgoingMessage], None]
    ) -> Callable[[], None]:
        """Notify a client that made a handshake of every change that it may know of; what is returned ends it."""
        listener = ChangeListener(
            send, KINDS, session.followed, may_be_told=lambda uri: self.may_be_told(identity, uri)
        )

        def pass_on(source: str, params: dict[str, Any]) -> None:
            wanted = session.log_level if session.has_set_level else None
            is_wanted = wanted is not None and urgency_of(str(params.get("level"))) >= urgency_of(wanted)
            if is_wanted and self._sees_source(identity, source):
                send(RPCNotification("notifications/message", {"logger": source, **params}))

        return _call_all(self.changes.listen(listener), self.registry.services.sources.watch_logs(pass_on))

    async def follow(self, match: ResourceMatch, uri: str) -> Release:
        """Follow a resource where it comes from, if anybody there reports its changes; what is returned ends it."""
        operation_id = self.catalog.updates(match.resource)
        return (lambda: None) if operation_id is None else await self.following.follow(uri, operation_id, match.prefix)

    # running

    def context(self, exchange: ClientExchange, spec: OperationSpec, timeout: float | None = None) -> Context:
        identity = exchange.identity
        context = Context(identity=identity, timeout=timeout, notify=exchange.notify, invocation=Invocation(exchange))
        if IDEMPOTENCY_KEY in exchange.meta:
            context.unused_key = self.key_of(exchange)
        exchange.context = context
        recorder: Recorder | None = self.settings.recorder
        if recorder is not None and (recorder.record != "asked" or "capture_provenance" in exchange.meta):
            from enfold.provenance import options_from_meta  # only where calls may be recorded

            context.recording = exchange.recording = recorder.begin(
                options_from_meta(exchange.meta),
                operation=spec,
                adapter="mcp",
                identity=identity.id if identity else "",
                writer=find_format(exchange.meta.get(FORMAT_KEY, self.settings.format)),
            )
        return context

    def key_of(self, exchange: ClientExchange) -> str:
        """The key under which the client may repeat the call."""
        key = exchange.meta[IDEMPOTENCY_KEY]
        if not isinstance(key, str):
            raise invalid_argument(IDEMPOTENCY_KEY, "type", "string", f"_meta[{IDEMPOTENCY_KEY!r}] must be a string")
        from enfold.operations.idempotency import checked_key  # few calls have a key

        return checked_key(key, exchange.identity, vouched=self.knows_callers)

    async def run(
        self, exchange: ClientExchange, spec: OperationSpec, arguments: dict[str, Any]
    ) -> ResponseEnvelope[Any] | NeedsInput:
        """Run an operation whose failure is an error of the protocol, because its result has no match for one."""
        exchange.subject, exchange.operation = spec.id, self.registry.get(spec.id)
        context = self.context(exchange, spec)
        try:
            outcome = await self.registry.prepared(spec.id).execute(arguments, context)
        except MissingCapabilityError:
            raise
        except CallError as error:
            exchange.code = safe_code(error.code)
            raise protocol_error(error, context.request_id) from error
        if isinstance(outcome, NeedsInput):
            return outcome
        exchange.envelope = envelope_of(outcome)
        return exchange.envelope

    def check_access(self, exchange: ClientExchange, spec: OperationSpec, arguments: Mapping[str, Any]) -> None:
        """Refuse a caller who may not run an operation with these arguments."""
        try:
            check_access(spec, exchange.identity, arguments)
        except CallError as error:
            exchange.code = safe_code(error.code)
            raise protocol_error(error) from error

    # answering

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(self.settings.secret)

    def is_quick(self, method: str) -> bool:
        """Whether the method can be answered without an event loop."""
        found = IN_SESSION.get(method) or STATELESS_ONES.get(method)
        return method != "subscriptions/listen" if found is None else found.kind == "quick"

    def _method(self, exchange: ClientExchange) -> Method:
        """The method that a request names, of its revision."""
        name = exchange.method
        method = (STATELESS_ONES if exchange.client.revision.is_stateless else IN_SESSION).get(name)
        if method is None:
            raise ProtocolError(METHOD_NOT_FOUND, f"Method not found: {name[:100]}")
        if method.capability and method.capability not in self.capabilities():
            raise ProtocolError(METHOD_NOT_FOUND, f"This server does not support {method.capability}: {name}")
        return method

    def respond_now(self, exchange: ClientExchange) -> AnyResponse:
        """The message that answers a quick method, which waits for nothing."""
        try:
            self.respond(exchange).send(None)
        except StopIteration as done:
            return cast("AnyResponse", done.value)
        raise RuntimeError(f"{exchange.method} is not quick")

    async def respond(self, exchange: ClientExchange) -> AnyResponse:
        """The message that answers any request: its result, an error, or questions that the client must answer first."""
        observers, watch = self.registry.services.observers, None
        if observers.is_on and exchange.method in OBSERVED:
            watch = observers.begin(partial(_span, exchange))
        try:
            method = self._method(exchange)
            params = read_params(exchange.method, exchange.params, method.params)
            if isinstance(params, Resumable) and (params.input_responses or params.request_state) is not None:
                self._rounds.restore(exchange, params)
            outcome = method.answer(self, exchange, params)
            if method.kind != "quick":
                outcome = await outcome
            if isinstance(outcome, NeedsInput):
                exchange.code = INPUT_REQUIRED
                outcome = self._rounds.questions(exchange, outcome)
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
            return error_response(exchange.id, ProtocolError(INTERNAL_ERROR, "The server failed to respond"))
        except BaseException:
            exchange.code = "ABORTED"
            raise
        finally:
            if watch is not None:
                _observe_end(watch, exchange)

    def _response(self, exchange: ClientExchange, result: Result) -> AnyResponse:
        """Wrap a result in a response, with the extra fields for stateless clients."""
        if exchange.client.revision.is_stateless:
            result.add_meta({SERVER_KEY: self.info})
            if result.result_type is UNSET:
                result.result_type = "complete"
        return RPCResponse(exchange.id, result)

    # notifications of changes

    async def subscribe(self, exchange: ClientExchange, send: Send) -> Callable[[], None]:
        """Send the notifications that a `subscriptions/listen` asks for, as far as they are offered; what is returned ends them."""
        asked = read_params(exchange.method, exchange.params, Listen).notifications
        offered = self.capabilities()
        kinds = sorted(kind for kind in KINDS if kind in offered and asked.wants_list(kind))
        updates = None if asked.task_ids is None else await self._follow_tasks(exchange, asked.task_ids)
        followed = await self._follow_readable(exchange, asked.uris)
        task_ids = None if updates is None else updates.granted
        granted = WantedNotifications.of(kinds, list(followed) or None, task_ids)
        listener = ChangeListener(
            send, kinds, followed, exchange.id, lambda uri: self.may_be_told(exchange.identity, uri)
        )
        listener.notify("notifications/subscriptions/acknowledged", Listen(granted))
        endings = [self.changes.listen(listener), *followed.values()]
        if updates is not None:
            updates.begin(listener)
            endings.append(updates.end)
        return _call_all(*endings)

    async def _follow_tasks(self, exchange: ClientExchange, task_ids: list[Any]) -> TaskUpdates:
        from enfold.surfaces.mcp.tasks import follow_tasks  # which needs asyncio

        try:
            return await follow_tasks(self, exchange, task_ids)
        except MissingCapabilityError as missing:
            raise _missing_capability(exchange, missing) from None

    async def _follow_readable(self, exchange: ClientExchange, uris: list[str]) -> dict[str, Release]:
        """Follow the resources that a client asks for and may read; what ends each, by URI."""
        followed: dict[str, Release] = {}
        self.check_subscriptions(uris)
        try:
            for uri in uris:
                if uri not in followed and self.may_read(exchange.identity, uri):
                    followed[uri] = await self.follow(self.resource(exchange, uri), uri)
        except BaseException:  # the client has left
            _call_all(*followed.values())()
            raise
        return followed

    def subscription_end(self, exchange: ClientExchange) -> AnyResponse:
        """Return the message that ends a `subscriptions/listen`."""
        meta = {SERVER_KEY: self.info, SUBSCRIPTION_KEY: exchange.id}
        return RPCResponse(exchange.id, Result(meta=meta, result_type="complete"))


def _span(exchange: ClientExchange) -> SpanStart:
    """Create the span of a call below its caller's trace: that of `_meta`, or of the HTTP request."""
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


OBSERVED: Final = frozenset(name for name, method in STATELESS_ONES.items() if method.kind == "call")

_CODES: Final = {
    METHOD_NOT_FOUND: "OPERATION_NOT_FOUND",
    RESOURCE_NOT_FOUND: "OPERATION_NOT_FOUND",
    INTERNAL_ERROR: "UNKNOWN_ERROR",
}


def code_of_protocol(error: ProtocolError) -> str:
    """Return our code for a protocol error; most mean an invalid request."""
    return _CODES.get(error.code, "VALIDATION_ERROR")


def _call_all(*endings: Callable[[], None]) -> Callable[[], None]:
    def end() -> None:
        for each in endings:
            each()

    return end


def _missing_capability(exchange: ClientExchange, missing: MissingCapabilityError) -> ProtocolError:
    code = MISSING_CAPABILITY if exchange.is_stateless else INTERNAL_ERROR
    return ProtocolError(code, missing.message, {"requiredCapabilities": missing.required})


def _joined(texts: list[str], limit: int) -> str:
    """The texts below each other; each is cut to its share of the limit where together they are longer."""
    share = limit // len(texts)
    whole = sum(map(len, texts)) <= limit
    return "\n\n".join(text if whole or len(text) <= share else f"{text[: share - 1]}…" for text in texts)


def _is_visible(identity: Identity | None, resource: Resource) -> bool:
    return may_list(resource.spec.access_control, identity)


def _after(offers: list[T], cursor: str | None) -> list[T]:
    """The offers after the one that the cursor names."""
    if cursor is None:
        return offers
    start = next((number for number, offer in enumerate(offers, 1) if offer.spec.id == cursor), 0)
    if not start:
        raise ProtocolError(INVALID_PARAMS, "The cursor is no longer valid: list again from the beginning")
    return offers[start:]
