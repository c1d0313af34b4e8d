"""The keys of an issuer: found, kept, and fetched again, so that rotation is noticed and an issuer may be away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.errors import sentence_of
from enfold.files import FileVersion, file_version
from enfold.identities.signature_algorithms import algorithms_of
from enfold.issuers.settings import Issuer, is_trusted_url
from enfold.log import Log

if TYPE_CHECKING:
    from joserfc.jwk import Key

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]

MAX_AGE: Final = 600.0
PAUSE: Final = 30.0  # between two fetches, however many unknown keys are named
FETCH_SECONDS: Final = 5.0
MAX_KEYS: Final = 100
MAX_BYTES: Final = 1 << 20
MIN_RSA_BITS: Final = 2048

_log: Final = Log("enfold.issuers")


class KeyRing:
    """The keys of one issuer, as they were last seen."""

    def __init__(self, issuer: Issuer, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        self._fetched: float | None = None  # when the keys were last seen
        self._tried: float | None = None  # when they were last asked for
        self._fetching = asyncio.Lock()
        self._version: FileVersion = None  # of a file of keys

    async def find(self, kid: str | None, algorithm: str) -> list[Key]:
        """The keys that a token may be signed with; none where the issuer has no such key, or was never reached."""
        if self._issuer.keys_are_in_a_file:
            self._read_file()
            return self._matching(kid, algorithm)
        if self._is_due(MAX_AGE if self._matching(kid, algorithm) else PAUSE):
            await self._refresh(waits=not self._matching(kid, algorithm))
        return self._matching(kid, algorithm)

    def _matching(self, kid: str | None, algorithm: str) -> list[Key]:
        return [key for key in self._keys if _fits(key, kid, algorithm)]

    def _is_due(self, age: float) -> bool:
        now = self._clock()
        if self._tried is not None and now - self._tried < PAUSE:
            return False
        return self._fetched is None or now - self._fetched >= age

    async def _refresh(self, *, waits: bool) -> None:
        """Fetch the keys; while somebody else does, a caller whose key is known goes on with it."""
        if self._fetching.locked() and not waits:
            return
        before = self._tried
        async with self._fetching:
            if self._tried != before:  # Somebody has fetched them while we waited.
                return
            self._tried = self._clock()
            try:
                async with asyncio.timeout(FETCH_SECONDS):
                    self._keys = await self._fetch_keys()
            except Exception as error:  # noqa: BLE001  # whatever keeps them from us, the keys we know stay in force
                _log.warning("The keys of %s cannot be fetched: %s", self._issuer.issuer, sentence_of(error))
                return
            self._fetched = self._tried

    async def _fetch_keys(self) -> tuple[Key, ...]:
        url = self._issuer.jwks or await discover(self._issuer.issuer, self._fetch)
        return read_key_set(await self._fetch(url))

    def _read_file(self) -> None:
        """Read a file of keys anew when it was changed; one that cannot be read leaves nobody in."""
        try:
            version = file_version(self._issuer.jwks)
            if version is None or version != self._version:
                self._version = version
                self._keys = read_key_set(Path(self._issuer.jwks).read_bytes())
        except (OSError, ValueError) as error:
            self._keys = ()
            _log.warning("The keys of %s cannot be read: %s", self._issuer.issuer, sentence_of(error))


# --- where they are -----------------------------------------------------------------------------------------------


async def discover(issuer: str, fetch: Fetch) -> str:
    """The URL of an issuer's keys, as it says itself (OpenID Connect Discovery, or RFC 8414)."""
    from enfold.sources.web.token_endpoint import authorization_server_urls

    failed: Exception | None = None
    for url in reversed(authorization_server_urls(issuer)):  # most who issue JWTs are OpenID providers
        try:
            document = msgspec.json.decode(await fetch(url), type=dict[str, Any])
        except Exception as error:  # noqa: BLE001  # the other address may have it
            failed = failed or error
            continue
        if document.get("issuer") != issuer:
            raise ValueError(f"{url} is the document of another issuer")
        keys = document.get("jwks_uri")
        if not isinstance(keys, str) or not is_trusted_url(keys):
            raise ValueError(f"{url} names no jwks_uri that can be trusted")
        return keys
    raise failed or ValueError("it has no discovery document")


# --- what they are ------------------------------------------------------------------------------------------------


def read_key_set(text: bytes) -> tuple[Key, ...]:
    """The keys of a JWK Set that a signature can be checked with; others are left out."""
    found = msgspec.json.decode(text, type=_KeySet).keys
    return tuple(_usable(each for each in found[:MAX_KEYS] if isinstance(each, Mapping)))


class _KeySet(msgspec.Struct):
    keys: list[Any]


def _usable(found: Iterable[Mapping[str, Any]]) -> Iterable[Key]:
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    for each in found:
        if not algorithms_of(each) or each.get("use", "sig") != "sig" or _is_weak(each):
            continue
        try:
            yield import_key({name: value for name, value in each.items() if name in _PUBLIC_FIELDS})
        except (JoseError, ValueError, TypeError, KeyError):
            continue


def _is_weak(key: Mapping[str, Any]) -> bool:
    return key["kty"] == "RSA" and len(str(key.get("n"))) * 6 < MIN_RSA_BITS  # six bits in a character of base64


_PUBLIC_FIELDS: Final = frozenset({"kty", "kid", "alg", "use", "key_ops", "n", "e", "crv", "x", "y"})


def _fits(key: Key, kid: str | None, algorithm: str) -> bool:
    facts = key.as_dict(private=False)
    return (
        (kid is None or facts.get("kid") == kid)
        and facts.get("alg") in (None, algorithm)
        and algorithm in algorithms_of(facts)
        and "verify" in facts.get("key_ops", ["verify"])
    )
