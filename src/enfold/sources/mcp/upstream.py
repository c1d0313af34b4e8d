"""One MCP server as its source uses it: calls made for callers, and lists read to their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import METHOD_NOT_FOUND, UNSUPPORTED_VERSION, ProtocolError, encode
from enfold.mcp.messages import AboutTask, Page, Params, Resumable, Updated, read_loosely
from enfold.mcp.results import AnyList, BegunTask, InputRequired, Object
from enfold.mcp.revisions import LATEST_HANDSHAKE
from enfold.mcp.tasks import TASK_METHODS, declares_tasks, with_tasks, without_tasks
from enfold.observability import spans
from enfold.operations import Context
from enfold.operations.outcomes import Deferred, Suspension
from enfold.operations.questions import EVERY_QUESTION, ClientSession
from enfold.sources.mcp.callers import MCPCaller, SuspendedCalls, capabilities_of
from enfold.sources.mcp.failures import LostError, closed_connection, protocol_failure
from enfold.sources.mcp.pool import PooledSession
from enfold.sources.mcp.session import Session
from enfold.sources.mcp.settings import Address, Command, ServerSettings
from enfold.sources.mcp.subscriptions import ResourceSubscriptions
from enfold.sources.mcp.tasks import ask_about_task, cancel_quietly, wait_for_task
from enfold.sources.reports import Problem

_LIST_CHANGED: Final = {f"notifications/{kind}/list_changed": kind for kind in ("tools", "prompts", "resources")}


class ServerRequest(msgspec.Struct, frozen=True):
    """A request made for a caller; `headers` are additional ones for HTTP."""

    method: str
    params: Params
    idempotent: bool = True  # it may be sent twice
    headers: dict[str, str] | None = None
    runs_as_task: bool = False  # of a tool of the revision 2025-11-25 that only runs as one


class Upstream:
    """A server that calls go to.

    `on_change` is called when its lists may have changed, `on_state` when it came or went, `on_log` with a log message
    that belongs to no call.
    """

    def __init__(
        self,
        settings: ServerSettings,
        on_change: Callable[[], None],
        on_state: Callable[[], None],
        on_log: Callable[[dict[str, Any]], None],
    ) -> None:
        is_shared_process = isinstance(settings.server, Command) and settings.connection.per == "source"
        self._settings = msgspec.structs.replace(settings, handshake_first=is_shared_process)
        self._terms = settings.connection
        self._limits = settings.limits
        self._own_capabilities = capabilities_of(settings.connection.answers)
        self._on_change = on_change
        self._on_state = on_state
        self._on_log = on_log
        self._logged = LoggedBytes(settings.limits.notice_bytes)
        self._changed: set[str] = set()
        self._suspended = SuspendedCalls(settings.limits.held)
        self.pool = self._new_pool(self._settings, shows_output=True)
        self._subscriptions = ResourceSubscriptions(self.pool.session)
        self._older_pool: PooledSession | None = None  # of an address of both eras, for callers of the older one
        self._has_older_era = self._terms.protocol == "auto"  # as far as is known
        self._client_pools: dict[object | None, PooledSession] = {}  # with `per = "session"`
        self._closing: set[asyncio.Task[None]] = set()
        self._running = 0  # calls made for callers

    def _new_pool(self, settings: ServerSettings, *, shows_output: bool = False) -> PooledSession:
        return PooledSession(settings, self._notice, self._reconnected, self._on_state, shows_output=shows_output)

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def is_busy(self) -> bool:
        """Whether calls are running, other than those that wait for their client to come back."""
        return self._running > self._suspended.unanswered

    async def close(self) -> None:
        self._suspended.close()
        self._subscriptions.close(closed_connection(self.name))
        older = () if self._older_pool is None else (self._older_pool,)
        pools = (self.pool, *older, *self._client_pools.values())
        await asyncio.gather(*(pool.close() for pool in pools), *self._closing)

    # --- changes

    def pop_changed(self) -> frozenset[str]:
        """The lists that have changed since the last call, as the server has announced."""
        changed, self._changed = frozenset(self._changed), set()
        return changed

    def follow(self, uri: str) -> AsyncGenerator[str]:
        """The URI once the subscription has begun, and again with every change."""
        return self._subscriptions.follow(uri)

    def _notice(self, method: str, params: dict[str, Any]) -> None:
        kind = _LIST_CHANGED.get(method)
        if kind is not None:
            self._changed.add(kind)
            self._on_change()
        elif method == "notifications/resources/updated":
            if (updated := read_loosely(params, Updated)) is not None:
                self._subscriptions.tell_change(updated.uri)
        elif method == "notifications/message" and self._logged.has_room(params):
            self._on_log(params)

    async def _reconnected(self, session: Session) -> None:
        self._on_change()  # another program may have taken its place
        if session is self.pool.current:
            await self._subscriptions.resubscribe(session)

    # --- calls

    def call(self, request: ServerRequest, context: Context) -> Awaitable[Object]:
        """The result of a request; its caller receives progress, and the questions of the server."""
        caller = MCPCaller(context, self._terms)
        if context.task_question is not None:  # a task that was handed over to its caller
            return ask_about_task(partial(self._send_about_task, caller), self.name, context.task_question)
        converse = self._run_as_task if request.runs_as_task else self._converse
        if caller.peer is None:
            return converse(request, caller)
        return self._suspended.run(caller, caller.peer, partial(converse, request))

    async def _converse(self, request: ServerRequest, caller: MCPCaller) -> Object:
        """Send a request, and again with the answers for as long as the server needs more of them."""
        begun = caller.server_task if caller.task is not None and request.method == "tools/call" else None
        self._running += 1
        try:
            result: Object = {"resultType": "task", "taskId": begun} if begun else await self._send(request, caller)
            for _ in range(self._limits.rounds):
                kind = result.get("resultType")
                if kind == "task":
                    return await self._result_of_task(result, caller)
                if kind != "input_required" or not isinstance(request.params, Resumable):
                    return result
                again = await self._with_answers(request.params, result, caller)
                result = await self._send(msgspec.structs.replace(request, params=again), caller)
        finally:
            self._running -= 1
        raise CallError(
            "EXECUTION_ERROR",
            f"{self.name} asked questions in too many rounds of one call (rounds)",
            {"reason": "rounds"},
        )

    def _result_of_task(self, begun: Object, caller: MCPCaller) -> Awaitable[Object]:
        """Wait for a task, unless the caller follows it."""
        # A source that answers questions could not, once the caller follows the task.
        take = None if self._terms.answers else caller.context.take_task
        taken = None if take is None else take(begun)
        if taken is not None:
            raise Suspension(Deferred(taken))
        return wait_for_task(partial(self._send_about_task, caller), self.name, begun, caller)

    async def _run_as_task(self, request: ServerRequest, caller: MCPCaller) -> Object:
        """Begin a task and wait for its result; a caller who gives up cancels it."""
        task_id = caller.server_task
        if task_id is None:
            params = msgspec.structs.replace(request.params, task={})
            result = await self._converse(msgspec.structs.replace(request, params=params, idempotent=False), caller)
            begun = read_loosely(result, BegunTask)
            if begun is None or not begun.task.task_id:
                return result  # it has run as an ordinary call after all
            task_id = begun.task.task_id
            await caller.note_task(task_id)
        try:
            return await self._converse(ServerRequest("tasks/result", AboutTask(task_id)), caller)
        except asyncio.CancelledError:
            if not caller.leaves_task:
                absent = MCPCaller(Context(), self._terms)
                await cancel_quietly(partial(self._send_about_task, absent), task_id)
            raise

    async def _send_about_task(self, caller: MCPCaller, method: str, params: AboutTask) -> Object:
        return await self._send(ServerRequest(method, params), caller)

    async def _with_answers(self, params: Resumable, result: Object, caller: MCPCaller) -> Resumable:
        """The parameters of a request that is sent again: with the answers, and the server's state exactly as received."""
        needed, answers = read_loosely(result, InputRequired) or InputRequired(), None
        if needed.input_requests:
            try:
                answers = await caller.ask_all(needed.input_requests)
            except ProtocolError as error:
                raise protocol_failure(error) from error
        else:
            await asyncio.sleep(0.1)  # it only wants to be asked again
        return msgspec.structs.replace(params, input_responses=answers, request_state=needed.request_state)

    async def _send(self, request: ServerRequest, caller: MCPCaller) -> dict[str, Any]:
        """Send once; and once more on a new connection, if the server surely has not seen it or may see it twice."""
        meta = caller.meta if spans.inject is None else _with_trace(caller.meta, spans.inject())
        for is_last in (False, True):
            pool = self.pool if caller.session is None else await self._pool_for(caller, caller.session)
            session = await pool.session()
            if caller.log_level is not None:
                await session.set_log_level(caller.log_level)
            offered = self._offered(request, caller, session) if session.is_stateless else {}
            try:
                return await session.request(
                    request.method, request.params, caller, meta=meta, capabilities=offered, headers=request.headers
                )
            except LostError as lost:
                # A server may close an idle connection just when a request is sent on it.
                if is_last or (lost.may_have_run and not (lost.is_silent and request.idempotent)):
                    raise lost.for_caller(idempotent=request.idempotent) from None
            except ProtocolError as error:
                if is_last or error.code != UNSUPPORTED_VERSION:
                    raise protocol_failure(error) from None
                await pool.drop(session)  # another program has taken its place: agree anew
        raise AssertionError("the last attempt returns or raises")

    def _offered(self, request: ServerRequest, caller: MCPCaller, session: Session) -> dict[str, Any]:
        """The capabilities that a request names: what the caller and the source can be asked, and tasks where they fit."""
        # A caller who takes over a task, and is no MCP client itself, is shown the questions of the task as they are.
        answers_later = caller.peer is None and not self._terms.answers and caller.context.take_task is not None
        is_shown_all = answers_later and declares_tasks(session.capabilities)
        of_caller = {} if caller.peer is None else caller.peer.capabilities
        offered = EVERY_QUESTION if is_shown_all else {**self._own_capabilities, **of_caller}
        speaks_of_tasks = request.method == "tools/call" or request.method in TASK_METHODS
        return (with_tasks if speaks_of_tasks else without_tasks)(offered)

    async def _pool_for(self, caller: MCPCaller, session: ClientSession) -> PooledSession:
        """The connection for a client that has a session.

        An address of both eras is spoken to in its caller's: what it asks in one of them it often cannot in the other.
        A process has one connection, which has one era.
        """
        if self._terms.per == "source":
            is_asked_there = isinstance(self._settings.server, Address) and caller.can_be_asked
            return await self._pool_of_older_era() if is_asked_there else self.pool
        pool = self._client_pools.get(caller.client)
        if pool is None:
            pool = self._new_pool(msgspec.structs.replace(self._settings, handshake_first=True))
            self._client_pools[caller.client] = pool
            session.when_over(partial(self._close_pool_of, caller.client))
        return pool

    def _close_pool_of(self, client: object | None) -> None:
        pool = self._client_pools.pop(client, None)
        if pool is not None:
            closing = asyncio.get_running_loop().create_task(pool.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _pool_of_older_era(self) -> PooledSession:
        session = await self.pool.session()
        if not (session.is_stateless and self._has_older_era):
            return self.pool
        if self._older_pool is None:
            older = msgspec.structs.replace(self._terms, protocol=LATEST_HANDSHAKE.name)
            self._older_pool = self._new_pool(msgspec.structs.replace(self._settings, connection=older))
        try:
            await self._older_pool.session()
        except CallError as error:
            self._has_older_era = "rpc_code" not in error.details  # else it was there, and did not know the handshake
            return self.pool
        return self._older_pool

    # --- lists

    async def list_all(self, method: str, type: type[AnyList]) -> tuple[list[Any], Problem | None]:
        """The items of a paged list, and the limit that cut it; a server that has no such list has no items."""
        session, limits = await self.pool.session(), self._limits
        items: list[Any] = []
        size, cursor = 0, None
        for _ in range(limits.pages):
            try:
                page = await self._page(session, method, Page(cursor))
            except CallError as error:
                if error.code != "PAYLOAD_TOO_LARGE":
                    raise
                return items, _cut_by(method, "list_bytes", limits.list_bytes)
            size += len(encode(page))
            if size > limits.list_bytes:
                return items, _cut_by(method, "list_bytes", limits.list_bytes)
            found = read_loosely(page, type) or type()
            items += found.items
            if len(items) > limits.list_items:
                return items[: limits.list_items], _cut_by(method, "list_items", limits.list_items)
            if not found.next_cursor or found.next_cursor == cursor:
                return items, None
            cursor = found.next_cursor
        return items, _cut_by(method, "pages", limits.pages)

    async def _page(self, session: Session, method: str, params: Page) -> Object:
        limit = self._limits.connect
        try:
            async with asyncio.timeout(limit):
                return await session.request(method, params)
        except TimeoutError:
            raise CallError("UNAVAILABLE", f"{self.name} did not answer {method} within {limit:g} seconds") from None
        except ProtocolError as error:
            if error.code == METHOD_NOT_FOUND:
                return {}
            raise protocol_failure(error) from None
        except LostError as lost:
            raise lost.for_caller(idempotent=True) from None


class LoggedBytes:
    """Limits what a server may log outside of calls per minute; the rest is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._since = 0.0

    def has_room(self, params: dict[str, Any]) -> bool:
        now = time.monotonic()
        if now - self._since >= 60:
            self._left, self._since = self._limit, now
        self._left -= len(encode(params))
        return self._left >= 0


def _with_trace(meta: dict[str, Any], trace: dict[str, str]) -> dict[str, Any]:
    """The caller's own `_meta` with the trace of the call that we make in place of the caller's."""
    return {name: value for name, value in meta.items() if name not in spans.NAMES} | trace if trace else meta


def _cut_by(method: str, name: str, limit: int) -> Problem:
    return Problem(method, f"PAYLOAD_TOO_LARGE: it exceeds the limit {name} of {limit}, and the rest is skipped")
