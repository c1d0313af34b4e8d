"""The command `enfold doctor`: checks the installation, a target, or (with `--token -`) a token."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from platform import python_version
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

import enfold
from enfold.auth.token_file import TokenFile
from enfold.commands.shared.callers import LOCAL, add_caller_options, find_verifiers, token_verifier
from enfold.commands.shared.options import parse_command
from enfold.commands.shared.output import painter, print_json
from enfold.commands.shared.targets import TOKEN, Target, opened
from enfold.commands.token import resource_words
from enfold.errors import CallError, code_row, counted, install_command, printable
from enfold.mcp.offers import tool_names
from enfold.operations import legal_name
from enfold.runtime.registry import Registry
from enfold.schema.compiled import compile_schema

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.auth.issuers import Issuers
    from enfold.operations import Identity

EXTRAS: Final = {
    "http": "uvicorn",
    "mcp": "httptools",
    "openapi": "yaml",
    "nats": "nats",
    "websocket": "websockets",
    "auth": "cryptography",
    "otel": "opentelemetry",
    "metrics": "prometheus_client",
    "(models)": "pydantic",
}
OLDEST_NATS: Final = (2, 10)
BUDGET: Final = 10_000  # tokens that the list of tools may cost before it is worth a word
MAX_SHOWN: Final = 200  # characters of a claim
_LEVEL_COLOURS: Final = {"error": "red", "warning": "yellow", "note": "dim"}


def run(words: list[str], registry: Registry | None) -> int:
    """Print a line for each extra, or what there is to say about a target or a token."""
    del registry
    told = "Check the installation, a target or a token."
    options = parse_command("doctor", words, None, told, _add_options)
    if options.token is not None:
        return _examine(options)
    token_verifier(options)  # Reports mistakes in tokens and issuers as a server would.
    if options.target is not None:
        return _check_up(options)
    print(f"enfold {enfold.__version__}, Python {python_version()}")
    for extra, package in EXTRAS.items():
        how = "pip install pydantic" if extra == "(models)" else install_command(extra)
        print(f"  {extra:<10} {package:<17} {'installed' if find_spec(package) else f'missing: {how}'}")
    return 0


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--token",
        metavar="-",
        help="check the token on standard input (-), also against the issuers of a configuration",
    )
    add_caller_options(parser)


# --- a target -----------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """One thing that is worth knowing about a target: where, what, and how bad it is."""

    level: Literal["error", "warning", "note"]
    where: str
    what: str


def _check_up(options: Namespace) -> int:
    """Print the findings about a target; the exit code is 1 where one is an error."""
    from enfold.app.signals import run_in_loop

    found: list[Finding] = []
    paint = painter(sys.stdout)

    async def look() -> None:
        async for each in _findings(options.target):
            found.append(each)
            if not options.json:
                level = paint(f"{each.level:<7}", _LEVEL_COLOURS[each.level])
                print(f"{level}  {printable(each.where)}: {printable(each.what)}", flush=True)

    run_in_loop(look())
    errors = sum(each.level == "error" for each in found)
    if options.json:
        print_json({"healthy": not errors, "findings": found})
    else:
        warnings = sum(each.level == "warning" for each in found)
        print(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")
    return code_row("EXECUTION_ERROR").exit_code if errors else 0


async def _findings(target: Target) -> AsyncIterator[Finding]:
    """Open a target and check all of it; each finding comes as soon as it is made."""
    async with opened(target) as registry:
        for check in (_sources, _schemas, _tool_names, _costs):
            for finding in check(registry):
                yield finding
    if target.kind == "peers":
        async for finding in broker(target.text):
            yield finding


def _sources(registry: Registry) -> Iterator[Finding]:
    """Whether each source is up, what it left out, and which credentials it lacks."""
    for source in registry.services.sources:
        if source.state != "up":
            yield Finding("error", source.name, f"{source.state}: {source.why}" if source.why else source.state)
        else:
            yield Finding("note", source.name, f"{source.kind}, up, {counted(source.operations, 'operation')}")
        for need in source.needs:
            yield Finding("warning", source.name, need)
        for problem in source.skipped:
            yield Finding("warning", source.name, f"skipped {problem.where}: {problem.why}")
    if not registry.list():
        yield Finding("error", "operations", "there are none")


def _schemas(registry: Registry) -> Iterator[Finding]:
    """Report schemas that cannot be compiled and so check nothing."""
    for spec in registry.list():
        for name, schema in (("input", spec.input_schema), ("output", spec.output_schema)):
            problem = compile_schema(schema).problem
            if problem is not None:
                yield Finding("warning", spec.id, f"the {name} schema is invalid and is ignored: {problem}")


def _tool_names(registry: Registry) -> Iterator[Finding]:
    """Report operations that are MCP tools under another name, because two would have the same."""
    for operation_id, tool in tool_names(registry).items():
        if tool != legal_name(operation_id):
            yield Finding(
                "note", operation_id, f"is listed as the MCP tool {tool}, because another tool has the same name"
            )


def _costs(registry: Registry) -> Iterator[Finding]:
    """Report what the list of tools costs a model, and which tools cost the most."""
    from enfold.surfaces.mcp.catalog import tool_costs

    found = tool_costs(registry, LOCAL)
    total = sum(found.values())
    dear = ", ".join(f"{name} {tokens:,}" for name, tokens in sorted(found.items(), key=lambda each: -each[1])[:3])
    if total > BUDGET:
        yield Finding("warning", "tools", f"about {total:,} tokens (most: {dear}): serve them with --expose search")
    elif total:
        yield Finding("note", "tools", f"about {total:,} tokens")


async def broker(address: str) -> AsyncIterator[Finding]:
    """Whether a NATS server is new enough, and what it may lose in a power failure; nothing about a hub."""
    from enfold.calls.protocol.connection import address_name
    from enfold.calls.protocol.transport import keeps_state
    from enfold.calls.transports.addresses import reached
    from enfold.calls.transports.nats import server_has

    name = address_name(address)
    async with reached(address, token=os.environ.get(TOKEN)) as transport:
        if not keeps_state(transport):
            return
        client = transport.client
        version = client.connected_server_version
        has_jetstream = server_has(client, "jetstream")
    if (version.major, version.minor) < OLDEST_NATS:
        wanted = ".".join(map(str, OLDEST_NATS))
        yield Finding("warning", name, f"NATS {version.major}.{version.minor} is old: use {wanted} or later")
    if has_jetstream:
        words = "JetStream writes to disk every two minutes unless its configuration says `sync_interval: always`"
        yield Finding(
            "note", name, f"{words}: accepted tasks may be lost after a power failure. Enfold cannot check this setting"
        )


# --- a token ------------------------------------------------------------------------------------------------------


def _examine(options: Namespace) -> int:
    """Print what a token is and which check refuses it, but nothing of the token itself."""
    if options.token != "-":  # noqa: S105  # the sign for standard input
        raise CallError(
            "VALIDATION_ERROR", "Other users can see tokens on a command line: use --token - and pipe the token in"
        )
    token = sys.stdin.readline().strip()
    options.token = None
    print("\n".join(_describe_token(token)))
    found = list(_verdicts(token, options))
    for identity, sentence in found:
        if identity is None:
            print(printable(sentence))
        else:
            rights = [_short(identity.id), *sorted(identity.scopes), *resource_words(identity.resources)]
            print(printable(f"accepted: {' '.join(rights)}"))
    if not found:
        print(
            "nothing to check it against: pass --tokens FILE, --issuer URL --audience NAME, or a configuration with [auth]"
        )
    is_good = not found or any(identity is not None for identity, _ in found)
    return 0 if is_good else code_row("ACCESS_DENIED").exit_code


def _describe_token(token: str) -> Iterator[str]:
    from enfold.auth.issuers import RefusedTokenError, read_unproven

    try:
        header, claims = read_unproven(token)
    except (RefusedTokenError, ModuleNotFoundError):
        yield f"a token of {len(token)} characters, not a JWT"
        return
    yield "a JWT, not verified yet"
    for name in ("alg", "kid", "typ"):
        if name in header:
            yield f"  {name:<6} {_short(header[name])}"
    for name in ("iss", "aud", "sub", "scope", "scp", "roles", "nbf", "exp"):
        if name in claims:
            yield f"  {name:<6} {_short(claims[name])}{_distance(name, claims[name])}"


def _short(value: Any) -> str:
    return printable((value if isinstance(value, str) else repr(value))[:MAX_SHOWN])


def _distance(name: str, value: Any) -> str:
    """Return how far from now a claim is, if it is a time."""
    if name not in ("nbf", "exp") or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    seconds = value - time.time()
    return f" ({abs(seconds):.0f} seconds {'from now' if seconds > 0 else 'ago'})"


def _verdicts(token: str, options: Namespace) -> Iterator[tuple[Identity | None, str]]:
    """Return what each configured verifier says about the token."""
    from enfold.auth.issuers import Issuers

    for verifier in find_verifiers(options):
        if isinstance(verifier, TokenFile):
            yield verifier.examine(token)
        elif isinstance(verifier, Issuers):
            yield _ask_issuers(verifier, token)
        else:
            identity: Any = verifier.identify(token)
            yield identity, "rejected: the token is not in the list"


def _ask_issuers(issuers: Issuers, token: str) -> tuple[Identity | None, str]:
    import asyncio

    from enfold.auth.issuers import RefusedTokenError

    try:
        return asyncio.run(issuers.check(token)), ""
    except RefusedTokenError as refused:
        return None, f"rejected by the check {refused.check!r}: {refused.sentence}"
