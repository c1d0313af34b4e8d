"""Real little servers for the tests, and the proof after each test that nothing of them is left."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import uvicorn
from tests.waiting import until

HERE = Path(__file__).parent

Little: TypeAlias = Callable[..., list[str]]


@pytest.fixture
def little() -> Little:
    """The command of the little server with some of its habits."""

    def command(*options: str) -> list[str]:
        return [sys.executable, str(HERE / "little_server.py"), *options]

    return command


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task or process of ours is left behind by a test."""
    before = children()
    yield
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if "src/enfold" in repr(task) and not task.done()] == []
    assert children() - before == set()


def children() -> set[int]:
    """The processes that this one has started and that still run; none where there is no /proc."""
    found = Path("/proc").glob("[0-9]*/stat")
    return {int(path.parent.name) for path in found if _parent(path) == os.getpid()}


def _parent(path: Path) -> int | None:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return None
    return None if fields[0] == "Z" else int(fields[1])


# --- servers over HTTP --------------------------------------------------------------------------------------------

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def serve() -> Serve:
    """Serve an ASGI app on a port of this machine, for as long as the block is open."""

    @asynccontextmanager
    async def serve(app: Any, port: int = 0) -> AsyncIterator[str]:
        listening = socket.create_server(("127.0.0.1", port))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
            listening.close()

    return serve
