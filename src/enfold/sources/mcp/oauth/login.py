"""The login at one server while its source is open: one header on each request, and one renewal at a time for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Final, TypeVar

import msgspec

from enfold.errors import CallError
from enfold.observability.log import Log
from enfold.sources.mcp.http import Refusal
from enfold.sources.mcp.oauth.discovery import Challenge, denied, token_challenge
from enfold.sources.mcp.oauth.flow import Tried, log_in, refresh
from enfold.sources.mcp.oauth.grants import ProofKey
from enfold.sources.mcp.oauth.settings import Auth, MemoryStore, Saved
from enfold.sources.secrets import KnownSecrets

T = TypeVar("T")

log: Final = Log("enfold.mcp")

RENEW_BEFORE: Final = 30.0  # seconds before its end that a token is renewed
RETRY_AFTER: Final = 60.0  # seconds before a login that was refused is tried again
MAX_ATTEMPTS: Final = 3
MAX_FAILURES: Final = 3  # after which a user is not asked again for a while, whatever scopes are wanted


class OAuthLogin:
    """The tokens of one server, renewed when it refuses them or before they end; the store of the settings keeps them."""

    def __init__(self, auth: Auth, server_url: str, name: str) -> None:
        self._auth = auth
        self._url = server_url
        self._name = name
        self._store = auth.store or MemoryStore()
        self._saved = Saved()
        self._in_store = Saved()  # what the store has, as far as we know
        self._authorization = ""  # the value of the header
        self.secrets = KnownSecrets()
        self._key: ProofKey | None = None  # of a token that is bound to one
        self._nonce = ""  # that the server wants to see in a proof
        self._renew_at = 0.0  # which makes the first request look into the store
        self._asked_scopes: set[frozenset[str]] = set()  # by full logins of this process
        self._came_by: Tried = "nothing"  # how the newest token was got
        self._running: asyncio.Task[None] | None = None
        self._failed: dict[tuple[str, ...], tuple[CallError, float]] = {}  # by the scopes that were wanted
        self._has_loaded = False
        self._is_opening = False
        self._is_closed = False

    # --- requests

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """The headers with the token, which is renewed before it ends; none before the first login."""
        if time.time() >= self._renew_at and not self._is_closed:
            await self._prepare()
        headers = {"authorization": self._authorization} if self._authorization else {}
        if self._key is not None:
            token = self._authorization.partition(" ")[2]
            headers["dpop"] = self._key.prove(method, url, token=token, nonce=self._nonce)
        return headers

    async def answer(self, refusal: Refusal, *, waits: bool) -> bool:
        """Whether a refused request is worth sending again, which it is with another token than it had.

        While its source is opened, a request does not wait for a login, which takes longer than a server may: it is
        `let_in` that does.
        """
        challenge = token_challenge(refusal.challenges, prefers_proof=self._key is not None)
        if self._key is not None and challenge.error == "use_dpop_nonce":
            self._nonce = refusal.nonce
            return True
        if self._is_closed or (refusal.status == 403 and not challenge.wants_more_scopes):
            return False
        if refusal.sent == self._authorization:  # otherwise it has been renewed meanwhile
            if self._is_opening and not waits:
                raise _LoginNeededError(self._name, challenge, refusal)
            await self._renew(challenge, refusal)
        return True

    async def let_in(self, opening: Callable[[], Awaitable[T]]) -> T:
        """Open something that may need a login first; that has a time of its own, which is not the opening's."""
        self._is_opening = True
        before: str | None = None
        try:
            for _ in range(MAX_ATTEMPTS):
                try:
                    return await opening()
                except _LoginNeededError as found:
                    needed = found
                await self._renew(needed.challenge, msgspec.structs.replace(needed.refusal, before=before))
                before = needed.refusal.sent
            raise denied(f"{self._name} rejects every token of its login: check the scopes and the account")
        finally:
            self._is_opening = False

    async def close(self) -> None:
        self._is_closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # --- tokens

    async def _prepare(self) -> None:
        """Take what the store has; renew what is about to end, if that can be done without asking anybody."""
        if not self._has_loaded:
            self._has_loaded = True
            self._in_store = self._load()
            self._use(self._in_store)
        if time.time() < self._renew_at:
            return
        self._renew_at = time.time() + RENEW_BEFORE / 2  # should it fail: not with every request
        try:
            await self._run_shared(self._refresh)
        except CallError as error:
            log.info("%s: the token could not be renewed before its expiry: %s", self._name, error.message)

    async def _renew(self, challenge: Challenge, refusal: Refusal) -> None:
        self._check_failed(challenge)
        wanted = frozenset((*self._saved.scopes, *challenge.scopes))
        if challenge.wants_more_scopes and wanted in self._asked_scopes:
            named = " ".join(challenge.scopes) or "more"
            raise denied(f"{self._name} requires the scope {named}, which was requested but not granted")
        is_new = refusal.before not in (None, refusal.sent)  # and it was refused all the same
        await self._run_shared(lambda: self._log_in(challenge, self._came_by if is_new else "nothing", refusal.peer))

    def _check_failed(self, challenge: Challenge) -> None:
        """Refuse for a while to ask a user again who did not log in, even where a server asks for something new each time."""
        now = time.monotonic()
        self._failed = {scopes: failure for scopes, failure in self._failed.items() if now < failure[1]}
        error, _ = self._failed.get(challenge.scopes, (None, 0.0))
        if error is None and len(self._failed) >= MAX_FAILURES:
            error, _ = next(reversed(self._failed.values()))
        if error is not None:
            raise CallError(error.code, error.message, error.details)

    async def _run_shared(self, renewal: Callable[[], Awaitable[None]]) -> None:
        """Run a renewal, or wait for the one that runs already; who gives up waiting does not stop it."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._run(renewal))
            self._running.add_done_callback(lambda task: task.cancelled() or task.exception())
        running = self._running
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                raise CallError("UNAVAILABLE", f"The connection to {self._name} has been closed") from None
            raise

    async def _run(self, renewal: Callable[[], Awaitable[None]]) -> None:
        alone = getattr(self._store, "alone", None)  # which a user's own store need not have
        async with nullcontext() if alone is None else alone(self._url):
            found, self._in_store = self._in_store, self._load()
            if self._in_store.tokens not in (None, found.tokens, self._saved.tokens):
                self._use(self._in_store)  # another program has renewed it
            else:
                await renewal()

    async def _refresh(self) -> None:
        renewed = await refresh(self._auth, self._url, self._name, self._saved)
        if renewed is not None:
            self._came_by = "renewal"
            self._save(renewed)

    async def _log_in(self, challenge: Challenge, tried: Tried, peer: str) -> None:
        try:
            saved, self._came_by = await log_in(self._auth, self._url, self._name, challenge, self._saved, tried, peer)
        except CallError as error:
            if error.code == "ACCESS_DENIED":
                self._failed[challenge.scopes] = error, time.monotonic() + RETRY_AFTER
            raise
        if self._came_by == "login":
            self._asked_scopes.add(frozenset(saved.scopes))
        self._save(saved)

    # --- what is known

    def _load(self) -> Saved:
        """What the store has, if it is for the client and the issuer that the user names now."""
        saved = self._store.load(self._url) or Saved()
        is_other_client = self._auth.client_id and saved.client is not None and saved.client.id != self._auth.client_id
        is_other_issuer = self._auth.issuer and saved.issuer != self._auth.issuer
        return Saved() if is_other_client or is_other_issuer else saved

    def _save(self, saved: Saved) -> None:
        self._use(saved)
        try:
            self._store.save(self._url, saved)
            self._in_store = saved
        except OSError as error:
            log.warning("The login at %s cannot be stored: %s", self._name, error.strerror)

    def _use(self, saved: Saved) -> None:
        self._saved, tokens = saved, saved.tokens
        self._key = ProofKey(tokens.key) if tokens is not None and tokens.key else None
        scheme = "Bearer" if self._key is None else "DPoP"
        self._authorization = "" if tokens is None else f"{scheme} {tokens.access}"
        self.secrets.remember_authorization(self._authorization)
        self._renew_at = float("inf")
        if tokens is not None and tokens.until:
            left = tokens.until - time.time()
            self._renew_at = tokens.until - min(RENEW_BEFORE, left / 2)  # a short life has a short margin


class _LoginNeededError(CallError):
    """A user has to log in first; nothing else is wrong."""

    def __init__(self, name: str, challenge: Challenge, refusal: Refusal) -> None:
        super().__init__("ACCESS_DENIED", f"{name} requires a login", {"status": 401, "reason": "login"})
        self.challenge = challenge
        self.refusal = refusal
