"""Streams that are open when their token ends: they end, too, soon after it is revoked, has expired, or allows less.

A call that runs already goes on to its end; what has no end of its own must not go on for somebody who may not begin it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from enfold.access import grants_all_of
from enfold.identities.tokens import Verifier, verified
from enfold.operation import Identity

RECHECK_INTERVAL: Final = 5.0  # seconds between two checks of the token of an open stream

Refuse: TypeAlias = Callable[[], Awaitable[object] | None]


@contextmanager
def while_admitted(
    verifier: Verifier | None,
    token: str | None,
    identity: Identity | None,
    refuse: Refuse,
    every: float | None = None,
) -> Iterator[None]:
    """Inside, `refuse` is called once the token no longer lets the identity in with all that it had."""
    if verifier is None or token is None or identity is None:
        yield
        return
    checking = asyncio.ensure_future(_recheck(verifier, token, identity, refuse, every or RECHECK_INTERVAL))
    try:
        yield
    finally:
        checking.cancel()


async def _recheck(verifier: Verifier, token: str, identity: Identity, refuse: Refuse, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        now = await verified(verifier, token)
        if now is None or now.id != identity.id or not grants_all_of(now, identity):
            going = refuse()
            if going is not None:
                await going
            return
