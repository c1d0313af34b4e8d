"""What callers without a token get where one is needed: the public operations, and for everything else that they need one."""

from __future__ import annotations

from typing import Any, Final

from enfold.mcp.json_rpc import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND
from enfold.surfaces.mcp.client_exchange import ClientExchange
from enfold.surfaces.mcp.reply import RefusalError
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.tool_results import ERROR_KEY

__all__ = ["PublicServer"]

_UNKNOWN: Final = (INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND)


class PublicServer(MCPServer):
    """A server of public operations: what it does not know may be there for somebody who has a token."""

    async def respond(self, exchange: ClientExchange) -> dict[str, Any]:
        return _known(await super().respond(exchange), is_told=not self.is_quick(exchange.method))

    def respond_now(self, exchange: ClientExchange) -> dict[str, Any]:
        return _known(super().respond_now(exchange))


def _known(answer: dict[str, Any], *, is_told: bool = False) -> dict[str, Any]:
    """The answer, unless it says that there is no such thing; that of an operation that ran names its error."""
    error = answer.get("error")
    if error is not None and error["code"] in _UNKNOWN and ERROR_KEY not in (error.get("data") or {}):
        raise RefusalError(404, is_told=is_told)
    return answer
