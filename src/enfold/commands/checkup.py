"""What `enfold doctor TARGET` looks at: sources, what they left out, schemas, credentials, names, costs, and the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from enfold.commands.targets import TOKEN, Target, opened
from enfold.log import counted
from enfold.mcp.tool_names import tool_names
from enfold.operation import legal_name
from enfold.registry import Registry
from enfold.schema.check import compile_schema

Level: TypeAlias = Literal["error", "warning", "note"]

OLDEST_NATS: Final = (2, 10)
BUDGET: Final = 10_000  # tokens that the list of tools may cost before it is worth a word


class Finding(msgspec.Struct, frozen=True):
    """One thing that is worth knowing about a target: where, what, and how bad it is."""

    level: Level
    where: str
    what: str


async def check_up(target: Target) -> AsyncIterator[Finding]:
    """Open a target and look at all of it; what it finds comes as soon as it is found."""
    async with opened(target) as registry:
        for look in (sources, schemas, names, costs):
            for finding in look(registry):
                yield finding
    if target.kind == "peers":
        async for finding in broker(target.text):
            yield finding


def sources(registry: Registry) -> Iterator[Finding]:
    """Whether each source is there, what it left out, and which credentials it lacks."""
    for source in registry.sources:
        if source.state != "up":
            yield Finding("error", source.name, f"{source.state}: {source.why}" if source.why else source.state)
        else:
            yield Finding("note", source.name, f"{source.kind}, up, {counted(source.operations, 'operation')}")
        for need in source.needs:
            yield Finding("warning", source.name, need)
        for problem in source.skipped:
            yield Finding("warning", source.name, f"{problem.where} was left out: {problem.why}")
    if not registry.list():
        yield Finding("error", "operations", "there are none")


def schemas(registry: Registry) -> Iterator[Finding]:
    """Which schemas cannot be used, and so rule out nothing."""
    for spec in registry.list():
        for name, schema in (("input", spec.input_schema), ("output", spec.output_schema)):
            problem = compile_schema(schema).problem
            if problem is not None:
                yield Finding("warning", spec.id, f"its {name} schema cannot be used, and is passed over: {problem}")


def names(registry: Registry) -> Iterator[Finding]:
    """Which operations have, as MCP tools, a name that had to be changed because another has it."""
    for operation_id, tool in tool_names(registry).items():
        if tool != legal_name(operation_id):
            yield Finding("note", operation_id, f"is listed as the MCP tool {tool}: another would have the same name")


def costs(registry: Registry) -> Iterator[Finding]:
    """What the list of tools costs a model, and which tools cost the most."""
    from enfold.commands.callers import LOCAL
    from enfold.surfaces.mcp.tool_costs import tool_costs

    found = tool_costs(registry, LOCAL)
    total = sum(found.values())
    dear = ", ".join(f"{name} {tokens:,}" for name, tokens in sorted(found.items(), key=lambda each: -each[1])[:3])
    if total > BUDGET:
        yield Finding("warning", "tools", f"about {total:,} tokens (most: {dear}): serve them with --expose search")
    elif total:
        yield Finding("note", "tools", f"about {total:,} tokens")


async def broker(address: str) -> AsyncIterator[Finding]:
    """Whether the server that keeps tasks is one we know, and what it does not do unless it is told; nothing of a hub."""
    import os

    from enfold.calls.protocol.outage import address_name
    from enfold.calls.protocol.transport import keeps_state
    from enfold.calls.transports.addresses import reached

    name = address_name(address)
    async with reached(address, token=os.environ.get(TOKEN)) as transport:
        if not keeps_state(transport):
            return
        client = transport.client
        version = client.connected_server_version
        has_jetstream = bool(client._server_info.get("jetstream"))
    if (version.major, version.minor) < OLDEST_NATS:
        wanted = ".".join(map(str, OLDEST_NATS))
        yield Finding("warning", name, f"NATS {version.major}.{version.minor} is old: use {wanted} or later")
    if has_jetstream:
        words = "JetStream writes to disk every two minutes unless its configuration says `sync_interval: always`"
        yield Finding(
            "note", name, f"{words}: after a power failure accepted tasks may be lost. This cannot be seen from here"
        )
