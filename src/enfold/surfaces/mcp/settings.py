"""The settings of the MCP server. Fields with a description are keys of `[agents]` in a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from enfold.formats import DEFAULT_FORMAT
from enfold.surfaces.limits import Limits

Mode: TypeAlias = Literal["all", "search", "auto"]
ToolNames: TypeAlias = Literal["safe", "id"]
ResultForm: TypeAlias = Literal["text", "both"]

DEFAULT_BUDGET: Final = 10_000

_PATTERNS: Final = {"file": str | list[str], "expected": "a pattern or a list of patterns"}
_FORMS: Final = {"file": dict[str, ResultForm], "expected": "a table of clients, for each text or both"}


class MCPSettings(msgspec.Struct, frozen=True):
    """Settings of the MCP server. Tokens are estimates; `expose` may also map namespaces to one of its modes."""

    name: str | None = None  # of the application, where it is not the registry's own
    version: str | None = None
    instructions: str | None = None
    format: str = DEFAULT_FORMAT
    tool_names: ToolNames = "safe"
    page_size: int = 1_000
    page_bytes: int = 4_000_000  # of a page with more than one item: large schemas make large tools
    ttl_ms: int = 0  # how long a client may keep a list without asking again
    collect_for: float = 30.0  # seconds after which a stream without an end is returned with the items received so far
    secret: bytes | None = None  # signs request states; several processes share one
    session_prefix: str = ""  # tells several processes whose session it is
    recorder: Any = None  # a provenance.Recorder, where callers may ask for records
    limits: Limits = Limits()
    tasks: Any = None  # a tasks.Tasks, where durable operations may run as tasks
    expose: Annotated[
        Mode | Mapping[str, Mode],
        Meta(description="whether tools are listed, or found by search", extra={"file": Mode}),
    ] = "all"
    pinned: Annotated[str | Sequence[str], Meta(description="tools that are always listed", extra=_PATTERNS)] = ()
    budget: Annotated[
        int, Meta(description="that a list may cost before `auto` switches to search", extra={"unit": "tokens"})
    ] = DEFAULT_BUDGET
    max_instructions: Annotated[
        int,
        Meta(
            description="for the instructions of all sources together; 0 for none",
            extra={"file": Annotated[int, Meta(ge=0)], "unit": "characters"},
        ),
    ] = 8_000
    max_result_tokens: Annotated[
        int | None,
        Meta(description="that a result may cost; longer ones are truncated", extra={"unit": "tokens"}),
    ] = None
    clients: Annotated[
        Mapping[str, ResultForm],
        Meta(description="the form of results for a client, by the name in its `clientInfo`", extra=_FORMS),
    ] = {}
