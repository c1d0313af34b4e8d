"""Access tokens by the OAuth2 client credentials flow: fetched once, kept until they end."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from enfold.errors import CallError
from enfold.sources.openapi import styles
from enfold.sources.openapi.client import HTTPClient
from enfold.sources.openapi.requests import Outgoing
from enfold.sources.openapi.responses import Answer, to_error
from enfold.sources.openapi.security import ClientCredentials
from enfold.sources.openapi.servers import Reach

MARGIN: Final = 30.0  # a token this near to its end is as good as ended
_UNKNOWN_LIFE: Final = 300.0


class TokenStore:
    """The tokens of one source."""

    def __init__(self, client: HTTPClient, reach: Reach, base: str) -> None:
        self._client = client
        self._reach = reach
        self._base = base
        self._tokens: dict[ClientCredentials, tuple[str, float]] = {}
        self._locks: dict[ClientCredentials, asyncio.Lock] = {}

    async def token(self, grant: ClientCredentials) -> str:
        """A token that is good for a while; many callers at once fetch it only once."""
        async with self._locks.setdefault(grant, asyncio.Lock()):
            token, until = self._tokens.get(grant, ("", 0.0))
            if time.monotonic() >= until:
                token, until = await self._fetch(grant)
                self._tokens[grant] = token, until
            return token

    def forget(self) -> bool:
        """Drop all tokens, as after a 401; tells whether there were any."""
        had_any = bool(self._tokens)
        self._tokens.clear()
        return had_any

    async def _fetch(self, grant: ClientCredentials) -> tuple[str, float]:
        url = urljoin(f"{self._base}/", grant.token_url)
        refusal = None if grant.is_trusted else self._reach.refusal(url)
        if refusal is not None or not grant.token_url:
            raise CallError("EXECUTION_ERROR", f"No token was fetched: {refusal or 'no token address is known'}")
        answer = await self._client.fetch(_token_request(url, grant, in_header=True))
        if answer.status in (400, 401):  # some servers read the client's credentials only from the body
            answer = await self._client.fetch(_token_request(url, grant, in_header=False))
        if answer.status >= 400:
            raise to_error(answer)
        return _read_token(answer)


def _token_request(url: str, grant: ClientCredentials, *, in_header: bool) -> Outgoing:
    form = {"grant_type": "client_credentials", **({"scope": grant.scopes} if grant.scopes else {})}
    headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json")]
    if in_header:
        pair = f"{quote(grant.client_id, safe='')}:{quote(grant.client_secret, safe='')}"
        headers.append(("Authorization", f"Basic {b64encode(pair.encode()).decode()}"))
    else:
        form |= {"client_id": grant.client_id, "client_secret": grant.client_secret}
    parts = urlsplit(url)
    query = [parts.query] if parts.query else []
    content = styles.form_text(form).encode()
    return Outgoing("POST", f"{parts.scheme}://{parts.netloc}", parts.path or "/", query, headers, [], content)


def _read_token(answer: Answer) -> tuple[str, float]:
    try:
        said: Any = msgspec.json.decode(answer.content)
        token = said["access_token"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise CallError("EXECUTION_ERROR", "The token address did not answer with an access token") from error
    life = said.get("expires_in")
    seconds = float(life) if isinstance(life, (int, float)) else _UNKNOWN_LIFE
    return str(token), time.monotonic() + max(1.0, seconds - MARGIN)
