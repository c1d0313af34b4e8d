"""The command `enfold doctor`: what is installed and what is missing."""

from __future__ import annotations

from importlib.util import find_spec
from platform import python_version
from typing import Final

from enfold.commands.printing import version
from enfold.registry import Registry

__all__ = ["run"]

EXTRAS: Final = {
    "http": "uvicorn",
    "mcp": "httptools",
    "openapi": "yaml",
    "nats": "nats",
    "websocket": "websockets",
    "auth": "cryptography",
    "otel": "opentelemetry",
    "(models)": "pydantic",
}


def run(words: list[str], registry: Registry | None) -> int:
    """Print a line for each extra."""
    del words, registry
    print(f"{version()}, Python {python_version()}")
    for extra, package in EXTRAS.items():
        print(f"  {extra:<10} {package:<14} {'there' if find_spec(package) else 'missing'}")
    return 0
