"""Requests to authorization servers: only to addresses that the policy allows, bounded, and redirected to no other server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.mcp.oauth.address_policy import AddressPolicy
from enfold.sources.web import Request, Response, WebError, open_client
from enfold.sources.web.redirects import follow
from enfold.sources.web.token_endpoint import TokenAnswer, decoded, exchange, post, post_form
from enfold.sources.web.urls import same_place

T = TypeVar("T")

REDIRECTS: Final = 3


class AuthorityClient:
    """Our client for authorization servers, for the length of one login.

    It is not the user's own client: what that one sends along is for the MCP server alone.
    """

    def __init__(self, policy: AddressPolicy) -> None:
        self.policy = policy
        self._client = open_client(allows=policy.allows)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def find(self, url: str, type: type[T]) -> T | None:
        """The document at an address; None where there is none of its kind."""
        self.policy.check(url, "its metadata")

        async def at_the_end(request: Request) -> Response:
            return await follow(self._send, request, lambda moved, _: _is_same_server(url, moved), REDIRECTS)

        try:
            status, _, body = await exchange(at_the_end, "GET", url, {"accept": "application/json"})
        except WebError as error:
            if error.kind == "redirect":
                return None
            raise _failure(url, error) from None
        return decoded(body, type) if status == 200 else None

    async def post_json(self, url: str, document: Mapping[str, Any], type: type[T]) -> T:
        headers = {"content-type": "application/json", "accept": "application/json"}
        try:
            return await post(self._send, url, headers, msgspec.json.encode(document), type)
        except WebError as error:
            raise _failure(url, error) from None

    async def post_form(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str], secret: str = ""
    ) -> TokenAnswer:
        """The answer to a form; GrantRefusedError where the server says no, without our secrets in its words."""
        try:
            return await post_form(self._send, url, form, headers, secret)
        except WebError as error:
            raise _failure(url, error) from None

    async def _send(self, request: Request) -> Response:
        response = await self._client.send(request)
        self.policy.learn(request.url, response.peer)
        return response


def _is_same_server(url: str, moved: str) -> bool:
    """Whether a redirect stays on its server; one that does not is no answer."""
    if not same_place(url, moved):
        raise WebError("redirect", "It leads to another server")
    return True


def _failure(url: str, error: WebError) -> CallError:
    host = urlsplit(url).netloc
    if error.kind == "too_large":
        return CallError("PAYLOAD_TOO_LARGE", f"{host} answers the login with too much: {error.sentence}")
    if error.kind == "refused":
        return CallError("ACCESS_DENIED", f"The login is not continued: {error.sentence}", {"reason": "login"})
    return CallError("UNAVAILABLE", f"{host} cannot be reached for the login: {error.sentence}")
