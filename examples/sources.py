"""Three sources, one envelope: a function, an HTTP service and an MCP server."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn

from enfold import OperationRegistry
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.sources.options import Selection
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

ops = OperationRegistry("here")


@ops.query
async def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


@contextmanager
def served() -> Iterator[str]:
    """Serve the same function over HTTP and MCP, as something to call."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = to_http(ops, mounts={"/mcp": to_mcp(ops)})
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


async def main(url: str) -> None:
    everything = OperationRegistry()
    everything.register_all([ops.get("here.add")])
    everything.register_all(from_openapi(f"{url}/openapi.json", namespace="service", selection=Selection("here_add")))
    async with from_mcp(f"{url}/mcp", namespace="server") as operations:
        everything.register_all(operations)
        for spec in everything.list():
            envelope = await everything.execute(spec.id, {"x": 1, "y": 2})
            print(spec.id, envelope.data, envelope.meta.source)


if __name__ == "__main__":
    with served() as url:
        asyncio.run(main(url))
