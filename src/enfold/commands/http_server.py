"""The HTTP server that `enfold serve` runs: its socket, its certificate, and how it comes to its end."""

from __future__ import annotations

from collections.abc import Callable
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.errors import CallError
from enfold.surfaces.bounds import Bounds

if TYPE_CHECKING:
    from socket import socket

    from enfold.workers import Worker

GRACE: Final = 25.0  # seconds that calls may take to finish at the end; what starts us often kills us after 30
STOPPING: Final = 4.0  # seconds that functions of `on_stop` have at least, beside the grace
HURRY: Final = 1.0  # seconds that answers have to be written, when nothing is waited for
BACKLOG: Final = 2048


class Certificate(msgspec.Struct, frozen=True):
    """The files of a certificate and of its key."""

    certificate: str
    key: str | None = None


# --- what can be wrong is found before anything is opened ---------------------------------------------------------


def bind(host: str, port: int) -> socket:
    """A socket bound to its address; it listens only after `start_listening`."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise _unusable(host, port, error) from None
    return listening


def start_listening(listening: socket) -> None:
    """Listen: from now on clients can connect, so the address may be printed."""
    try:
        listening.listen(BACKLOG)
    except OSError as error:  # another had bound the address too, and was first to listen
        host, port = listening.getsockname()[:2]
        listening.close()
        raise _unusable(host, port, error) from None


def _unusable(host: str, port: int, error: Exception) -> CallError:
    reason = (
        "is in use: choose another with --port"
        if getattr(error, "errno", None) == EADDRINUSE
        else f"cannot be used: {error}"
    )
    return CallError("UNAVAILABLE", f"Port {port} on {host} {reason}")


def check_certificate(files: Certificate) -> None:
    """Read the certificate and its key as the server will; what is wrong is one sentence."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return
    place = files.certificate if files.key is None else f"{files.certificate} and {files.key}"
    raise CallError("VALIDATION_ERROR", f"The certificate cannot be read from {place}: {reason}")


# --- serving ------------------------------------------------------------------------------------------------------


def loop_factory() -> Callable[[], Any] | None:
    """The event loop that the server prefers."""
    factory: Callable[[], Any] | None = _config(_no_app, Bounds()).get_loop_factory()
    return factory


class HTTPServer:
    """An app on a socket, until `end` is called: then streams are ended, and calls finish within the grace."""

    def __init__(
        self,
        app: Any,
        bounds: Bounds,
        stop: Callable[[], None],
        *,
        certificate: Certificate | None = None,
        root_path: str = "",
        grace: float = GRACE,
        worker: Worker | None = None,
    ) -> None:
        """`stop` ends the streams of the app, which have no end of their own; a worker shares its socket with others."""
        server_class = _server_class(stop) if worker is None else _worker_class(_server_class(stop), worker)
        tls = {} if certificate is None else {"ssl_certfile": certificate.certificate, "ssl_keyfile": certificate.key}
        self._server = server_class(
            _config(app, bounds, root_path=root_path, timeout_graceful_shutdown=grace, backlog=BACKLOG, **tls)
        )

    async def serve(self, sockets: list[socket]) -> None:
        """Serve until the end; signals are for whoever runs us."""
        try:
            await self._server._serve(sockets)
        except SystemExit:  # uvicorn's way to say that the app could not start, which it has told
            raise CallError("UNAVAILABLE", "The server could not start") from None

    def end(self) -> None:
        """End it; a second time, without waiting for calls or for functions of `on_stop`."""
        if self._server.should_exit:
            self._server.force_exit = True
            self._server.is_hurried.set()
        self._server.should_exit = True


def _server_class(stop: Callable[[], None]) -> Any:
    """uvicorn's server, which is loaded when it is needed; signals are not its business, and its end has an end."""
    import asyncio

    class Server(_uvicorn().Server):  # type: ignore[misc]  # see above
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.is_hurried = asyncio.Event()

        async def shutdown(self, sockets: list[Any] | None = None) -> None:
            stop()
            closing = asyncio.ensure_future(super().shutdown(sockets))
            hurrying = asyncio.ensure_future(self.is_hurried.wait())
            within = self.config.timeout_graceful_shutdown + STOPPING
            await asyncio.wait({closing, hurrying}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            hurrying.cancel()
            if self.is_hurried.is_set():
                await asyncio.wait({closing}, timeout=HURRY)
            if not closing.cancel():
                closing.result()

    return Server


def _worker_class(server: Any, worker: Worker) -> Any:
    """`_server_class` for one of several processes: it takes connections one by one, as its siblings do."""
    from enfold.workers import Accepting

    class WorkerServer(server):  # type: ignore[misc]  # see above
        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets=[])
            listening = (sockets or [])[0]
            state, config = self.server_state, self.config
            self._accepting = Accepting(
                listening, self._protocol, config.ssl, worker.connections, worker.number, lambda: len(state.connections)
            )

        def _protocol(self) -> Any:
            config = self.config
            make = config.http_protocol_class
            return make(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        async def on_tick(self, counter: int) -> bool:
            self._accepting.publish()
            is_over: bool = await super().on_tick(counter)
            return is_over

        async def shutdown(self, sockets: list[Any] | None = None) -> None:
            self._accepting.close()
            await super().shutdown(sockets)

    return WorkerServer


def _config(app: Any, bounds: Bounds, **more: Any) -> Any:
    uvicorn = _uvicorn()
    from enfold.surfaces.asgi.uvicorn_protocol import bounded_protocol

    settings: dict[str, Any] = {"ws": "none", "log_level": "warning", "log_config": None, "server_header": False}
    return uvicorn.Config(app, http=bounded_protocol(bounds), **settings, **more)


def _uvicorn() -> Any:
    try:
        import httptools  # noqa: F401  # which uvicorn alone does not bring
        import uvicorn
    except ImportError as error:
        raise CallError("UNAVAILABLE", f"serve needs {error.name}: pip install 'enfold[http]'") from None
    return uvicorn


async def _no_app(*_: object) -> None:
    """Stands for an app where only the settings are wanted."""
