"""What `enfold serve` says at its start: where it is, who may come in, what is open, and what nobody may call."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from enfold.commands.shared.log_setup import announce
from enfold.log import counted
from enfold.operation import OperationSpec
from enfold.registry import Registry

if TYPE_CHECKING:
    from enfold.commands.serve import Terms
    from enfold.identities.tokens import AnyOf

MAX_NAMES: Final = 8  # operations that the start names


def announce_server(registry: Registry, terms: Terms, port: int) -> None:
    """Tell the address on stderr; by then clients can connect."""
    host = f"[{terms.options.host}]" if ":" in terms.options.host else terms.options.host
    scheme = "http" if terms.certificate is None else "https"
    base = f"{scheme}://{host}:{port}"
    lines = [
        f"{_title(registry, terms)} serves {counted(len(registry), 'operation')}",
        f"  calls     {base}/functions/{{id}}",
        *(() if terms.options.no_console else (f"  console   {base}/",)),
        f"  document  {base}/openapi.json",
        f"  MCP       {base}/mcp",
        f"  health    {base}/healthz and {base}/readyz",
        *((f"  metrics   {base}/metrics",) if find_spec("prometheus_client") else ()),
        *([] if terms.worker is None else [f"  workers   {terms.worker.count} processes"]),
        *(f"  {name:<9} {sentence}" for name, sentence in _access_lines(registry.list(), terms)),
        "Press Ctrl-C to stop.",
    ]
    announce(lines)


def _title(registry: Registry, terms: Terms) -> str:
    title, version = terms.options.title or registry.title, terms.options.app_version or registry.app_version
    return f"{title or 'Enfold'} {version}".strip()


def _access_lines(specs: list[OperationSpec], terms: Terms) -> Iterator[tuple[str, str]]:
    """Who may come in, what is open to everybody, and what nobody may call."""
    tokens = terms.tokens
    if tokens is None:
        yield "tokens", "none: anyone who can reach this address may call"
    else:
        yield "tokens", counted(len(tokens), "identity", "identities") + _from_issuers(tokens)
    is_closed = tokens is not None and not terms.options.allow_anonymous
    free = [spec.id for spec in specs if spec.access_control.public or (not is_closed and spec.access_control.is_open)]
    yield "open", _first_names(free) if free else "nothing without a token" if is_closed else "nothing"
    if terms.options.keep_payloads:
        yield "payloads", "arguments and results of the last 200 calls are kept, for whoever may see the calls"
    guarded = [] if tokens is not None else [spec.id for spec in specs if not spec.access_control.is_open]
    if guarded:
        yield (
            "nobody",
            f"may call {_first_names(guarded)}: they have rules, and nobody has an identity. Give --tokens FILE",
        )


def _from_issuers(tokens: AnyOf) -> str:
    return (
        f", and whoever has a token of {_first_names([each.issuer for each in tokens.issuers])}"
        if tokens.issuers
        else ""
    )


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"
