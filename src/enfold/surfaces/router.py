"""The router of HTTP and CGI: the operation or page of a request, and whether the caller may use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from enfold.auth.challenges import no_identity
from enfold.errors import CallError
from enfold.surfaces.endpoints import Functions, Route
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.request import Request, Response
from enfold.surfaces.responses import not_allowed

R_contra = TypeVar("R_contra", bound=Request, contravariant=True)  # HTTP has a kind of its own

Handler: TypeAlias = Callable[[R_contra], Awaitable[Response | None]]  # None where the answer has been sent already


class Page(msgspec.Struct, Generic[R_contra], frozen=True):
    """What is at a path that is not the path of an operation."""

    answer: Handler[R_contra]
    methods: tuple[str, ...] = ("GET", "HEAD", "OPTIONS")
    is_public: bool = False  # callers need no token, even where all others do
    runs_operations: bool = False
    cross_site: Literal["refused", "links", "allowed"] = "refused"  # requests from pages of other sites


Pages: TypeAlias = Callable[[R_contra], Page[R_contra] | None]


class Router(Generic[R_contra]):
    """Answers a request with an operation or a page."""

    def __init__(self, functions: Functions, pages: Pages[R_contra], hosts: Hosts, *, is_closed: bool) -> None:
        """`is_closed`: callers need a token, so pages of other sites cannot call anything."""
        self._functions = functions
        self._pages = pages
        self._hosts = hosts
        self._is_closed = is_closed

    def __call__(self, request: R_contra) -> Awaitable[Response | None]:
        return self.answer(self.find(request), request)

    def find(self, request: R_contra) -> Route | Page[R_contra]:
        """Return the operation or page at a path, if its method and caller are allowed."""
        if b"sec-fetch-site" in request.headers and not self._is_closed:
            self._check_site(request)
        found = self._functions.find(request) or self._page(request)
        if request.method not in found.methods:
            raise not_allowed(request.method, found.methods)
        if isinstance(found, Route) and not found.is_open:
            self._functions.admit(found, request)
        return found

    def answer(self, found: Route | Page[R_contra], request: R_contra) -> Awaitable[Response | None]:
        if request.method == "OPTIONS":
            return self._options(found.methods, request)
        return found.run(self._functions, found, request) if isinstance(found, Route) else found.answer(request)

    def _page(self, request: R_contra) -> Page[R_contra]:
        page = self._pages(request)
        if page is None:
            message = f"There is nothing at {request.path[:200]}. Operations are called at /functions/{{id}}."
            raise CallError("OPERATION_NOT_FOUND", message)
        return page

    def _check_site(self, request: R_contra) -> None:
        """Refuse a request from a page of another site, unless it is a link to a page for people."""
        page = self._pages(request)
        allowed = "refused" if page is None else page.cross_site
        is_link = allowed == "links" and request.headers.get(b"sec-fetch-dest") == b"document"
        if allowed != "allowed" and not is_link:
            self._hosts.check_site(request.headers)

    async def _options(self, methods: tuple[str, ...], request: Request) -> Response:
        allow = (b"allow", ", ".join(methods).encode())
        return Response(b"", 204, [allow, *self._hosts.preflight_headers(request.headers, methods)])


class PublicRouter(Router[R_contra]):
    """The router for callers without a token where one is needed: everything that is not public is a 401."""

    async def __call__(self, request: R_contra) -> Response | None:
        if request.method == "OPTIONS" and self._hosts.preflight_headers(request.headers, ALL_METHODS):
            return await self._options(ALL_METHODS, request)
        try:
            return await self.answer(self.find(request), request)
        except CallError:
            page = self._pages(request)
            if request.operation is not None or (page is not None and page.is_public):
                raise
            raise no_identity() from None  # whether it exists or not


ALL_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def exact(pages: Mapping[str, Page[R_contra]]) -> Pages[R_contra]:
    """Serve pages by exact path."""
    return lambda request: pages.get(request.path)


def first_of(*finders: Pages[R_contra]) -> Pages[R_contra]:
    """Return the first page that one of the finders returns."""

    def find(request: R_contra) -> Page[R_contra] | None:
        return next((page for find in finders if (page := find(request)) is not None), None)

    return find


def operation_pages(functions: Functions, *, is_public: bool = False) -> Pages[Request]:
    """Return the pages about operations; with `is_public` only about public ones, if there are any."""

    async def document(request: Request) -> Response:
        return functions.document(request, request.root)

    pages = {
        "/openapi.json": Page(document, cross_site="allowed"),
        "/call": Page(functions.call_request, ("POST", "OPTIONS"), runs_operations=True),
        "/operations": Page(functions.search),
    }
    return lambda request: None if is_public and not len(functions.registry) else pages.get(request.path)
