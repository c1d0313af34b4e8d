"""A real server for tests: an ASGI app under uvicorn in a thread, and a client that speaks to it over a socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import msgspec
import uvicorn

from enfold.surfaces.http.uvicorn_protocol import limited_protocol
from enfold.surfaces.limits import Limits

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """A response as received; header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Speaks to one server; each request has a connection of its own."""

    def __init__(self, port: int, server: Server) -> None:
        self.port = port
        self.server = server

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=_spelled(headers))

    def post(self, path: str, value: Any, **headers: str) -> Answer:
        sent = {"Content-Type": "application/json", **_spelled(headers)}
        return self.request("POST", path, json.dumps(value).encode(), sent)

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())

    def connect(self) -> socket.socket:
        """A bare connection, for what no decent client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextmanager
def serve(app: Any, limits: Limits | None = None, *, port: int = 0) -> Iterator[Client]:
    """Serve an app on a free port, or this one, until the block is left, within the limits that `enfold serve` has."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(
            app,
            http=limited_protocol(limits or Limits()),
            log_level="critical",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert server.is_ready.wait(30), "the server did not start"
            yield Client(listener.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server did not end"


def is_listening(port: int) -> bool:
    """Whether a program accepts connections at a port of this machine."""
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server(uvicorn.Server):
    """Says when it is ready, and lets a test do something where it runs."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        finally:
            self.is_ready.set()

    def run_there(self, work: Callable[[], T]) -> T:
        """Call a function in the server's own thread and loop."""
        assert self._loop is not None
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(30)

    def task_count(self) -> int:
        return self.run_there(lambda: len(asyncio.all_tasks()))
