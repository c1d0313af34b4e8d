"""The command `enfold peers`: peers and their operations, with counts, latencies and versions."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace, _MutuallyExclusiveGroup
from collections.abc import Sequence

from enfold.calls.caller.peers import PATIENCE, RunningPeer, find_peers
from enfold.calls.transports.addresses import reached
from enfold.commands.shared.options import add_number, parse_options
from enfold.commands.shared.output import print_json
from enfold.commands.shared.targets import TOKEN
from enfold.errors import CallError, printable_lines
from enfold.runtime.registry import Registry


def run(words: list[str], registry: Registry | None) -> int:
    """List all running peers."""
    del registry
    parser = ArgumentParser(
        "enfold peers", description="List peers, with their operations, counts, latencies and versions."
    )
    add_address_options(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    patience = "how long to wait for responses, in seconds"
    add_number(parser, "--patience", 0, 3_600, kind=float, default=PATIENCE, help=patience)
    options = parse_options(parser, words)
    peers = asyncio.run(_find(options))
    if not peers:
        raise CallError("UNAVAILABLE", "No peer responded: none is connected, or this user may not list peers")
    if options.json:
        print_json(peers)
    else:
        print(printable_lines(describe_peers(peers)))
    return 0


def add_address_options(parser: ArgumentParser) -> _MutuallyExclusiveGroup:
    """Add the options for the server of the peers; the returned group accepts alternatives."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--nats", metavar="URL", help="NATS servers, separated by commas")
    place.add_argument("--hub", metavar="URL", help="the ws:// or wss:// URL of a hub")
    parser.add_argument("--name", help="the name of this peer (NATS: the user)")
    parser.add_argument("--insecure", action="store_true", help="allow a remote server without credentials")
    return place


async def _find(options: Namespace) -> list[RunningPeer]:
    place, token = options.nats or options.hub, os.environ.get(TOKEN)
    async with reached(place, name=options.name, token=token, insecure=options.insecure) as transport:
        return await find_peers(transport, patience=options.patience)


def describe_peers(peers: Sequence[RunningPeer]) -> str:
    """Return a table of peers for people."""
    head = ("peer", "operation", "version", "calls", "errors", "average")
    rows = [
        (peer.name, found.id, found.version, str(found.requests), str(found.errors), f"{found.average_ms:.1f} ms")
        for peer in peers
        for found in sorted(peer.operations, key=lambda found: found.id)
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)
