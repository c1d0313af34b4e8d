"""Access tokens by the OAuth2 client credentials flow: fetched once, kept until they end."""

from __future__ import annotations

import asyncio
import time
from typing import Final
from urllib.parse import urljoin

import msgspec

from enfold.errors import CallError
from enfold.sources.openapi.service_client import ServiceClient
from enfold.sources.web.token_endpoint import GrantRefusedError, Method, TokenAnswer, identify, post_form
from enfold.sources.web.web_error import WebError

MARGIN: Final = 30.0  # a token this near to its end is as good as ended
_UNKNOWN_LIFE: Final = 300.0


class CredentialsFlow(msgspec.Struct, frozen=True):
    """What the OAuth2 client credentials flow needs; `is_trusted` says that the user named the token address, and not the document."""

    token_url: str
    client_id: str
    client_secret: str
    scopes: str = ""
    is_trusted: bool = False


class TokenStore:
    """The tokens of one source; token addresses are relative to `base`."""

    def __init__(self, client: ServiceClient, base: str) -> None:
        self._client = client
        self._base = base
        self._tokens: dict[CredentialsFlow, tuple[str, float]] = {}
        self._locks: dict[CredentialsFlow, asyncio.Lock] = {}

    async def token(self, grant: CredentialsFlow) -> str:
        """A token that is good for a while; many callers at once fetch it only once."""
        async with self._locks.setdefault(grant, asyncio.Lock()):
            token, until = self._tokens.get(grant, ("", 0.0))
            if time.monotonic() >= until:
                answer = await self._fetch(grant)
                life = (answer.seconds or _UNKNOWN_LIFE) - MARGIN
                token, until = answer.access_token, time.monotonic() + max(1.0, life)
                self._tokens[grant] = token, until
            return token

    def forget(self) -> bool:
        """Drop all tokens, as after a 401; tells whether there were any."""
        had_any = bool(self._tokens)
        self._tokens.clear()
        return had_any

    async def _fetch(self, grant: CredentialsFlow) -> TokenAnswer:
        url = urljoin(f"{self._base}/", grant.token_url)
        refusal = None if grant.is_trusted else self._client.reach.refusal(url)
        if refusal is not None or not grant.token_url:
            raise CallError("EXECUTION_ERROR", f"No token was fetched: {refusal or 'no token address is known'}")
        try:
            try:
                return await self._ask(url, grant, "client_secret_basic")
            except GrantRefusedError as refused:
                if not refused.may_be_unseen:
                    raise
            return await self._ask(url, grant, "client_secret_post")
        except GrantRefusedError as refused:
            details = {"status": refused.status, "reason": "token"}
            raise CallError("EXECUTION_ERROR", f"No token was fetched: {refused}", details) from None
        except WebError as error:
            code = "UNAVAILABLE" if error.kind in ("unreachable", "broken", "late") else "EXECUTION_ERROR"
            raise CallError(code, f"No token was fetched: {error.sentence}", {"reason": "token"}) from None

    async def _ask(self, url: str, grant: CredentialsFlow, method: Method) -> TokenAnswer:
        form = {"grant_type": "client_credentials", **({"scope": grant.scopes} if grant.scopes else {})}
        fields, headers = identify(grant.client_id, grant.client_secret, method)
        return await post_form(self._client.send, url, {**form, **fields}, headers, grant.client_secret)
