"""Requests to a token endpoint, with client authentication in a header or in the form. Errors never contain secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote, quote_plus, urlencode, urlsplit

import msgspec

from enfold.http_client.errors import WebError
from enfold.http_client.messages import Request, Response
from enfold.http_client.urls import basic_authorization, split_url

T = TypeVar("T")

Send: TypeAlias = Callable[[Request], Awaitable[Response]]
Method: TypeAlias = Literal["client_secret_basic", "client_secret_post", "none"]

MAX_BYTES: Final = 256 * 1024
SECONDS: Final = 20.0

_BUSY: Final = (429, 502, 503, 504)
_OF_GRANT: Final = (
    "invalid_grant",
    "invalid_scope",
    "invalid_target",
    "unsupported_grant_type",
)  # errors of the grant, not of the client
# Form fields that a server may echo in an error and that must be redacted.
_SECRETS: Final = (
    "client_secret",
    "code",
    "code_verifier",
    "refresh_token",
    "assertion",
    "client_assertion",
    "subject_token",
)


class TokenAnswer(msgspec.Struct, frozen=True):
    """The response of a token endpoint."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105  # the kind of a token, and the usual one
    expires_in: float | str | None = None
    refresh_token: str | None = None

    @property
    def seconds(self) -> float:
        """The lifetime of the token in seconds; 0 if missing or malformed."""
        try:
            seconds = float(self.expires_in or 0)
        except ValueError:
            return 0.0
        return seconds if 0 < seconds < float("inf") else 0.0


class GrantRefusedError(Exception):
    """An authorization server rejected the request; `error` is its error code."""

    def __init__(self, url: str, status: int, error: str, description: str, nonce: str = "") -> None:
        self.url = url
        self.host = urlsplit(url).netloc.rpartition("@")[2]
        self.status = status
        self.error = error
        self.description = description
        self.nonce = nonce  # for the next proof
        self.reason = description or error or f"HTTP {status}"
        super().__init__(f"{self.host} rejected the request: {self.reason}")

    @property
    def may_be_unseen(self) -> bool:
        """Whether the server may have missed the client authentication, which some read only from the form."""
        return self.status in (400, 401) and self.error not in _OF_GRANT

    def without(self, secrets: Iterable[str]) -> GrantRefusedError:
        """Return the error without secrets that the server may have echoed."""
        error, description = self.error, self.description
        for secret in filter(None, secrets):
            for text in (secret, quote_plus(secret)):  # form encoded
                error, description = error.replace(text, "…"), description.replace(text, "…")
        return GrantRefusedError(self.url, self.status, error, description, self.nonce)


def identify(client_id: str, secret: str, method: Method) -> tuple[dict[str, str], dict[str, str]]:
    """Return the client authentication as form fields and headers."""
    if method == "client_secret_basic":
        pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
        return {}, {"authorization": basic_authorization(pair)}
    if method == "client_secret_post":
        return {"client_id": client_id, "client_secret": secret}, {}
    return ({"client_id": client_id} if client_id else {}), {}


async def post_form(
    send: Send, url: str, form: Mapping[str, str], headers: Mapping[str, str], secret: str = ""
) -> TokenAnswer:
    """Request a token; raise GrantRefusedError if the server rejects it, WebError if it does not respond."""
    sent = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json", **headers}
    try:
        return await post(send, url, sent, urlencode(form).encode(), TokenAnswer)
    except GrantRefusedError as refused:
        credentials = headers.get("authorization", "").partition(" ")[2]
        raise refused.without([secret, credentials, *(form.get(name, "") for name in _SECRETS)]) from None


async def post(send: Send, url: str, headers: Mapping[str, str], content: bytes, type: type[T]) -> T:
    """Post a form and return the response document; redirects are not followed, because the form contains secrets."""
    status, nonce, body = await exchange(send, "POST", url, headers, content)
    refusal = decoded(body, _ErrorAnswer) or _ErrorAnswer()
    if status not in (200, 201) or refusal.error:
        raise GrantRefusedError(url, status, refusal.error, refusal.error_description, nonce)
    answer = decoded(body, type)
    if answer is None:
        raise GrantRefusedError(url, status, "", "the response is not valid OAuth")
    return answer


def authorization_server_urls(issuer: str) -> list[str]:
    """Return the metadata URLs of an issuer in the order of the MCP specification."""
    root, path = split_url(issuer)[0], urlsplit(issuer).path.rstrip("/")
    found = [
        f"{root}/.well-known/oauth-authorization-server{path}",
        f"{root}/.well-known/openid-configuration{path}",
        f"{root}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(found))


async def exchange(
    send: Send,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None = None,
    limit: int = MAX_BYTES,
) -> tuple[int, str, bytes]:
    """Return the status, the nonce for proofs and the body of a small response, within the time limit."""
    origin, target = split_url(url)
    try:
        async with asyncio.timeout(SECONDS):
            response = await send(Request(method, origin, target, list(headers.items()), content))
            try:
                if response.status in _BUSY:
                    raise WebError("unreachable", f"HTTP {response.status}")
                return response.status, response.header("dpop-nonce") or "", await response.body(limit)
            finally:
                await response.close()
    except TimeoutError:
        raise WebError("late", "no response in time") from None


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: str = ""
    error_description: str = ""


def decoded(body: bytes, type: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
