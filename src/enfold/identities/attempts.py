"""Failed attempts, counted per address: whoever guesses tokens waits longer for each answer.

A right token is never slowed down, whoever else comes from the same address.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

import msgspec

FREE: Final = 5  # failures that are answered at once
STEP: Final = 0.2  # seconds that the first later one waits; each further one waits twice as long
MAX_DELAY: Final = 10.0
FORGOTTEN: Final = 300.0  # seconds without a failure
MAX_ADDRESSES: Final = 10_000
MAX_WAITING: Final = 500  # refusals that wait at a time; further ones are sent at once


class _Address(msgspec.Struct):
    failures: int = 0
    last: float = 0.0
    free_at: float = 0.0  # when the last refusal that waits is sent


class Attempts:
    """The recent failed attempts, of as many addresses as fit."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_addresses: int = MAX_ADDRESSES) -> None:
        self._clock = clock
        self._max_addresses = max_addresses
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def failed(self, address: str) -> float:
        """Count a failed attempt; the answer is how many seconds its refusal has to wait.

        Refusals to one address are sent one after the other, so that many at once are no quicker than one by one.
        """
        now = self._clock()
        known = self._known(_network_of(address), now)
        known.failures += 1
        known.last = now
        if known.failures <= FREE:
            return 0.0
        step = min(STEP * 2 ** min(known.failures - FREE - 1, 16), MAX_DELAY)
        known.free_at = min(max(known.free_at, now) + step, now + MAX_DELAY)
        return known.free_at - now

    def _known(self, network: str, now: float) -> _Address:
        found = self._addresses.pop(network, None)
        if found is None or now - found.last > FORGOTTEN:
            found = _Address()
        self._addresses[network] = found
        if len(self._addresses) > self._max_addresses:
            self._addresses.popitem(last=False)
        return found

    def __len__(self) -> int:
        return len(self._addresses)


def _network_of(address: str) -> str:
    """An address, or for IPv6 the network that one customer has: there are more addresses in it than guesses."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
