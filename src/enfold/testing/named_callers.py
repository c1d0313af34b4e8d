"""Bearer tokens that are made when a test names an identity."""

from __future__ import annotations

from collections.abc import Awaitable

from enfold.identities.tokens import Verifier, new_token
from enfold.operation import Identity


class NamedCallers:
    """A verifier that knows every identity a test has named, and asks another for any other token."""

    def __init__(self, others: Verifier | None = None) -> None:
        self._others = others
        self._identities: dict[str, Identity] = {}

    def header(self, identity: Identity | None) -> dict[str, str]:
        """The header that shows who calls; a stranger has none."""
        return {} if identity is None else {"authorization": f"Bearer {self._token(identity)}"}

    def _token(self, identity: Identity) -> str:
        found = next((token for token, known in self._identities.items() if known == identity), None)
        if found is None:
            found = new_token()
            self._identities[found] = identity
        return found

    def identify(self, token: str) -> Identity | Awaitable[Identity | None] | None:
        known = self._identities.get(token)
        return known if known is not None or self._others is None else self._others.identify(token)
