"""The application: a registry, and everything that is needed to serve it.

`enfold serve` builds an `App` from its options and configuration. Sources, configuration files and the command line
stay outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import msgspec

from enfold.app.signals import Grace, ended_by_signals, run_server
from enfold.app.sockets import ServerSettings, bind, start_listening
from enfold.auth.tokens import AnyOf, Verifier, is_loopback
from enfold.errors import missing_package
from enfold.observability.metrics import CallCounts, CountsSnapshot
from enfold.operations import Policy
from enfold.operations.access import words
from enfold.operations.policy import CallLimits
from enfold.runtime.registry import Registry
from enfold.surfaces.http import HTTPApp, HTTPSettings, to_http
from enfold.surfaces.http.metrics import to_metrics
from enfold.surfaces.introspection import keep_calls
from enfold.surfaces.introspection.about import source_summaries
from enfold.surfaces.limits import Limits
from enfold.surfaces.mcp import MCPApp, MCPSettings, to_mcp

if TYPE_CHECKING:
    from socket import socket

    from enfold.app.siblings import SelfReport
    from enfold.app.worker_processes import Worker
    from enfold.auth.issuers import Issuer
    from enfold.provenance import Recorder
    from enfold.surfaces.asgi import ASGIApp
    from enfold.surfaces.introspection.calls import CallLog, Payloads
    from enfold.tasks import Tasks

__all__ = ["App", "HTTPSettings", "Limits", "MCPSettings", "ServerSettings"]

MCP_PATH = "/mcp"


class App:
    """Serves a registry: with authentication, tasks, provenance and limits that all surfaces share.

    `http()` returns an ASGI app with everything, `mcp()` one with only the MCP server, and `run()` serves until a signal
    arrives. Without a server, `async with app:` runs the `on_start` and `on_stop` functions.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        tokens: Verifier | None = None,
        issuers: Iterable[Issuer] = (),
        allow_anonymous: bool = False,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        tasks: Tasks | None = None,
        recorder: Recorder | None = None,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        mcp: MCPSettings = MCPSettings(),  # noqa: B008  # frozen
    ) -> None:
        """Create an application; nothing is opened before it starts.

        Args:
            registry: The operations to serve.
            tokens: Verifies bearer tokens, such as `Tokens`. Without `tokens` and `issuers`, everyone may call.
            issuers: Issuers whose access tokens (JWTs) are accepted.
            allow_anonymous: Also accept calls without a token; access rules still apply.
            allowed_hosts: Host names that requests may have, besides those of this machine.
            allowed_origins: Origins of web pages that may call.
            tasks: Runs durable operations. Unless it is running already, it starts and stops with the app.
            recorder: Records provenance.
            limits: Limits per caller and per connection.
            mcp: Settings of the MCP server.
        """
        self.registry = registry
        self.services = services = registry.services
        self.limits = limits
        self.tasks = tasks
        self.recorder = recorder
        self.tokens = _verifier(tokens, issuers)
        self.payloads: Payloads | None = None  # keeps arguments and results of the last calls, for the console
        self._access: dict[str, Any] = {
            "tokens": self.tokens,
            "allow_anonymous": allow_anonymous,
            "allowed_hosts": tuple(words(allowed_hosts)),
            "allowed_origins": tuple(words(allowed_origins)),
        }
        self._mcp_settings = mcp
        self._exposes_errors = True
        self._counts = CallCounts(registry)
        self._surfaces: list[HTTPApp | MCPApp] = []
        if tasks is not None:
            services.gauges["tasks"] = lambda: {"working": tasks.runner.working}
            if not tasks.runner.is_running:
                services.lifetime.add(tasks.begin, tasks.close)

    # surfaces

    def http(
        self,
        settings: HTTPSettings = HTTPSettings(),  # noqa: B008  # frozen
        *,
        mounts: Mapping[str, ASGIApp] | None = None,
    ) -> HTTPApp:
        """Return an ASGI app with the HTTP API, its OpenAPI document, the console, `/tasks`, `/mcp` and `/metrics`.

        `mounts` are more ASGI apps by path; one at `/mcp` or `/metrics` replaces that of the application.
        """
        own: dict[str, Any] = {"/metrics": self._metrics(), **(mounts or {})}
        if MCP_PATH not in own:
            own[MCP_PATH] = self.mcp(max_body=settings.max_body)
        settings = msgspec.structs.replace(settings, expose_errors=settings.expose_errors and self._exposes_errors)
        app = to_http(self._served, settings, mounts=own, recorder=self.recorder, tasks=self.tasks, **self._access)
        self._surfaces.append(app)
        return app

    def mcp(self, **options: Any) -> MCPApp:
        """Return an ASGI app with only the MCP server; `options` are those of `to_mcp`."""
        chosen = {
            **msgspec.structs.asdict(self._mcp_settings),
            "limits": self.limits,
            "recorder": self.recorder,
            "tasks": self.tasks,
        }
        app = to_mcp(self._served, expose_errors=self._exposes_errors, **self._access, **{**chosen, **options})
        self.services.gauges["sessions"] = lambda: {"mcp": app.sessions}
        self._surfaces.append(app)
        return app

    @cached_property
    def _served(self) -> Registry:
        """The registry with the limits of this application, which all its surfaces share."""
        policy = Policy(limits=_call_limits(self.limits), payloads=self.payloads)
        return self.registry.with_policy(policy)

    def _metrics(self) -> ASGIApp:
        """Return the app at `/metrics`; calls are counted only if prometheus-client is installed."""
        from importlib.util import find_spec

        if find_spec("prometheus_client") is not None:
            self.services.observers.add(self._counts.count)
        siblings = self.services.siblings

        async def others() -> list[CountsSnapshot]:
            return [] if siblings is None else msgspec.convert(await siblings.ask("counts"), list[CountsSnapshot])

        return to_metrics(self._counts, has_identities=self.tokens is not None, others=others)

    # start and stop

    async def __aenter__(self) -> Self:
        await self.services.lifetime.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_streams()
        await self.services.lifetime.stop()

    def end_streams(self) -> None:
        """End open streams and sessions, which would otherwise stay open after the last request."""
        for surface in self._surfaces:
            surface.stop()

    def run(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        http: HTTPSettings = HTTPSettings(),  # noqa: B008  # frozen
        server: ServerSettings = ServerSettings(),  # noqa: B008  # frozen
        insecure: bool = False,
    ) -> None:
        """Serve `http()` until SIGINT or SIGTERM; running calls may finish within the grace period.

        Beyond the loopback the server needs `tokens` or `issuers`, unless `insecure` is set, and hides the text of
        unexpected exceptions.
        """
        factory = loop_factory()
        if not is_loopback(host):
            if self.tokens is None and not insecure:
                raise ValueError(
                    f"Serving on {host} without tokens gives everyone access: pass tokens=, or insecure=True"
                )
            self._exposes_errors = False
        with bind(host, port) as listening:
            grace = Grace(server.grace)
            run_server(self.serve(self.http(http), listening, server, grace), factory)

    async def serve(
        self,
        app: HTTPApp,
        listening: socket,
        settings: ServerSettings,
        grace: Grace,
        *,
        worker: Worker | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve an app of `http()` on a bound socket until a signal ends it; `ready` is called when clients can connect."""
        from enfold.app.server import HTTPServer, WorkerServer  # which needs the extra `http`

        def stop() -> None:
            grace.begin()  # what is left of it when the calls have ended is for tasks
            self.end_streams()

        self.services.grace = lambda: grace.left
        log = keep_calls(self.registry, self.payloads)  # from the start, not from the first time that it is read
        start_listening(listening)
        if worker is None:
            server = HTTPServer(app, self.limits, stop, settings)
            with ended_by_signals(server.end):
                ready()
                await server.serve([listening])
            return
        from enfold.app.siblings import SessionRouter, end_with_parent, listen_to_siblings

        server = WorkerServer(worker, SessionRouter(app, worker), self.limits, stop, settings)
        with ended_by_signals(server.end):
            async with listen_to_siblings(worker, app, self._report(log)), end_with_parent(worker, server.end):
                ready()
                await server.serve([listening])

    def _report(self, log: CallLog) -> SelfReport:
        from enfold.app.siblings import SelfReport

        return SelfReport(
            {
                "counts": lambda: msgspec.to_builtins(self._counts.snapshot()),
                "sources": lambda: source_summaries(self.registry),
                "calls": log.kept,
            },
            {"calls": log.watch},
        )


def loop_factory() -> Callable[[], Any] | None:
    """Return the preferred event loop of the server; raise UNAVAILABLE without the extra `http`."""
    try:
        from enfold.app.server import loop_factory
    except ImportError as error:
        raise missing_package(f"serve needs {error.name}", "http") from None
    return loop_factory()


def _verifier(tokens: Verifier | None, issuers: Iterable[Issuer]) -> Verifier | None:
    trusted = tuple(issuers)
    if not trusted:
        return tokens
    from enfold.auth.issuers import Issuers  # which needs the extra `issuers`

    return AnyOf([*([] if tokens is None else [tokens]), Issuers(trusted)])


def _call_limits(limits: Limits) -> CallLimits | None:
    at_once, per_second = limits.calls_at_once, limits.calls_per_second
    return None if at_once is per_second is None else CallLimits(at_once=at_once, per_second=per_second)
