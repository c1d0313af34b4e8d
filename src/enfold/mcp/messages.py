"""The parameters of MCP requests and notifications as typed values; one class for each, in every revision. No I/O.

Fields that a method does not use are ignored. `_meta` stays a plain object: its keys are open.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from enfold.mcp.json_rpc import INVALID_PARAMS, ErrorObject, ProtocolError, RequestId

T = TypeVar("T", bound=msgspec.Struct)


class Params(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The parameters of a method that has none."""

    meta: Any = msgspec.field(name="_meta", default=UNSET)


class Resumable(Params, frozen=True, kw_only=True):
    """Parameters of a request that a stateless client sends again with the answers to the questions it was asked."""

    input_responses: dict[str, Any] | None = None
    request_state: str | None = None  # a source sends it back exactly as received


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


class CallTool(Resumable, frozen=True):
    name: str
    arguments: Any = None  # wrong ones are the tool's failure, and no error of the protocol
    task: dict[str, Any] | None = None  # runs it as a task, in the revision 2025-11-25 alone


class ReadResource(Resumable, frozen=True):
    uri: str


class GetPrompt(Resumable, frozen=True):
    name: str
    arguments: dict[str, Any] | None = None


class Subscribe(Params, frozen=True):
    uri: str


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prompt, by its name, or the resource, by its URI, of which an argument is completed."""

    type: Literal["ref/prompt", "ref/resource"]
    name: str = ""
    uri: str = ""


class PartialArgument(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class CompletionContext(msgspec.Struct, frozen=True):
    arguments: dict[str, Any] | None = None


class Complete(Resumable, frozen=True):
    ref: Reference
    argument: PartialArgument
    context: CompletionContext | None = None

    @property
    def others(self) -> dict[str, Any]:
        """The arguments that have a value already."""
        return {} if self.context is None else self.context.arguments or {}


# --- subscriptions and tasks ----------------------------------------------------------------------------------------


class WantedNotifications(Params, frozen=True):
    """What a client wants to be notified of, or is granted; `task_ids` is None where it asks about no tasks at all.

    A URI or an id that is no text is unknown like any other wrong one, and not granted.
    """

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[Any] | None = None
    task_ids: list[Any] | None = None

    @classmethod
    def of(
        cls, kinds: Container[str], uris: list[str] | None = None, task_ids: list[str] | None = None
    ) -> WantedNotifications:
        """Those of changed lists, by their kinds, of resources and of tasks."""
        return cls("tools" in kinds or None, "prompts" in kinds or None, "resources" in kinds or None, uris, task_ids)

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
    reason: str | None = None


class Progress(Params, frozen=True):
    progress_token: RequestId
    progress: int | float
    total: int | float | None = None
    message: str | None = None


class LogMessage(Params, frozen=True):
    level: str | UnsetType = UNSET
    logger: str | UnsetType = UNSET
    data: Any = UNSET


class Updated(Params, frozen=True):
    uri: str


# --- reading --------------------------------------------------------------------------------------------------------


def read_params(method: str, params: dict[str, Any], type: type[T]) -> T:
    """Read the parameters of a request; raise ProtocolError with INVALID_PARAMS if they do not match the method."""
    try:
        return msgspec.convert(params, type)
    except msgspec.ValidationError as error:
        raise ProtocolError(INVALID_PARAMS, f"The params of {method:.100} are not valid: {error}") from None


def read_loosely(value: Any, type: type[T]) -> T | None:
    """Read a notification or a result of a peer that may be sloppy; None if it lacks a field that is required.

    A field with a value of the wrong type counts as absent.
    """
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError:
        fitting: dict[str, Any] = {}
    for field in msgspec.structs.fields(type) if isinstance(value, Mapping) else ():
        with suppress(msgspec.ValidationError, KeyError):
            msgspec.convert(value[field.encode_name], field.type)
            fitting[field.encode_name] = value[field.encode_name]
    try:
        return msgspec.convert(fitting, type)
    except msgspec.ValidationError:
        return None


def read_error(error: Any) -> ProtocolError:
    """Read the error object of a peer, however incomplete it is."""
    found = read_loosely(error, ErrorObject) or ErrorObject()
    return ProtocolError(found.code, found.message or "An error was reported without a message", found.data)
