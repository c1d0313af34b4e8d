"""The context of one call: what its handler sees, and the state that the runtime keeps with it."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from enfold.errors import writable
from enfold.operations.access import Identity

if TYPE_CHECKING:
    import asyncio

    from enfold.operations.operation import RecordedRun, RunningTask
    from enfold.operations.questions import Answer, Peer
    from enfold.runtime.env import Env
    from enfold.tasks.upstream import TakeTask, TaskQuestion


def new_request_id() -> str:
    """Return an unguessable id of 128 random bits; the bits of many ids are read at once."""
    while True:
        try:
            return _fresh_ids.pop()
        except IndexError:
            _fresh_ids.extend(os.urandom(16 * 64).hex(" ", 16).split())


_fresh_ids: Final[list[str]] = []

if hasattr(os, "register_at_fork"):  # a child that went on with its parent's ids would use them a second time
    os.register_at_fork(after_in_child=_fresh_ids.clear)


class Progress(msgspec.Struct, frozen=True):
    """The progress of a call."""

    progress: float
    total: float | None = None
    message: str | None = None


class LogMessage(msgspec.Struct, frozen=True):
    """A log message from a handler to its caller."""

    message: str
    level: str = "info"
    data: Any = None


class Preferences(msgspec.Struct, frozen=True):
    """How the caller of an `mcp.request.v0.1` wants the answer."""

    deterministic: bool = True
    max_output_bytes: int | None = None
    locale: str | None = None


E = TypeVar("E")

Notify: TypeAlias = Callable[[Progress | LogMessage], None]


class Invocation(msgspec.Struct, frozen=True, eq=False):
    """What the surface that received a call knows about it beside its input; calls made inside the call share it."""

    client: Peer | None = None  # answers questions; None where the caller cannot be asked
    task: RunningTask | None = None  # that the call is run for
    preferences: Preferences = Preferences()
    artifacts: tuple[Any, ...] = ()
    provenance: Mapping[str, Any] | None = (
        None  # what another process asks to have recorded, in the words of the call protocol
    )


DIRECT: Final = Invocation()  # of a call by code of this process


class CallState(msgspec.Struct, eq=False):
    """The state of a call that has begun; the runtime keeps it, handlers have no use for it."""

    make_env: Callable[[Context], Env]
    deadline: float | None  # the caller's or the operation's own, whichever is earlier
    env: Env | None = None
    has_started: bool = False  # whether the handler has been reached; before that only middleware has run
    result: Any = None  # the last envelope that has been finished: a middleware that returns it has changed nothing
    is_limited: bool = False  # whether a step around the handler keeps the deadline
    is_repeated: bool = False  # whether a middleware has run the handler before
    runs_in_place: bool = False  # whether a `def` is run on the caller's thread, and so what it calls, too
    # Set while a `def` runs: how a nested call, which is a coroutine, is waited for from there.
    wait_for: Callable[[Coroutine[Any, Any, Any], bool], Any] | None = None
    # Passes a message from a worker thread on to the loop.
    deliver: Callable[[Notify, Progress | LogMessage], object] | None = None


class Context:
    """One call as its handler sees it: the caller, the deadline, and ways to report progress and ask questions."""

    # What most calls leave as it is.
    idempotency_key: str | None = (
        None  # bound to its caller, set when the call begins: may be passed on to another system
    )
    recording: RecordedRun | None = None  # set by a surface whose caller asked for provenance
    reply_headers: dict[str, str] | None = None  # what `set_header` has added
    select: str | None = None  # what of the result is wanted, where its caller says so
    take_task: TakeTask | None = None  # set by a surface whose caller follows the task of a server behind us
    task_question: TaskQuestion | None = None  # asked about such a task, instead of calling the operation
    accepts_task = False  # whether the caller follows a task once the handler has asked what it asks first
    keeps_result = False  # whether the result is stored before it is written, and so must be plain data
    first_call: asyncio.Task[Any] | None = None  # what runs under its idempotency key, maybe after its own end
    call: CallState | None = None  # set when a call begins under this context
    _event_id: str | None = None
    _cancelled = False
    _origin: Context | None = None  # the context a caller gave to several calls; this is one of them
    _parent: Context | None = None

    def __init__(
        self,
        *,
        request_id: str | None = None,
        parent_request_id: str | None = None,
        identity: Identity | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        last_event_id: str | None = None,
        notify: Notify | None = None,
        inline: bool = False,
        invocation: Invocation = DIRECT,
        idempotency_key: str | None = None,
    ) -> None:
        """Create the context of a call that you make yourself; handlers receive theirs from the registry.

        Args:
            request_id: The id in logs and errors; a random one by default.
            parent_request_id: The id of the call that makes this one.
            identity: The caller; None for an anonymous one.
            timeout: Seconds from now.
            deadline: A point in time of `time.monotonic()`, instead of `timeout`.
            last_event_id: Resume a subscription after this event.
            notify: Receives progress and log messages.
            inline: Run a `def` on the event loop instead of a worker thread.
            invocation: The surface and client of the call.
            idempotency_key: Run a mutation once for this key; a repeated call gets the same result.
        """
        self._request_id = request_id
        self.parent_request_id = parent_request_id
        self.identity = identity
        self.caller_deadline = (
            deadline if timeout is None else time.monotonic() + timeout
        )  # without the operation's own
        self.last_event_id = last_event_id
        self._notify = notify
        self.inline = inline
        self.invocation = invocation
        self.unused_key = idempotency_key  # as the caller gave it, until the call begins

    @property
    def request_id(self) -> str:
        if self._request_id is None:
            self._request_id = new_request_id()
        return self._request_id

    @property
    def deadline(self) -> float | None:
        """The deadline, by `time.monotonic()`; None if there is none."""
        return self.caller_deadline if self.call is None else self.call.deadline

    @property
    def has_begun(self) -> bool:
        """Whether this is the context of a handler, or of a call that a handler makes."""
        return self.call is not None or self._parent is not None

    @property
    def is_nested(self) -> bool:
        """Whether the call is made inside another one."""
        return self._parent is not None

    @property
    def asks_for_more(self) -> bool:
        """Whether the caller gave a key, accepts a task, or wants a record of the run or only some fields of the result."""
        return self.unused_key is not None or self.select is not None or self.recording is not None or self.accepts_task

    @property
    def has_started(self) -> bool:
        """Whether the call has reached its handler."""
        return self.call is not None and self.call.has_started

    def note(self, envelope: E) -> E:
        """Note an envelope as finished, and return it."""
        if self.call is not None:
            self.call.result = envelope
        return envelope

    def remaining(self) -> float | None:
        """Return the seconds left, never below zero; None without a deadline."""
        deadline = self.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled or the deadline has passed. A `def` in a thread should check this regularly."""
        if self._cancelled or self.remaining() == 0.0:
            return True
        return any(context is not None and context.cancelled for context in (self._parent, self._origin))

    def cancel(self) -> None:
        self._cancelled = True

    @property
    def env(self) -> Env:
        """The registry's other operations: `context.env.namespace.operation(input)`."""
        call = self.call
        if call is None:
            raise RuntimeError("context.env is only available inside a call of a registry")
        if call.env is None:
            call.env = call.make_env(self)
        return call.env

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> Sent:
        """Report progress to the caller, if the surface supports it. You can call or await it."""
        return self._send(Progress(progress, total, None if message is None else writable(message)))

    def log(self, message: str, level: str = "info", data: Any = None) -> Sent:
        """Send a log message to the caller, if the surface supports it. You can call or await it."""
        return self._send(LogMessage(writable(message), level, data))

    def _send(self, message: Progress | LogMessage) -> Sent:
        if self._notify is not None:
            deliver = None if self.call is None else self.call.deliver
            if deliver is None:
                self._notify(message)
            else:
                deliver(self._notify, message)
        return SENT

    def set_header(self, name: str, value: str) -> None:
        """Add a header to the response over HTTP and CGI; other surfaces ignore it."""
        check_header(name, value)
        context = self
        while context._origin is not None:
            context = context._origin
        context.reply_headers = {**(context.reply_headers or {}), name.lower(): value}

    def hear(self, notify: Notify) -> None:
        """Send progress and log messages to this listener from now on."""
        self._notify = notify

    @property
    def is_heard(self) -> bool:
        """Whether there is a listener for progress and log messages."""
        return self._notify is not None

    @property
    def preferences(self) -> Preferences:
        """The preferences of an `mcp.request.v0.1` for its response; for other calls, the defaults."""
        return self.invocation.preferences

    @property
    def artifacts(self) -> tuple[Any, ...]:
        """The references to artifacts of an `mcp.request.v0.1`, which are not opened."""
        return self.invocation.artifacts

    def ask(
        self, message: str, schema: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Awaitable[Answer]:
        """Ask the caller for the fields of a flat schema, and await the answer; in a `def`, it is returned directly.

        Inside a task the question ends the attempt, and the handler runs again when it is answered.
        """
        from enfold.operations.questions import elicit  # only few handlers ask

        return elicit(self, message, schema, key=key)

    @property
    def task(self) -> RunningTask | None:
        """The task that this call is run for; None in an ordinary call."""
        return self.invocation.task

    def detach(self) -> None:
        """With `asks_first`, end the call here and run the handler again as a task; in the task, do nothing."""
        if self.task is None and self.accepts_task:
            from enfold.operations.outcomes import NeedsInput, Suspension  # only few handlers detach

            raise Suspension(NeedsInput())

    @property
    def event_id(self) -> str | None:
        """The id of the item that is yielded next, from which a client can resume."""
        return self._event_id

    @event_id.setter
    def event_id(self, value: str | None) -> None:
        self._event_id = value
        if self._origin is not None:
            self._origin.event_id = value

    def copy(self) -> Context:
        """Return a second context for the same call; it ends with this one."""
        another = self.on_its_own()
        another.caller_deadline = self.caller_deadline
        another._parent = self._parent
        another._origin = self
        return another

    def on_its_own(self) -> Context:
        """Return a context without the caller's deadline, for work that continues after the caller has left."""
        another = Context(
            request_id=self.request_id,
            parent_request_id=self.parent_request_id,
            identity=self.identity,
            last_event_id=self.last_event_id,
            notify=self._notify,
            inline=self.inline,
            invocation=self.invocation,
        )
        another.recording = self.recording
        another.select = self.select
        another.take_task = self.take_task
        another.task_question = self.task_question
        another.accepts_task = self.accepts_task
        another.keeps_result = self.keeps_result
        return another

    def child(self) -> Context:
        """Return the context of a nested call: same caller, the remaining time, this call as its parent."""
        nested = Context(
            parent_request_id=self.request_id,
            identity=self.identity,
            inline=self.inline or (self.call is not None and self.call.runs_in_place),
            invocation=self.invocation,
        )
        nested.accepts_task = self.accepts_task
        nested.caller_deadline = self.deadline
        nested._parent = self
        if self.recording is not None:
            nested.recording = self.recording.nested()
        return nested

    def nested_result(self, call: Coroutine[Any, Any, Any], *, needs_loop: bool) -> Any:
        """Run a nested call: return an awaitable, or in a `def` the result itself."""
        wait_for = None if self.call is None else self.call.wait_for
        return call if wait_for is None else wait_for(call, needs_loop)


_HEADER_NAME: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
# What only the server can say: a wrong one would break the connection, or what its answer means.
_SERVER_HEADERS: Final = frozenset(
    [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "keep-alive",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)


def check_header(name: str, value: str) -> None:
    """Refuse a header that cannot be sent, or that is not a handler's to set."""
    lower = name.lower()
    if not lower or not _HEADER_NAME.issuperset(lower) or lower in _SERVER_HEADERS or lower.startswith("enfold-"):
        raise ValueError(f"The header {name!r} cannot be set by an operation")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"The value of the header {name} must be printable ASCII text")


class Sent:
    """What `progress` and `log` give, so that they can be awaited: there is nothing to wait for."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]  # an iterator that is over


SENT: Final = Sent()
