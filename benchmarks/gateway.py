"""One MCP call through a gateway (HTTP in, HTTP upstream): CPU of the gateway beside that of the same call made directly.

`python -m benchmarks.gateway ROUNDS` runs the comparison; `... serve NAME PORT UPSTREAM` is one of the gateways.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Final

from benchmarks import work
from benchmarks.harness import Comparison, Contender, Goal
from benchmarks.mcp_http import Server, contender, serving
from benchmarks.mcp_servers import ENFOLD
from benchmarks.program import compare_all

DIRECT: Final = "enfold, called directly"
GATEWAY: Final = "enfold, as a gateway"
FASTMCP: Final = "FastMCP, as a proxy"

BATCH_US: Final = 600_000.0
GOALS: Final = (Goal(GATEWAY, DIRECT, "at most", 6), Goal(FASTMCP, GATEWAY, "at least", 150))


def main(rounds: int) -> int:
    with ExitStack() as stack:
        direct = stack.enter_context(serving("mcp_servers", ENFOLD))
        upstream = f"http://127.0.0.1:{direct.port}/mcp"
        servers = {
            DIRECT: direct,
            GATEWAY: stack.enter_context(serving("gateway", "serve", GATEWAY, more=(upstream,))),
            FASTMCP: stack.enter_context(serving("gateway", "serve", FASTMCP, more=(upstream,))),
        }
        contenders = tuple(_contender(name, server) for name, server in servers.items())
        title = "an MCP call through a gateway, HTTP in and HTTP upstream, `add`"
        return compare_all(
            "gateway", [Comparison(title, contenders, (DIRECT, GATEWAY), GOALS, "cpu", BATCH_US)], rounds
        )


def _contender(name: str, server: Server) -> Contender:
    return contender(name, server, "add", work.ADD_INPUT, work.ADD_ANSWER)


# --- the gateways -------------------------------------------------------------------------------------------------


def serve(name: str, port: int, upstream: str) -> None:
    logging.disable(logging.WARNING)
    os.environ["FASTMCP_LOG_LEVEL"] = "ERROR"
    import uvloop

    uvloop.run(_enfold(port, upstream) if name == GATEWAY else _fastmcp(port, upstream))


async def _enfold(port: int, upstream: str) -> None:
    from enfold import OperationRegistry
    from enfold.sources.mcp import from_mcp
    from enfold.surfaces.mcp import to_mcp

    async with from_mcp(upstream) as operations:
        registry = OperationRegistry()
        registry.register_all(operations)
        await _run(to_mcp(registry), port)


async def _fastmcp(port: int, upstream: str) -> None:
    # By name: the type checker works in the project's own environment, where FastMCP is not.
    proxy = import_module("fastmcp.server").create_proxy(upstream)
    await _run(proxy.http_app(path="/mcp", json_response=True), port)


async def _run(app: Any, port: int) -> None:
    import uvicorn

    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", access_log=False)
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main(int(sys.argv[1])))
