"""Who is behind a JWT: which issuer it names, whether one of its keys signed it, whether it is meant for us, now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from enfold.errors import CallError, FormatError
from enfold.issuers.claims import identity_of, time_fault
from enfold.issuers.keys import MAX_BYTES, Fetch, KeyRing
from enfold.issuers.settings import Issuer
from enfold.log import Log
from enfold.operation import Identity
from enfold.provenance.canonical import read_json

if TYPE_CHECKING:
    from joserfc.jwk import Key

__all__ = ["Issuers", "RefusedTokenError", "read_unproven"]

MAX_TOKEN: Final = 16 * 1024
MAX_TRIED: Final = 10  # keys, for a token that names none
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})

_log: Final = Log("enfold.issuers")


class RefusedTokenError(Exception):
    """A token that does not let its bearer in; `check` names what refused it. The token itself is never in it."""

    def __init__(self, check: str, sentence: str) -> None:
        self.check = check
        self.sentence = sentence
        super().__init__(f"{check}: {sentence}")


class Issuers:
    """A verifier of JWTs: the identity behind a token of one of the issuers."""

    def __init__(
        self, issuers: Iterable[Issuer], *, fetch: Fetch | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`fetch` gets what is at a URL; without it our own HTTP client does."""
        _need_joserfc()
        self.issuers = tuple(issuers)
        get = fetch or _Web().get
        self._rings = {each.issuer: (each, KeyRing(each, get, clock)) for each in self.issuers}
        self._clock = clock

    async def identify(self, token: str) -> Identity | None:
        """The identity a token stands for, or None; the log says which check refused it."""
        try:
            return await self.check(token)
        except RefusedTokenError as refused:
            _log.warning("A token was refused: %s", refused)
            return None

    async def check(self, token: str) -> Identity:
        """The identity a token stands for; RefusedTokenError names the check it fails."""
        header, unproven = read_unproven(token)
        issuer, ring = self._ring_of(unproven.get("iss"))
        algorithm, kid = _algorithm(header, issuer), _key_id(header)
        keys = await ring.find(kid, algorithm)
        if not keys:
            raise RefusedTokenError("key", "its issuer has no such key, or its keys cannot be fetched")
        _check_signature(token, keys[:MAX_TRIED], algorithm)
        # The same text is read once: what was signed is what was read.
        _check_audience(unproven, issuer)
        fault = time_fault(unproven, self._clock(), issuer.leeway)
        if fault is not None:
            raise RefusedTokenError(*fault)
        if "cnf" in unproven:
            raise RefusedTokenError("bearer", "it is bound to a key of its owner, and no proof of that is taken here")
        try:
            return identity_of(unproven, issuer)
        except ValueError as error:
            raise RefusedTokenError("claims", str(error)) from None

    def _ring_of(self, name: Any) -> tuple[Issuer, KeyRing]:
        found = self._rings.get(name) if isinstance(name, str) else None
        if found is None:
            raise RefusedTokenError("issuer", "its issuer is not one that is trusted here")
        return found


def _need_joserfc() -> None:
    from importlib.util import find_spec

    if find_spec("joserfc") is None:
        raise CallError("UNAVAILABLE", "Tokens of an issuer need: pip install 'enfold[auth]'", retryable=False)


# --- reading ------------------------------------------------------------------------------------------------------


def read_unproven(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The header and the claims as they stand there; nothing is believed of them yet."""
    parts = token.split(".") if len(token) <= MAX_TOKEN else []
    if len(parts) != 3 or not all(parts):
        raise RefusedTokenError("form", "it is no signed JWT")
    return _read_part(parts[0]), _read_part(parts[1])


def _read_part(part: str) -> Mapping[str, Any]:
    from joserfc.util import urlsafe_b64decode

    try:
        found = read_json(urlsafe_b64decode(part.encode("ascii")))
    except (FormatError, ValueError):
        raise RefusedTokenError("form", "its parts are no JSON") from None
    if not isinstance(found, dict):
        raise RefusedTokenError("form", "its parts are no JSON objects")
    return found


def _algorithm(header: Mapping[str, Any], issuer: Issuer) -> str:
    algorithm, type_ = header.get("alg"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        raise RefusedTokenError("algorithm", "it is signed in a way that is not taken here")
    if "crit" in header or "b64" in header:
        raise RefusedTokenError("form", "it wants something understood that is not")
    if not isinstance(type_, str) or type_.lower() not in _TYPES:
        raise RefusedTokenError("form", "it is a token of another kind")
    return algorithm


def _key_id(header: Mapping[str, Any]) -> str | None:
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise RefusedTokenError("form", "its kid is no text")
    return kid


# --- checking -----------------------------------------------------------------------------------------------------


def _check_signature(token: str, keys: list[Key], algorithm: str) -> None:
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry
    from joserfc.util import urlsafe_b64decode

    text, _, signature = token.rpartition(".")
    chosen = JWSRegistry.algorithms[algorithm]
    for key in keys:
        try:
            chosen.check_key(key)
            if chosen.verify(text.encode(), urlsafe_b64decode(signature.encode("ascii")), key):
                return
        except (JoseError, ValueError):
            continue
    raise RefusedTokenError("signature", "no key of its issuer has signed it")


def _check_audience(claims: Mapping[str, Any], issuer: Issuer) -> None:
    found = claims.get("aud")
    named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if not any(isinstance(name, str) and name in issuer.audiences for name in named):
        raise RefusedTokenError("audience", "it is meant for somebody else")


# --- fetching -----------------------------------------------------------------------------------------------------


class _Web:
    """Our HTTP client, opened with the first fetch; a redirect is not followed."""

    async def get(self, url: str) -> bytes:
        from enfold.sources.web import Request, open_client
        from enfold.sources.web.urls import split_url

        client = open_client()
        try:
            response = await client.send(Request("GET", *split_url(url), [("accept", "application/json")], None))
            try:
                if response.status != 200:
                    raise ValueError(f"{url} answers {response.status}")
                return await response.body(MAX_BYTES)
            finally:
                await response.close()
        finally:
            await client.aclose()
