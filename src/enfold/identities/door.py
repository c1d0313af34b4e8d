"""The one place where a token becomes an identity: it is verified, a refusal is logged, and whoever guesses waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sized
from typing import Any, Final

from enfold.errors import CallError
from enfold.identities.attempts import Attempts
from enfold.log import Log
from enfold.operation import Identity
from enfold.tokens import Verifier, bearer_token, verified

__all__ = ["AnyOf", "Door", "address_of", "no_identity", "refused_token"]

_log: Final = Log("enfold.identities")


class Door:
    """Who may come in by which token; `issuers` are the URLs of those who give them."""

    def __init__(self, verifier: Verifier, attempts: Attempts | None = None) -> None:
        self._verifier = verifier
        self._attempts = attempts or Attempts()

    @property
    def issuers(self) -> list[str]:
        return [each.issuer for each in getattr(self._verifier, "issuers", ())]

    async def enter(self, authorization: str, address: str) -> Identity | None:
        """The identity behind an `Authorization` header; None, after a while, where there is none."""
        token = bearer_token(authorization)
        identity = None if token is None else await verified(self._verifier, token)
        if identity is None:
            _log.warning("A token from %s was refused", address or "an unknown address")
            await asyncio.sleep(self._attempts.failed(address))
        return identity


class AnyOf:
    """Several verifiers as one: a token is asked of each in turn."""

    def __init__(self, verifiers: Iterable[Verifier]) -> None:
        self._verifiers = tuple(verifiers)
        self.issuers = [each for verifier in self._verifiers for each in getattr(verifier, "issuers", ())]

    async def identify(self, token: str) -> Identity | None:
        for verifier in self._verifiers:
            identity = await verified(verifier, token)
            if identity is not None:
                return identity
        return None

    def __len__(self) -> int:
        """How many identities are known by name; those of an issuer are not."""
        return sum(len(each) for each in self._verifiers if isinstance(each, Sized))

    def __bool__(self) -> bool:
        """Whether anybody can come in at all."""
        return len(self) > 0 or any(not isinstance(each, Sized) for each in self._verifiers)


def address_of(scope: Mapping[str, Any]) -> str:
    """The address that an ASGI request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def no_identity() -> CallError:
    """What a caller without a token is told, whatever they asked for."""
    return CallError("ACCESS_DENIED", "This server needs a bearer token", {"reason": "no_identity"})


def refused_token() -> CallError:
    return CallError("ACCESS_DENIED", "The token is not valid", {"reason": "invalid_token"})
