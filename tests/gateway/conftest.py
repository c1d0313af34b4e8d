"""A gateway with a small upstream server of each protocol generation, and one on the SDK with both."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import uvicorn
from tests.sources.mcp import sdk_server
from tests.waiting import until

from enfold import OperationRegistry
from enfold.app.reconciler import open_config
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

SERVERS = Path(__file__).parents[1] / "sources/mcp"
ERAS = ["legacy", "2026-07-28"]

Open: TypeAlias = Callable[..., AbstractAsyncContextManager["Gateway"]]


class Gateway:
    """What a test needs of an open gateway."""

    def __init__(self, registry: OperationRegistry, url: str, marks: Path) -> None:
        self.registry = registry
        self.url = url
        self.mcp = f"{url}/mcp"
        self.marks = marks


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Any:
    """What the client speaks."""
    return request.param


@pytest.fixture
def gateway(tmp_path: Path) -> Open:
    """Open a gateway; the little server of the older era has the habits that are given."""

    @asynccontextmanager
    async def opened(*habits: str) -> AsyncIterator[Gateway]:
        marks, config = tmp_path / "marks", tmp_path / "mcp.json"
        little = [str(SERVERS / "little_server.py"), "--marks", str(marks)]
        async with serve(sdk_server.make_server().streamable_http_app()) as both:
            servers = {
                "old": {"command": sys.executable, "args": [*little, *habits]},
                "new": {"command": sys.executable, "args": [*little, "--era", "stateless"]},
                "both": {"url": f"{both}/mcp"},
                "down": {"command": "no-such-program"},
            }
            config.write_text(json.dumps({"mcpServers": servers}))
            async with open_config(config, {}) as registry:
                app = to_http(registry, mounts={"/mcp": to_mcp(registry)})
                async with serve(app, app.stop) as url:
                    yield Gateway(registry, url, marks)

    return opened


@asynccontextmanager
async def serve(app: Any, stop: Callable[[], None] = lambda: None) -> AsyncIterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stop()
        server.should_exit = True
        await running
        listening.close()
