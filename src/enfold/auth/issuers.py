"""Issuers of JWTs: configuration, keys, and the verification of tokens."""

# Imports inside functions: joserfc and the HTTP client are loaded with the first token.

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from enfold.auth.tokens import belongs_to_another, check_apart, check_prefix, is_loopback
from enfold.errors import FormatError, missing_package, sentence_of
from enfold.observability.log import Log
from enfold.operations import RESERVED_IDS, Identity
from enfold.operations.access import words
from enfold.provenance.integrity import read_json
from enfold.schema.json_pointer import names
from enfold.storage import FileVersion, file_version

if TYPE_CHECKING:
    from joserfc.jwk import Key


# By key type and curve, the default algorithm first. No shared secrets: a verifier could also issue tokens.
_BY_KEY: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": ("EdDSA", "Ed25519"),
}

ALGORITHMS: Final = tuple(name for names in _BY_KEY.values() for name in names)


def algorithms_of(key: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the algorithms of a JWK, the default one first; empty for unsupported key types."""
    return _BY_KEY.get(" ".join(str(key[name]) for name in ("kty", "crv") if name in key), ())


LEEWAY: Final = 30.0
MAX_LEEWAY: Final = 300.0

_TEXTS: Final = {"file": str | list[str]}
_SECONDS: Final = {"file": Annotated[float, Meta(ge=0, le=MAX_LEEWAY)], "unit": "seconds"}


class ClaimPlaces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claims that describe the bearer: names, or paths (`realm_access.roles`, `/realm_access/roles`)."""

    id: Annotated[str, Meta(description="the claim with the caller's id")] = "sub"
    scopes: Annotated[
        tuple[str, ...],
        Meta(description="the claims with scopes; `scope`, `scp` and `roles` by default", extra=_TEXTS),
    ] = ("scope", "scp", "roles")
    resources: Annotated[str, Meta(description="the claim with grants for resources")] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", tuple(words(self.scopes)))


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An issuer whose tokens are accepted for one of the audiences."""

    issuer: Annotated[str, Meta(description="its URL, exactly as `iss` has it; https, or http on this machine")]
    audiences: Annotated[tuple[str, ...], Meta(description="accepted audiences (`aud`)", extra=_TEXTS)]
    jwks: Annotated[str, Meta(description="its keys: a file or a URL; found by discovery by default")] = ""
    algorithms: Annotated[
        tuple[str, ...], Meta(description="accepted signature algorithms; only asymmetric ones", extra=_TEXTS)
    ] = ALGORITHMS
    claims: Annotated[ClaimPlaces, Meta(description="which claims identify the caller")] = ClaimPlaces()
    leeway: Annotated[float, Meta(description="tolerated clock difference", extra=_SECONDS)] = LEEWAY
    prefix: Annotated[
        str | None,
        Meta(
            description="prefix of its callers' ids, such as `partner:`; required if there is another source of identities"
        ),
    ] = None

    def __post_init__(self) -> None:
        for name in ("audiences", "algorithms"):
            msgspec.structs.force_setattr(self, name, tuple(words(getattr(self, name))))
        if not is_trusted_url(self.issuer):
            raise ValueError(f"The issuer {self.issuer!r} must be an https URL (http only for localhost)")
        if not self.audiences or not all(self.audiences):
            raise ValueError(f'Configure the audiences of {self.issuer}: audiences = ["…"]')
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            raise ValueError(
                f"The algorithm {unknown[:1] or 'list'} is not supported: choose from {', '.join(ALGORITHMS)}"
            )
        if not 0 <= self.leeway <= MAX_LEEWAY:
            raise ValueError(f"leeway must be a number of seconds from 0 to {MAX_LEEWAY:g}")
        if "://" in self.jwks and not is_trusted_url(self.jwks):
            raise ValueError(f"The keys at {self.jwks!r} must come over https (http only from localhost)")

        check_prefix(self)


def read_issuers(table: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Issuer, ...]:
    """Read the issuers of a configuration: one table, a list of tables, or a table with the list `issuers`."""
    if isinstance(table, Mapping):
        table = table.get("issuers", [table])
    if not isinstance(table, Sequence) or not table:
        raise ValueError("auth must be an issuer or a list of issuers")
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
    """Return the table with single strings as lists."""
    return {name: [value] if name in names and isinstance(value, str) else value for name, value in table.items()}


def is_trusted_url(url: str) -> bool:
    """Whether a URL is trustworthy: over https, or on localhost."""
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
PAUSE: Final = 30.0  # seconds between two fetches, however many unknown keys are requested
FETCH_SECONDS: Final = 5.0
MAX_KEYS: Final = 100
MAX_BYTES: Final = 1 << 20
MIN_RSA_BITS: Final = 2048

_log: Final = Log("enfold.issuers")


class KeyRing:
    """The cached keys of one issuer."""

    def __init__(self, issuer: Issuer, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        self._fetched: float | None = None  # when the keys were last fetched
        self._tried: float | None = None  # when a fetch was last attempted
        self._fetching = asyncio.Lock()
        self._version: FileVersion = None  # of a file of keys

    async def find(self, kid: str | None, algorithm: str) -> list[Key]:
        """Return the candidate keys for a token; empty if the issuer has no such key or was never reached."""
        if self._issuer.jwks and "://" not in self._issuer.jwks:
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
        """Fetch the keys; during a concurrent fetch, a caller with a known key proceeds."""
        if self._fetching.locked() and not waits:
            return
        before = self._tried
        async with self._fetching:
            if self._tried != before:  # fetched while waiting
                return
            self._tried = self._clock()
            try:
                async with asyncio.timeout(FETCH_SECONDS):
                    self._keys = await self._fetch_keys()
            except Exception as error:  # noqa: BLE001  # whatever keeps them from us, the keys we know stay valid
                _log.warning("Cannot fetch the keys of %s: %s", self._issuer.issuer, sentence_of(error))
                return
            self._fetched = self._tried

    async def _fetch_keys(self) -> tuple[Key, ...]:
        url = self._issuer.jwks or await discover(self._issuer.issuer, self._fetch)
        return read_key_set(await self._fetch(url))

    def _read_file(self) -> None:
        """Reload a changed key file; an unreadable one invalidates all keys."""
        try:
            version = file_version(self._issuer.jwks)
            if version is None or version != self._version:
                self._version = version
                self._keys = read_key_set(Path(self._issuer.jwks).read_bytes())
        except (OSError, ValueError) as error:
            self._keys = ()
            _log.warning("Cannot read the keys of %s: %s", self._issuer.issuer, sentence_of(error))


# --- where they are -----------------------------------------------------------------------------------------------


async def discover(issuer: str, fetch: Fetch) -> str:
    """Discover the URL of an issuer's keys (OpenID Connect Discovery or RFC 8414)."""
    from enfold.auth.token_endpoint import authorization_server_urls

    failed: Exception | None = None
    for url in reversed(authorization_server_urls(issuer)):  # most issuers of JWTs are OpenID providers
        try:
            document = msgspec.json.decode(await fetch(url), type=dict[str, Any])
        except Exception as error:  # noqa: BLE001  # the other address may have it
            failed = failed or error
            continue
        if document.get("issuer") != issuer:
            raise ValueError(f"{url} is the document of another issuer")
        keys = document.get("jwks_uri")
        if not isinstance(keys, str) or not is_trusted_url(keys):
            raise ValueError(f"{url} has no https jwks_uri")
        return keys
    raise failed or ValueError("it has no discovery document")


# --- what they are ------------------------------------------------------------------------------------------------


def read_key_set(text: bytes) -> tuple[Key, ...]:
    """Return the keys of a JWK Set that can verify signatures."""
    found = msgspec.json.decode(text, type=_KeySet).keys
    return tuple(_usable(each for each in found[:MAX_KEYS] if isinstance(each, Mapping)))


class _KeySet(msgspec.Struct):
    keys: list[Any]


def _usable(found: Iterable[Mapping[str, Any]]) -> Iterable[Key]:
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    for each in found:
        is_weak = (
            each.get("kty") == "RSA" and len(str(each.get("n"))) * 6 < MIN_RSA_BITS
        )  # base64: six bits a character
        if is_weak or not algorithms_of(each) or each.get("use", "sig") != "sig":
            continue
        try:
            yield import_key({name: value for name, value in each.items() if name in _PUBLIC_FIELDS})
        except (JoseError, ValueError, TypeError, KeyError):
            continue


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
MAX_TRIED: Final = 10  # keys tried for a token without `kid`
MAX_ID: Final = 256
MAX_SCOPES: Final = 1000
# The scope `*` is reserved for the owner of this server, whom no issuer can name.
_EVERYTHING: Final = "*"
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})


class RefusedTokenError(Exception):
    """A rejected token; `check` names the failed check. The token itself is never included."""

    def __init__(self, check: str, sentence: str) -> None:
        self.check = check
        self.sentence = sentence
        super().__init__(f"{check}: {sentence}")


class Issuers:
    """Verifies JWTs of several issuers."""

    def __init__(
        self, issuers: Iterable[Issuer], *, fetch: Fetch | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`fetch` retrieves a URL, by default with the built-in HTTP client. Raises ValueError if ids may collide."""
        _need_joserfc()
        self.issuers = tuple(issuers)
        check_apart(self.issuers)
        self._rings = {each.issuer: (each, KeyRing(each, fetch or _fetch, clock)) for each in self.issuers}
        self._clock = clock

    async def identify(self, token: str) -> Identity | None:
        """Return the identity of a token, or None; the failed check is logged."""
        try:
            return await self.check(token)
        except RefusedTokenError as refused:
            _log.warning("A token was refused: %s", refused)
            return None

    async def check(self, token: str) -> Identity:
        """Return the identity of a token; raise RefusedTokenError with the failed check."""
        header, unproven = read_unproven(token)
        issuer, ring = self._ring_of(unproven.get("iss"))
        algorithm, kid = _algorithm(header, issuer), _key_id(header)
        keys = await ring.find(kid, algorithm)
        if not keys:
            raise RefusedTokenError("key", "the issuer has no such key, or its keys cannot be fetched")
        _check_signature(token, keys[:MAX_TRIED], algorithm)
        # Parsed once, so that the verified claims are those that were signed.
        _check_audience(unproven, issuer)
        _check_times(unproven, self._clock(), issuer.leeway)
        if "cnf" in unproven:
            raise RefusedTokenError("bearer", "it is bound to a key of its owner (cnf), which is not supported")
        identity = _identity_of(unproven, issuer)
        other = belongs_to_another(identity.id, issuer.prefix, self.issuers)
        if other is not None:
            raise RefusedTokenError("claims", f"ids with the prefix {other!r} belong to another issuer")
        return identity

    def _ring_of(self, name: Any) -> tuple[Issuer, KeyRing]:
        found = self._rings.get(name) if isinstance(name, str) else None
        if found is None:
            raise RefusedTokenError("issuer", "the issuer is not trusted")
        return found


def _need_joserfc() -> None:
    from importlib.util import find_spec

    if find_spec("joserfc") is None:
        raise missing_package("Tokens of an issuer need joserfc", "auth")


# --- reading ------------------------------------------------------------------------------------------------------


def read_unproven(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the unverified header and claims."""
    parts = token.split(".") if len(token) <= MAX_TOKEN else []
    if len(parts) != 3 or not all(parts):
        raise RefusedTokenError("form", "it is not a signed JWT")
    return _read_part(parts[0]), _read_part(parts[1])


def _read_part(part: str) -> Mapping[str, Any]:
    from joserfc.util import urlsafe_b64decode

    try:
        found = read_json(urlsafe_b64decode(part.encode("ascii")))
    except (FormatError, ValueError):
        raise RefusedTokenError("form", "its parts are not JSON") from None
    if not isinstance(found, dict):
        raise RefusedTokenError("form", "its parts are not JSON objects")
    return found


def _algorithm(header: Mapping[str, Any], issuer: Issuer) -> str:
    algorithm, type_ = header.get("alg"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        raise RefusedTokenError("algorithm", "its algorithm is not allowed")
    if "crit" in header or "b64" in header:
        raise RefusedTokenError("form", "it has unsupported critical headers")
    if not isinstance(type_, str) or type_.lower() not in _TYPES:
        raise RefusedTokenError("form", "its type (typ) is not that of an access token")
    return algorithm


def _key_id(header: Mapping[str, Any]) -> str | None:
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise RefusedTokenError("form", "its kid is not a string")
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
    raise RefusedTokenError("signature", "the signature does not match a key of the issuer")


def _check_audience(claims: Mapping[str, Any], issuer: Issuer) -> None:
    found = claims.get("aud")
    named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if not any(isinstance(name, str) and name in issuer.audiences for name in named):
        raise RefusedTokenError("audience", "it is intended for another audience")


def _check_times(claims: Mapping[str, Any], now: float, leeway: float) -> None:
    """Reject a token outside its validity period or without an expiry."""
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None and name != "exp":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedTokenError("form", f"{name} is not a time")
    if now >= claims["exp"] + leeway:
        raise RefusedTokenError("expired", "it has expired")
    if claims.get("nbf", now) > now + leeway:
        raise RefusedTokenError("not_yet", "it is not valid yet")
    if claims.get("iat", now) > now + leeway:
        raise RefusedTokenError("not_yet", "it was issued in the future")


def _identity_of(claims: Mapping[str, Any], issuer: Issuer) -> Identity:
    """Return the identity that the claims of a verified token describe."""
    found = _look_up(claims, issuer.claims.id)
    if not isinstance(found, str) or not 0 < len(found) <= MAX_ID or not found.isprintable():
        raise RefusedTokenError("claims", f"{issuer.claims.id} is missing or invalid")
    if found in RESERVED_IDS:
        raise RefusedTokenError("claims", f"the id {found!r} is reserved for this server")
    scopes = frozenset(scope for place in issuer.claims.scopes for scope in _words(claims, place)) - {_EVERYTHING}
    if len(scopes) > MAX_SCOPES:
        raise RefusedTokenError("claims", f"it has more than {MAX_SCOPES} scopes")
    return Identity(f"{issuer.prefix or ''}{found}", scopes, _resources(claims, issuer.claims.resources))


def _look_up(claims: Mapping[str, Any], place: str) -> Any:
    """Return the value of a claim; a literal name with dots or slashes takes precedence over a path."""
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
    try:
        return msgspec.convert(found, dict[str, list[str]])
    except msgspec.ValidationError:
        raise RefusedTokenError("claims", f"{place} is not a table of resources and actions") from None


# --- fetching -----------------------------------------------------------------------------------------------------


async def _fetch(url: str) -> bytes:
    """Fetch a URL with the built-in HTTP client, without following redirects."""
    from enfold.auth.token_endpoint import exchange
    from enfold.http_client import open_client

    client = open_client()
    try:
        status, _, body = await exchange(client.send, "GET", url, {"accept": "application/json"}, limit=MAX_BYTES)
    finally:
        await client.aclose()
    if status != 200:
        raise ValueError(f"{url} responded with {status}")
    return body
