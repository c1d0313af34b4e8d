"""The commands `enfold peers` and `enfold nats permissions`: who serves what, and who may."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from enfold.calls.caller.peers import PATIENCE, RunningPeer, find_peers
from enfold.calls.transports.addresses import reached
from enfold.calls.transports.nats_permissions import NATSUser, nats_permissions, read_users
from enfold.errors import CallError
from enfold.registry import Registry

__all__ = [
    "add_address_options",
    "add_nats_options",
    "describe_peers",
    "print_permissions",
    "run_peers",
    "users_in",
]


def run_peers(arguments: Sequence[str], *, token: str | None = None, stdout: TextIO | None = None) -> int:
    """List everybody who serves, with counts, latencies and versions."""
    parser = ArgumentParser("enfold peers", description="List who serves what, with counts, latencies and versions.")
    add_address_options(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="how long answers may take, in seconds")
    options = parser.parse_args(arguments)
    peers = asyncio.run(_find(options, token))
    if not peers:
        sys.stderr.write("Nobody answers: nobody serves there, or you may not ask.\n")
    out = stdout or sys.stdout
    out.write(msgspec.json.encode(peers).decode() if options.json else describe_peers(peers))
    out.write("\n")
    return 0


def add_address_options(parser: ArgumentParser) -> None:
    """The options by which a command finds its peers."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--nats", metavar="URL", help="servers of NATS, with commas between them")
    place.add_argument("--hub", metavar="URL", help="the ws:// or wss:// address of a hub")
    parser.add_argument("--name", help="the name to be known by (NATS: the user)")
    parser.add_argument("--insecure", action="store_true", help="use a distant server that asks for no credentials")


def describe_peers(peers: Sequence[RunningPeer]) -> str:
    """A table for people."""
    head = ("peer", "operation", "version", "calls", "errors", "average")
    rows = [
        (peer.name, found.id, found.version, str(found.requests), str(found.errors), f"{found.average_ms:.1f} ms")
        for peer in peers
        for found in sorted(peer.operations, key=lambda found: found.id)
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)


async def _find(options: Namespace, token: str | None) -> list[RunningPeer]:
    place = options.nats or options.hub
    async with reached(place, name=options.name, token=token, insecure=options.insecure) as transport:
        return await find_peers(transport, patience=options.patience)


def add_nats_options(parser: ArgumentParser) -> None:
    """What `enfold nats permissions` takes beside its target."""
    parser.add_argument("--users", type=Path, required=True, help="JSON: [{id, scopes, resources, serves, operator}]")


def print_permissions(registry: Registry, users: Path, *, stdout: TextIO | None = None) -> int:
    """An authorization block for the server's configuration, made from what the registry's operations require."""
    (stdout or sys.stdout).write(nats_permissions(registry.list(), users_in(users)))
    return 0


def users_in(file: Path) -> list[NATSUser]:
    """The users a file lists; whatever is wrong with it is one sentence."""
    try:
        return read_users(file.read_bytes())
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"The users cannot be read from {file}: {error.strerror}") from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", f"{file}: {error}") from None
