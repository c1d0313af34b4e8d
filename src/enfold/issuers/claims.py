"""From the claims of a verified token to an identity. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from enfold.issuers.settings import Issuer
from enfold.operation import Identity

__all__ = ["identity_of", "time_fault"]

MAX_ID: Final = 256
MAX_SCOPES: Final = 1000
# Everything is allowed to the owner of this server alone, whom no issuer can name.
_EVERYTHING: Final = "*"


def identity_of(claims: Mapping[str, Any], issuer: Issuer) -> Identity:
    """The identity that claims describe; ValueError says what is missing or wrong."""
    found = _look_up(claims, issuer.claims.id)
    if not isinstance(found, str) or not 0 < len(found) <= MAX_ID or not found.isprintable():
        raise ValueError(f"{issuer.claims.id} names nobody")
    scopes = frozenset(scope for place in issuer.claims.scopes for scope in _words(claims, place)) - {_EVERYTHING}
    if len(scopes) > MAX_SCOPES:
        raise ValueError(f"it has more than {MAX_SCOPES} scopes")
    return Identity(f"{issuer.prefix}{found}", scopes, _resources(claims, issuer.claims.resources))


def _look_up(claims: Mapping[str, Any], place: str) -> Any:
    """What a claim holds: a name that has dots or slashes itself comes before a path."""
    if not place or place in claims:
        return claims.get(place)
    parts = place[1:].split("/") if place.startswith("/") else place.split(".")
    found: Any = claims
    for part in parts:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
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
        raise ValueError(f"{place} is no table of resources and actions")
    return {str(name): list(actions) for name, actions in found.items()}


def _are_actions(actions: Any) -> bool:
    return isinstance(actions, list) and all(isinstance(action, str) for action in actions)


def time_fault(claims: Mapping[str, Any], now: float, leeway: float) -> tuple[str, str] | None:
    """Which check of its times a token fails, and why: it must say when it ends."""
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None and name != "exp":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "form", f"{name} is no time"
    if now >= claims["exp"] + leeway:
        return "expired", "it has expired"
    if claims.get("nbf", now) > now + leeway:
        return "not_yet", "it is not valid yet"
    if claims.get("iat", now) > now + leeway:
        return "not_yet", "it was issued in the future"
    return None
