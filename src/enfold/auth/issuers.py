"""What an operator says about an issuer, as values: whose tokens, for whom, under which keys, and where the claims are."""

# Imports inside functions: joserfc and the HTTP client are loaded with the first token.

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from enfold.auth.tokens import belongs_to_another, check_apart, check_prefix, is_loopback
from enfold.errors import CallError, FormatError, sentence_of
from enfold.json_pointer import names
from enfold.log import Log
from enfold.operations import RESERVED_IDS, Identity
from enfold.provenance.integrity import read_json
from enfold.storage import FileVersion, file_version
from enfold.version import install_command

if TYPE_CHECKING:
    from joserfc.jwk import Key


# By key type and curve, the usual algorithm first. No shared secrets: anyone who can verify with one could also issue.
_BY_KEY: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": ("EdDSA", "Ed25519"),
}

ALGORITHMS: Final = tuple(name for names in _BY_KEY.values() for name in names)


def algorithms_of(key: Mapping[str, Any]) -> tuple[str, ...]:
    """The algorithms a JWK can sign with, the usual one first; empty for other key types."""
    return _BY_KEY.get(" ".join(str(key[name]) for name in ("kty", "crv") if name in key), ())


LEEWAY: Final = 30.0
MAX_LEEWAY: Final = 300.0


class ClaimPlaces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a token says who its bearer is: names of claims, or paths (`realm_access.roles`, `/realm_access/roles`)."""

    id: str = "sub"
    scopes: tuple[str, ...] = ("scope", "scp", "roles")
    resources: str = ""


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An issuer whose tokens are taken, where they are meant for one of the audiences."""

    issuer: str
    audiences: tuple[str, ...]
    jwks: str = ""  # a file or a URL; without one the keys are found by discovery
    algorithms: tuple[str, ...] = ALGORITHMS
    claims: ClaimPlaces = ClaimPlaces()
    leeway: float = LEEWAY  # seconds by which clocks may differ
    prefix: str | None = None  # what the ids of its callers begin with; needed beside another source of identities

    def __post_init__(self) -> None:
        if not is_trusted_url(self.issuer):
            raise ValueError(f"The issuer {self.issuer!r} must be an https URL (http for this machine alone)")
        if not self.audiences or not all(self.audiences):
            raise ValueError(f'Say for which audiences {self.issuer} issues tokens: audiences = ["…"]')
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            raise ValueError(
                f"The algorithm {unknown[:1] or 'list'} cannot be used: choose from {', '.join(ALGORITHMS)}"
            )
        if not 0 <= self.leeway <= MAX_LEEWAY:
            raise ValueError(f"leeway is a number of seconds from 0 to {MAX_LEEWAY:g}")
        if "://" in self.jwks and not is_trusted_url(self.jwks):
            raise ValueError(f"The keys at {self.jwks!r} must come over https (http from this machine alone)")

        check_prefix(self)

    @property
    def keys_are_in_a_file(self) -> bool:
        return bool(self.jwks) and "://" not in self.jwks


def read_issuers(table: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Issuer, ...]:
    """The issuers of a configuration: one table, a list of tables, or a table with the list `issuers`."""
    if isinstance(table, Mapping):
        table = table.get("issuers", [table])
    if not isinstance(table, Sequence) or not table:
        raise ValueError("auth names one issuer, or a list of issuers")
    issuers = tuple(_read(each) for each in table)
    check_apart(issuers)
    return issuers


def _read(table: Mapping[str, Any]) -> Issuer:
    given = _with_lists(table, "audiences", "algorithms")
    if isinstance(given.get("claims"), Mapping):
        given["claims"] = _with_lists(given["claims"], "scopes")
    try:
        return msgspec.convert(given, Issuer)
    except msgspec.ValidationError as error:
        raise ValueError(f"auth: {error}") from None


def _with_lists(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The table, where a list may be written as its one word."""
    return {name: [value] if name in names and isinstance(value, str) else value for name, value in table.items()}


def is_trusted_url(url: str) -> bool:
    """Whether what comes from a URL comes from whom it names: over https, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.username is not None or parts.fragment or not host:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


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
    from enfold.auth.token_endpoint import authorization_server_urls

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


MAX_TOKEN: Final = 16 * 1024
MAX_TRIED: Final = 10  # keys, for a token that names none
MAX_ID: Final = 256
MAX_SCOPES: Final = 1000
# Everything is allowed to the owner of this server alone, whom no issuer can name.
_EVERYTHING: Final = "*"
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})


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
        """`fetch` gets what is at a URL; without it our own HTTP client does. ValueError for issuers whose ids may collide."""
        _need_joserfc()
        self.issuers = tuple(issuers)
        check_apart(self.issuers)
        self._rings = {each.issuer: (each, KeyRing(each, fetch or _fetch, clock)) for each in self.issuers}
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
        _check_times(unproven, self._clock(), issuer.leeway)
        if "cnf" in unproven:
            raise RefusedTokenError("bearer", "it is bound to a key of its owner, and no proof of that is taken here")
        identity = _identity_of(unproven, issuer)
        other = belongs_to_another(identity.id, issuer.prefix, self.issuers)
        if other is not None:
            raise RefusedTokenError("claims", f"ids that begin with {other!r} are another issuer's")
        return identity

    def _ring_of(self, name: Any) -> tuple[Issuer, KeyRing]:
        found = self._rings.get(name) if isinstance(name, str) else None
        if found is None:
            raise RefusedTokenError("issuer", "its issuer is not one that is trusted here")
        return found


def _need_joserfc() -> None:
    from importlib.util import find_spec

    if find_spec("joserfc") is None:
        raise CallError("UNAVAILABLE", f"Tokens of an issuer need joserfc: {install_command('auth')}", retryable=False)


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


def _check_times(claims: Mapping[str, Any], now: float, leeway: float) -> None:
    """Refuse a token out of its time, and one that does not say when it ends."""
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None and name != "exp":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedTokenError("form", f"{name} is no time")
    if now >= claims["exp"] + leeway:
        raise RefusedTokenError("expired", "it has expired")
    if claims.get("nbf", now) > now + leeway:
        raise RefusedTokenError("not_yet", "it is not valid yet")
    if claims.get("iat", now) > now + leeway:
        raise RefusedTokenError("not_yet", "it was issued in the future")


def _identity_of(claims: Mapping[str, Any], issuer: Issuer) -> Identity:
    """The identity that the claims of a verified token describe."""
    found = _look_up(claims, issuer.claims.id)
    if not isinstance(found, str) or not 0 < len(found) <= MAX_ID or not found.isprintable():
        raise RefusedTokenError("claims", f"{issuer.claims.id} names nobody")
    if found in RESERVED_IDS:
        raise RefusedTokenError("claims", f"the id {found!r} is reserved for this server")
    scopes = frozenset(scope for place in issuer.claims.scopes for scope in _words(claims, place)) - {_EVERYTHING}
    if len(scopes) > MAX_SCOPES:
        raise RefusedTokenError("claims", f"it has more than {MAX_SCOPES} scopes")
    return Identity(f"{issuer.prefix or ''}{found}", scopes, _resources(claims, issuer.claims.resources))


def _look_up(claims: Mapping[str, Any], place: str) -> Any:
    """What a claim holds: a name that has dots or slashes itself comes before a path."""
    if not place or place in claims:
        return claims.get(place)
    parts = names(place) if place.startswith("/") else place.split(".")
    found: Any = claims
    for part in parts:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _words(claims: Mapping[str, Any], place: str) -> list[str]:
    found = _look_up(claims, place)
    if isinstance(found, str):
        return found.split()
    return [word for word in found if isinstance(word, str)] if isinstance(found, list) else []


def _resources(claims: Mapping[str, Any], place: str) -> dict[str, list[str]] | None:
    found = _look_up(claims, place) if place else None
    if found is None:
        return None
    if not isinstance(found, Mapping) or not all(_are_actions(actions) for actions in found.values()):
        raise RefusedTokenError("claims", f"{place} is no table of resources and actions")
    return {str(name): list(actions) for name, actions in found.items()}


def _are_actions(actions: Any) -> bool:
    return isinstance(actions, list) and all(isinstance(action, str) for action in actions)


# --- fetching -----------------------------------------------------------------------------------------------------


async def _fetch(url: str) -> bytes:
    """What is at a URL, got by our own HTTP client; a redirect is not followed."""
    from enfold.auth.token_endpoint import exchange
    from enfold.http_client import open_client

    client = open_client()
    try:
        status, _, body = await exchange(client.send, "GET", url, {"accept": "application/json"}, limit=MAX_BYTES)
    finally:
        await client.aclose()
    if status != 200:
        raise ValueError(f"{url} answers {status}")
    return body
