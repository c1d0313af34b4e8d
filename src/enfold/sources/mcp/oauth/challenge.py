"""What a refusal asks for: the challenges of `WWW-Authenticate`, and how they are read. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  # the token of a grammar
_PARAMETER: Final = re.compile(rf'\s*({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))\s*(?:,|$)')
_SCHEME: Final = re.compile(rf"[\s,]*({_TOKEN})(?:\s+([A-Za-z0-9._~+/-]+=*)\s*(?=,|$)|(?=\s|,|$))")


class Challenge(msgspec.Struct, frozen=True):
    """One way to log in, as a server names it in `WWW-Authenticate`."""

    scheme: str = ""
    parameters: dict[str, str] = {}

    @property
    def scopes(self) -> tuple[str, ...]:
        return tuple(self.parameters.get("scope", "").split())

    @property
    def metadata_url(self) -> str:
        return self.parameters.get("resource_metadata", "")

    @property
    def error(self) -> str:
        return self.parameters.get("error", "")

    @property
    def wants_proof(self) -> bool:
        return self.scheme == "dpop"

    @property
    def wants_more_scopes(self) -> bool:
        return self.error == "insufficient_scope"


def token_challenge(headers: Iterable[str], *, prefers_proof: bool = False) -> Challenge:
    """The challenge that an access token answers, the simpler one first; an empty one where the server names none."""
    found = {challenge.scheme: challenge for header in headers for challenge in read_challenges(header)}
    schemes = ("dpop", "bearer") if prefers_proof else ("bearer", "dpop")
    return next((found[scheme] for scheme in schemes if scheme in found), Challenge())


def read_challenges(header: str) -> Iterator[Challenge]:
    """The challenges of one header, which may be several; it ends where the text stops making sense."""
    place = 0
    while (scheme := _SCHEME.match(header, place)) is not None:
        parameters, place = _read_parameters(header, scheme.end())
        yield Challenge(scheme[1].lower(), dict(parameters))


def _read_parameters(header: str, place: int) -> tuple[Mapping[str, str], int]:
    parameters: dict[str, str] = {}
    while (found := _PARAMETER.match(header, place)) is not None:
        value = found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2])
        parameters.setdefault(found[1].lower(), value)
        place = found.end()
    return parameters, place
