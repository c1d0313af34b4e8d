"""Asking the client while a handler works: the user (elicit), its model (sample), its folders (list_roots).

Older clients are asked on the open connection, and the handler waits. A client of a stateless revision is given the
questions as the result, and calls again with the answers: then the handler runs again from its beginning, and each
question that has been answered gives its answer at once. What must happen only once belongs after the last question,
or into `remember`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import msgspec

from enfold.errors import CallError
from enfold.operations.outcomes import NeedsInput, Suspension

if TYPE_CHECKING:
    from enfold.operations.context import Context

T = TypeVar("T")

# What can be asked of who takes a task without saying what they can answer: they see every question, and answer it or not.
EVERY_QUESTION: Final[Mapping[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class Question(msgspec.Struct, frozen=True):
    """A question to the client, and the capability that the client needs for it."""

    method: str
    params: dict[str, Any]
    capability: tuple[str, ...]  # the names that lead to it, as in `elicitation`, `url`


class Answer(msgspec.Struct, frozen=True):
    """What the user did with a form: accept, decline or cancel; `content` has the fields of an accepted one."""

    action: str
    content: dict[str, Any] = {}

    @property
    def accepted(self) -> bool:
        return self.action == "accept"


class ClientSession(Protocol):
    """What a client has between its handshake and its leaving."""

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call back when the session ends."""


class Peer(Protocol):
    """The client at the other end of a call, as a surface gives it to handlers."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client says it can do."""

    @property
    def client(self) -> object:
        """Whose call it is: the same object for all calls of one session, and another for every stateless request."""

    @property
    def session(self) -> ClientSession | None:
        """The session that the call belongs to; None where the client has none."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` of the client's request."""

    @property
    def memory(self) -> dict[str, Any]:
        """What the call remembers from one round to the next."""

    @property
    def answers(self) -> Mapping[str, Any]:
        """What the client has answered in earlier rounds, by the key of each question."""

    @property
    def asked(self) -> dict[str, int]:
        """How often each name was asked in this round; those without a name are counted under the empty one."""

    def ask(self, questions: Mapping[str, Question]) -> Awaitable[dict[str, Any] | NeedsInput]:
        """Return the answers by key, or raise NeedsInput with questions that the client answers in its next call."""

    def resource_updated(self, uri: str) -> None:
        """Tell everyone who follows a resource that it has changed."""

    def close_stream(self) -> None:
        """Let go of the connection the answer would come on; the client comes back for it."""


class MissingCapabilityError(CallError):
    """The client does not declare the capability that the call needs."""

    def __init__(self, capability: tuple[str, ...]) -> None:
        name = ".".join(capability)
        details = {"reason": "capability", "capability": name}
        message = (
            f"This operation asks its caller a question, and this client cannot answer: it lacks the capability {name}"
        )
        super().__init__("UNAVAILABLE", message, details, retryable=False)
        self.required: dict[str, Any] = {}
        for part in reversed(capability):
            self.required = {part: self.required}


# --- questions ----------------------------------------------------------------------------------------------------


def elicitation(message: str, schema: Mapping[str, Any] | None = None, *, url: str | None = None) -> Question:
    """Create a question for the user: a form with the fields of a flat schema, or a URL to open."""
    if url is not None:
        params = {"mode": "url", "message": message, "url": url}
        return Question("elicitation/create", params, ("elicitation", "url"))
    form = {"type": "object", "properties": {}} if schema is None else dict(schema)
    return Question("elicitation/create", {"message": message, "requestedSchema": form}, ("elicitation",))


def sampling(prompt: str | list[dict[str, Any]], *, max_tokens: int = 1000, **params: Any) -> Question:
    """Create a request to the client's model; `params` are those of the protocol, such as `systemPrompt`."""
    text = {"role": "user", "content": {"type": "text", "text": prompt}}
    messages = [text] if isinstance(prompt, str) else prompt
    return Question("sampling/createMessage", {"messages": messages, "maxTokens": max_tokens, **params}, ("sampling",))


def roots() -> Question:
    """Create a request for the folders the client works in."""
    return Question("roots/list", {}, ("roots",))


# --- asking -------------------------------------------------------------------------------------------------------


def ask(context: Context, questions: Mapping[str, Question]) -> Awaitable[dict[str, Any]]:
    """Ask several questions at once. Returns the answers under the same keys, in the protocol's form."""
    return _wait_for(context, _ask_peer(context, questions, _keys(context, questions)))


def elicit(
    context: Context,
    message: str,
    schema: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    key: str | None = None,
) -> Awaitable[Answer]:
    """Ask the user. `key` identifies the question, by default with a number. Asking again creates a new question."""
    return _ask_one(context, key, elicitation(message, schema, url=url), _answer)


def sample(
    context: Context,
    prompt: str | list[dict[str, Any]],
    *,
    max_tokens: int = 1000,
    key: str | None = None,
    **params: Any,
) -> Awaitable[dict[str, Any]]:
    """Ask the client's model. Returns the protocol's result: `role`, `content`, `model`, `stopReason`."""
    return _ask_one(context, key, sampling(prompt, max_tokens=max_tokens, **params), dict)


def list_roots(context: Context, *, key: str | None = None) -> Awaitable[list[dict[str, Any]]]:
    """Ask for the folders the client works in."""
    return _ask_one(context, key, roots(), lambda result: list(result.get("roots", [])))


def client_capabilities(context: Context) -> Mapping[str, Any]:
    """Return the client's capabilities; empty if the call did not come over MCP."""
    peer = peer_of(context)
    return {} if peer is None else peer.capabilities


def remember(context: Context, key: str, make: Callable[[], T]) -> T:
    """Return a JSON value that is created only once, however many rounds the call takes."""
    peer = peer_of(context)
    memory = {} if peer is None else peer.memory
    if key not in memory:
        memory[key] = make()
    return cast("T", memory[key])


def resource_updated(context: Context, uri: str) -> None:
    """Notify the clients that are subscribed to a resource that it has changed."""
    peer = peer_of(context)
    if peer is not None:
        peer.resource_updated(uri)


def close_stream(context: Context) -> None:
    """Close the client's connection during long work; the client reconnects for the response. No effect outside of such connections."""
    peer = peer_of(context)
    if peer is not None:
        peer.close_stream()


def _ask_one(
    context: Context, key: str | None, question: Question, read: Callable[[dict[str, Any]], T]
) -> Awaitable[T]:
    name = key or ""
    keys = _keys(context, (name,))

    async def ask() -> T:
        return read((await _ask_peer(context, {name: question}, keys))[name])

    return _wait_for(context, ask())


def _keys(context: Context, names: Iterable[str]) -> dict[str, str]:
    """Return a key for each question, the same in every round; a repeated question gets its own."""
    peer = peer_of(context)
    return {} if peer is None else {name: _key(peer.asked, name) for name in names}


def _key(asked: dict[str, int], name: str) -> str:
    asked[name] = number = asked.get(name, 0) + 1
    if not name:
        return f"question{number}"
    return name if number == 1 else f"{name}.{number}"


async def _ask_peer(context: Context, questions: Mapping[str, Question], keys: Mapping[str, str]) -> dict[str, Any]:
    peer = peer_of(context)
    for question in questions.values():
        if peer is None or not offers(peer.capabilities, question.capability):
            raise MissingCapabilityError(question.capability)
    if peer is None:
        return {}
    answers = await peer.ask({keys[name]: question for name, question in questions.items()})
    if isinstance(answers, NeedsInput):
        raise Suspension(answers)
    return {name: answers[key] for name, key in keys.items()}


def offers(capabilities: Any, path: tuple[str, ...]) -> bool:
    """Whether capabilities have the one that these names lead to."""
    for name in path:
        if not isinstance(capabilities, Mapping) or name not in capabilities:
            return False
        capabilities = capabilities[name]
    return True


def _wait_for(context: Context, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Return the awaitable for an `async def`; for a `def` wait, and return the answer."""
    return cast("Awaitable[T]", context.nested_result(call, needs_loop=True))


def peer_of(context: Context) -> Peer | None:
    """Return the client of the caller's connection, if it can be asked."""
    return context.invocation.client


def _answer(result: dict[str, Any]) -> Answer:
    content = result.get("content")
    return Answer(str(result.get("action", "cancel")), content if isinstance(content, dict) else {})
