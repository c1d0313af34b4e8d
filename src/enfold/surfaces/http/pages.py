"""Pages of the HTTP surface besides operations: health, readiness, the document, search, tasks, metadata, the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.auth.challenges import WELL_KNOWN
from enfold.operations import Context
from enfold.operations.access import may_list
from enfold.runtime.reserved import READERS
from enfold.surfaces.asgi import origin_of
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.console import PARENTS, console_file
from enfold.surfaces.endpoints import NO_STORE, Functions
from enfold.surfaces.http.stack import HTTPRequest
from enfold.surfaces.http.streams import Streams
from enfold.surfaces.request import Response, prefers_page
from enfold.surfaces.router import Handler, Page, Pages, exact, first_of

if TYPE_CHECKING:
    from enfold.surfaces.http.tasks import TaskPages

# Paths that stay ours where another app is mounted at `/`. `/health` is not among them: other frameworks use it, too.
OWN_PATHS: Final = ("/healthz", "/readyz", "/openapi.json", "/call", "/operations")
OWN_PREFIXES: Final = ("/functions/", WELL_KNOWN)

_READ: Final = ("GET", "HEAD")
_VARY: Final = (b"vary", b"accept")


def service_pages(
    functions: Functions, authentication: Authentication, streams: Streams, *, has_console: bool
) -> Pages[HTTPRequest]:
    """Return the pages that are the same for all callers: health, readiness, metadata and the console."""
    health = Page(_health, is_public=True, cross_site="allowed")
    ready = Page(_readiness(authentication, streams), is_public=True, cross_site="allowed")
    fixed = exact({"/healthz": health, "/health": health, "/readyz": ready})
    pages = [fixed]
    if authentication.authenticator is not None:
        pages.append(_metadata(functions, authentication))
    pages.append(_console(authentication) if has_console else _redirects)
    return first_of(*pages)


async def _health(_: HTTPRequest) -> Response:
    return Response(b'{"status":"ok"}', 200, [NO_STORE])


def _readiness(authentication: Authentication, streams: Streams) -> Handler[HTTPRequest]:
    """Answer 200 and `ready`, or 503; the reason only for those who may know which sources there are."""

    async def answer(request: HTTPRequest) -> Response:
        missing = authentication.registry.services.sources.missing
        word = "stopping" if streams.is_stopping else "waiting" if missing else "ready"
        shown: dict[str, Any] = {"status": word}
        if authentication.authenticator is None or may_list(READERS, request.identity):
            shown["missing"] = [
                {"source": each.name, "kind": each.kind, "state": each.state, "why": each.why, "since": int(each.since)}
                for each in missing
            ]
        return Response(msgspec.json.encode(shown), 200 if word == "ready" else 503, [NO_STORE])

    return answer


def _metadata(functions: Functions, authentication: Authentication) -> Pages[HTTPRequest]:
    """Return the document that names the token issuers (RFC 9728)."""

    async def answer(request: HTTPRequest) -> Response:
        resource = request.path.removeprefix(WELL_KNOWN) or "/"
        scope, name = request.exchange.scope, functions.application.name
        return Response(authentication.metadata(scope, request.headers, resource, name), 200, [NO_STORE])

    page = Page(answer, is_public=True)
    return lambda request: page if request.method in _READ and request.path.startswith(WELL_KNOWN) else None


def _redirects(request: HTTPRequest) -> Page[HTTPRequest] | None:
    """Redirect paths where other frameworks have their document to ours."""
    return _TO_DOCUMENT if request.path in PARENTS and request.method in _READ else None


async def _redirect(request: HTTPRequest) -> Response:
    return Response(b"", 307, [(b"location", f"{request.root}/openapi.json".encode())])


_TO_DOCUMENT: Final = Page(_redirect, is_public=True)


def _console(authentication: Authentication) -> Pages[HTTPRequest]:
    """Return the console; a program that asks at the root gets the addresses of everything."""

    async def answer(request: HTTPRequest) -> Response | None:
        if request.path == "/" and not prefers_page(request.headers.get(b"accept", b"")):
            return Response(msgspec.json.encode(_addresses(authentication, request)), 200, [NO_STORE, _VARY])
        return console_file(request.path, request.root, request.headers)

    def find(request: HTTPRequest) -> Page[HTTPRequest] | None:
        is_read = request.method in _READ
        return page if is_read and console_file(request.path, request.root, request.headers) is not None else None

    page = Page(answer, is_public=True, cross_site="links")
    return find


def _addresses(authentication: Authentication, request: HTTPRequest) -> dict[str, str]:
    """Return the addresses of everything; without a token that is needed, only what is the same at every server."""
    base = f"{origin_of(request.exchange.scope, request.headers)}{request.root}/"
    is_anonymous = authentication.is_closed and request.identity is None
    named = surface_paths({}) if is_anonymous else authentication.registry.services.surfaces
    return {"console": base, **{name: f"{base}{path}" for name, path in named.items()}, "health": f"{base}healthz"}


def surface_paths(mounts: Mapping[str, object]) -> dict[str, str]:
    """Return the paths of the surfaces by name; a mounted app is named after its path."""
    paths = [path.strip("/") for path in mounts if not path.strip("/").startswith(".")]
    return {"http": "functions/{id}", "document": "openapi.json", **{path: path for path in paths}}


def task_pages(tasks: TaskPages, functions: Functions, streams: Streams) -> Pages[HTTPRequest]:
    """Return the pages of the caller's tasks, and the stream of changes of one."""

    async def answer(request: HTTPRequest) -> Response | None:
        if not tasks.has_stream(request) or b"text/event-stream" not in request.headers.get(b"accept", b""):
            return await tasks.answer(functions, request)
        context = Context(identity=request.identity)
        await streams.send(functions, request, context, "text/event-stream", tasks.follow(request))
        return None

    def find(request: HTTPRequest) -> Page[HTTPRequest] | None:
        methods = tasks.methods(request.path) if request.path.startswith("/tasks") else None
        return None if methods is None else Page(answer, methods)

    return find
