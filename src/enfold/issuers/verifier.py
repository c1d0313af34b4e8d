"""Who is behind a JWT: which issuer it names, whether one of its keys signed it, whether it is meant for us, now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from enfold.errors import CallError, FormatError
from enfold.identities.id_spaces import belongs_to_another, check_apart
from enfold.issuers.keys import MAX_BYTES, Fetch, KeyRing
from enfold.issuers.settings import Issuer
from enfold.json_pointer import names
from enfold.log import Log
from enfold.operation import RESERVED_IDS, Identity
from enfold.provenance.canonical import read_json
from enfold.version import install_command

if TYPE_CHECKING:
    from joserfc.jwk import Key

MAX_TOKEN: Final = 16 * 1024
MAX_TRIED: Final = 10  # keys, for a token that names none
MAX_ID: Final = 256
MAX_SCOPES: Final = 1000
# Everything is allowed to the owner of this server alone, whom no issuer can name.
_EVERYTHING: Final = "*"
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
    from enfold.sources.web import open_client
    from enfold.sources.web.token_endpoint import exchange

    client = open_client()
    try:
        status, _, body = await exchange(client.send, "GET", url, {"accept": "application/json"}, limit=MAX_BYTES)
    finally:
        await client.aclose()
    if status != 200:
        raise ValueError(f"{url} answers {status}")
    return body
