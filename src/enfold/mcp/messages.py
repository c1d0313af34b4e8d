"""The parameters of MCP requests and notifications as typed values; one class for each, in every revision. No I/O.

Fields that a method does not use are ignored. `_meta` stays a plain object beside them: its keys are open.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from enfold.mcp.json_rpc import INVALID_PARAMS, ProtocolError, RequestId

T = TypeVar("T")


class Params(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of a method that has none."""


class Resumable(Params, frozen=True, kw_only=True):
    """Parameters of a request that a stateless client sends again with the answers to the questions it was asked."""

    input_responses: dict[str, Any] | None = None
    request_state: str | None = None


# --- the handshake, and what replaced it ----------------------------------------------------------------------------


class Initialize(Params, frozen=True):
    protocol_version: str | None = None
    capabilities: dict[str, Any] | None = None
    client_info: dict[str, Any] | None = None


class SetLevel(Params, frozen=True):
    level: str


# --- lists, tools, resources and prompts ----------------------------------------------------------------------------


class Page(Params, frozen=True):
    cursor: str | None = None


class CallTool(Resumable, frozen=True, kw_only=True):
    name: str
    arguments: Any = None  # wrong ones are the tool's failure, and no error of the protocol


class ReadResource(Resumable, frozen=True, kw_only=True):
    uri: str


class GetPrompt(Resumable, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, Any] | None = None


class Subscribe(Params, frozen=True):
    uri: str


class Reference(msgspec.Struct, frozen=True):
    """The prompt, by its name, or the resource, by its URI, of which an argument is completed."""

    type: Literal["ref/prompt", "ref/resource"]
    name: str = ""
    uri: str = ""


class PartialArgument(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class CompletionContext(msgspec.Struct, frozen=True):
    arguments: dict[str, Any] | None = None


class Complete(Resumable, frozen=True, kw_only=True):
    ref: Reference
    argument: PartialArgument
    context: CompletionContext | None = None

    @property
    def others(self) -> dict[str, Any]:
        """The arguments that have a value already."""
        return {} if self.context is None else self.context.arguments or {}


# --- subscriptions and tasks ----------------------------------------------------------------------------------------


class WantedNotifications(Params, frozen=True):
    """What a client wants to be notified of; `task_ids` is None where it asks about no tasks at all.

    A URI or an id that is no text is unknown like any other wrong one, and not granted.
    """

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[Any] | None = None
    task_ids: list[Any] | None = None

    def wants_list(self, kind: str) -> bool:
        return getattr(self, f"{kind}_list_changed") is True

    @property
    def uris(self) -> list[str]:
        return [each for each in self.resource_subscriptions or () if isinstance(each, str)]


class Listen(Params, frozen=True):
    notifications: WantedNotifications


class AboutTask(Params, frozen=True):
    task_id: str


class UpdateTask(AboutTask, frozen=True):
    input_responses: dict[str, Any]


# --- notifications --------------------------------------------------------------------------------------------------


class Cancelled(Params, frozen=True):
    request_id: RequestId


class Progress(Params, frozen=True):
    progress: int | float
    total: int | float | None = None
    message: str | None = None


class LogMessage(Params, frozen=True):
    data: Any = None
    level: str = "info"


class Updated(Params, frozen=True):
    uri: str


# --- reading --------------------------------------------------------------------------------------------------------


def read_params(method: str, params: dict[str, Any], type: type[T]) -> T:
    """Read the parameters of a request; raise ProtocolError with INVALID_PARAMS if they do not match the method."""
    try:
        return msgspec.convert(params, type)
    except msgspec.ValidationError as error:
        raise ProtocolError(INVALID_PARAMS, f"The params of {method:.100} are not valid: {error}") from None


def read_notice(params: dict[str, Any], type: type[T]) -> T | None:
    """Read the parameters of a notification; None if they are invalid, because it has no response."""
    try:
        return msgspec.convert(params, type)
    except msgspec.ValidationError:
        return None
