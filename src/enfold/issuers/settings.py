"""What an operator says about an issuer, as values: whose tokens, for whom, under which keys, and where the claims are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from enfold.identities.id_spaces import check_apart, check_prefix
from enfold.identities.loopback import is_loopback
from enfold.identities.signature_algorithms import ALGORITHMS

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
