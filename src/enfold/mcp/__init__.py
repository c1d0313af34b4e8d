"""The MCP protocol as values, and functions for handlers that ask the client. No I/O; used by the source and the surface."""

from enfold.mcp.offers import PromptMessage, completion
from enfold.operations.questions import (
    Answer,
    Question,
    ask,
    client_capabilities,
    close_stream,
    elicit,
    elicitation,
    list_roots,
    remember,
    resource_updated,
    roots,
    sample,
    sampling,
)

__all__ = [
    "Answer",
    "PromptMessage",
    "Question",
    "ask",
    "client_capabilities",
    "close_stream",
    "completion",
    "elicit",
    "elicitation",
    "list_roots",
    "remember",
    "resource_updated",
    "roots",
    "sample",
    "sampling",
]
