"""The results of MCP requests as typed values, one class for each method: a server writes them, a source reads them. No I/O.

Fields that a revision does not have stay unset. What another server may have sent is passed on unchanged: content, schemas, listed
definitions and `_meta` are plain objects, or JSON text (`msgspec.Raw`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Text: TypeAlias = str | UnsetType
Object: TypeAlias = dict[str, Any]


class Result(msgspec.Struct, rename="camel", kw_only=True):
    """A result without fields of its own. A stateless client learns its kind, and of some how long they may be cached."""

    ttl_ms: int | UnsetType | None = UNSET
    cache_scope: Literal["public", "private"] | UnsetType = UNSET
    meta: Object | UnsetType = msgspec.field(name="_meta", default=UNSET)
    result_type: Text = UNSET

    def add_meta(self, meta: Object) -> None:
        self.meta = meta if self.meta is UNSET else {**self.meta, **meta}


class InputRequest(msgspec.Struct, frozen=True):
    """One question for the client."""

    method: str = ""
    params: Object = {}


class InputRequired(Result):
    """The questions that the client answers before the request goes on; the state comes back with the answers."""

    input_requests: Object = {}
    request_state: Any = UNSET
    result_type: Text = msgspec.field(default="input_required")


# --- the handshake, and what replaced it ----------------------------------------------------------------------------


class InitializeResult(Result):
    protocol_version: str
    capabilities: Object = {}
    server_info: Object = {}
    instructions: Text = UNSET


class DiscoverResult(Result):
    supported_versions: list[Any] = []
    capabilities: Object = {}
    instructions: Text = UNSET


# --- lists, tools, resources and prompts ----------------------------------------------------------------------------


class ListResult(Result):
    """One page of a list: its items, whose name is that of the list, and where the next page begins."""

    @property
    def items(self) -> list[Any]:
        found: list[Any] = getattr(self, self.__struct_fields__[0])
        return found


class ToolList(ListResult):
    tools: list[Any] = []
    next_cursor: Any = UNSET


class ResourceList(ListResult):
    resources: list[Any] = []
    next_cursor: Any = UNSET


class TemplateList(ListResult):
    resource_templates: list[Any] = []
    next_cursor: Any = UNSET


class PromptList(ListResult):
    prompts: list[Any] = []
    next_cursor: Any = UNSET


AnyList: TypeAlias = ToolList | ResourceList | TemplateList | PromptList


class ToolResult(Result):
    content: Any = []  # servers that send something else than a list get a warning, and no error
    is_error: bool = False
    structured_content: Any = UNSET


class Contents(Result):
    """The result of `resources/read`."""

    contents: list[Any] = []


class PromptMessages(Result):
    """The result of `prompts/get`."""

    description: Any = UNSET
    messages: list[Any] = []


class Completion(msgspec.Struct, frozen=True, rename="camel"):
    """The first values, and what is known of their number."""

    total: Any = UNSET
    has_more: Any = UNSET
    values: list[Any] = []


class CompletionResult(Result):
    completion: Completion = Completion()


# --- tasks ----------------------------------------------------------------------------------------------------------


class TaskDetails(Result):
    """A task as it is now; with the kind `task` it is the result of the call that began it."""

    task_id: str = ""
    status: str = ""
    created_at: Text = UNSET
    last_updated_at: Text = UNSET
    ttl_ms: int | UnsetType | None = msgspec.field(default=UNSET)
    poll_interval_ms: int | float | UnsetType = UNSET
    status_message: Text = UNSET
    input_requests: Object | UnsetType = UNSET
    result: Any = UNSET
    error: Any = UNSET


class BegunTask(Result):
    """The result of a call that began a task of the revision 2025-11-25."""

    task: TaskDetails
