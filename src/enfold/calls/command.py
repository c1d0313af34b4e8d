"""The commands `enfold peers` and `enfold nats permissions`: who serves what, and who may."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from enfold.calls.address import open_transport
from enfold.calls.micro import PATIENCE, Peer, find_peers
from enfold.calls.permissions import nats_permissions, read_users
from enfold.errors import CallError
from enfold.registry import Registry

__all__ = ["add_address_options", "describe_peers", "run_nats", "run_peers"]


def run_peers(arguments: Sequence[str], *, token: str | None = None, stdout: TextIO | None = None) -> int:
    """List everybody who serves, with counts, latencies and versions."""
    parser = ArgumentParser("enfold peers", description="List who serves what, with counts, latencies and versions.")
    add_address_options(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="how long answers may take, in seconds")
    options = parser.parse_args(arguments)
    peers = asyncio.run(_find(options, token))
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


def describe_peers(peers: Sequence[Peer]) -> str:
    """A table for people."""
    head = ("peer", "operation", "version", "calls", "errors", "average")
    rows = [
        (peer.name, found.id, found.version, str(found.requests), str(found.errors), f"{found.average_ms:.1f} ms")
        for peer in peers
        for found in peer.operations
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)


async def _find(options: Namespace, token: str | None) -> list[Peer]:
    transport = open_transport(options.nats or options.hub, name=options.name, token=token, insecure=options.insecure)
    try:
        return await find_peers(transport, patience=options.patience)
    finally:
        await transport.close()


def run_nats(registry: Registry, arguments: Sequence[str], *, stdout: TextIO | None = None) -> int:
    """`permissions --users FILE`: the server's permissions, made from what the registry's operations require."""
    parser = ArgumentParser("enfold nats", description="Make the permissions of a NATS server.")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("permissions", help="print an authorization block for the server's configuration")
    making.add_argument("--users", type=Path, required=True, help="JSON: [{id, scopes, resources, serves, operator}]")
    options = parser.parse_args(arguments)
    try:
        users = read_users(options.users.read_bytes())
    except OSError as error:
        raise CallError(
            "VALIDATION_ERROR", f"The users cannot be read from {options.users}: {error.strerror}"
        ) from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", f"{options.users}: {error}") from None
    (stdout or sys.stdout).write(nats_permissions(registry.list(), users))
    return 0
