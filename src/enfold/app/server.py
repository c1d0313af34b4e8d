"""uvicorn's server as `App` runs it: shutdown, and a socket shared by several processes. Needs the extra `http`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import httptools  # noqa: F401  # which uvicorn alone does not bring
import uvicorn

from enfold.app.sockets import BACKLOG, ServerSettings
from enfold.app.worker_processes import Accepting, Worker
from enfold.errors import CallError
from enfold.operations.access import words
from enfold.surfaces.asgi import ASGIApp
from enfold.surfaces.http.uvicorn_protocol import limited_protocol
from enfold.surfaces.limits import Limits

if TYPE_CHECKING:
    from socket import socket

ON_STOP_TIME: Final = 4.0  # seconds that functions of `on_stop` have at least, beside the grace
LAST_WRITES: Final = 1.0  # seconds that answers have to be written, when calls are no longer waited for


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop that uvicorn prefers."""
    return _config(None, Limits()).get_loop_factory()


def _config(app: Any, limits: Limits, **settings: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(limits),
        ws="none",
        log_level="warning",
        log_config=None,
        server_header=False,
        **settings,
    )


class HTTPServer(uvicorn.Server):
    """An app on a socket until `end` is called: then streams are ended, and calls finish within the grace period."""

    def __init__(self, app: ASGIApp, limits: Limits, stop: Callable[[], None], settings: ServerSettings) -> None:
        """`stop` ends the app's streams, which would otherwise not end."""
        files, proxies, grace = settings.certificate, list(words(settings.proxies)), settings.grace
        tls = {} if files is None else {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
        # By default uvicorn trusts every process of this machine, and the addresses in FORWARDED_ALLOW_IPS.
        forwarded = {"proxy_headers": bool(proxies), "forwarded_allow_ips": proxies}
        timing: Any = {"timeout_graceful_shutdown": grace, "backlog": BACKLOG}
        super().__init__(_config(app, limits, root_path=settings.root_path, **timing, **forwarded, **tls))
        self._stop = stop
        self._shutdown_time = grace + ON_STOP_TIME
        self._is_hurried = asyncio.Event()

    async def serve(self, sockets: list[socket] | None = None) -> None:
        """Serve until stopped; the caller handles signals."""
        try:
            await self._serve(sockets)
        except SystemExit:  # uvicorn's way to say that the app could not start, which it has logged
            raise CallError("UNAVAILABLE", "The server could not start: see the log") from None

    def end(self) -> None:
        """End it; a second time, without waiting for calls or for functions of `on_stop`."""
        if self.should_exit:
            self.force_exit = True
            self._is_hurried.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._stop()
        closing = asyncio.ensure_future(super().shutdown(sockets))
        hurrying = asyncio.ensure_future(self._is_hurried.wait())
        await asyncio.wait({closing, hurrying}, timeout=self._shutdown_time, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if self._is_hurried.is_set():
            await asyncio.wait({closing}, timeout=LAST_WRITES)
        if not closing.cancel():
            closing.result()


class WorkerServer(HTTPServer):
    """The server of one of several processes: it takes connections one by one, as its siblings do."""

    def __init__(self, worker: Worker, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._worker = worker

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets=[])
        (listening,) = sockets or []
        own = self.server_state.connections
        self._accepting = accepting = Accepting(
            listening, self._protocol, self.config.ssl, self._worker, lambda: len(own)
        )
        protocol: Any = self.config.http_protocol_class

        class CountedProtocol(protocol):  # type: ignore[misc]  # a class made for the limits of this server
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                accepting.publish()

        self._make_protocol = CountedProtocol

    def _protocol(self) -> Any:
        return self._make_protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._accepting.close()
        await super().shutdown(sockets)
