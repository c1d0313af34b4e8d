"""Whether a host is this very machine, where callers and servers need not prove as much as those from afar. No I/O."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
