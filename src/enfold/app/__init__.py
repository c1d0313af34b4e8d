"""The application: `App` and its settings; its server and worker processes; the registry of a configuration file."""

# Imports inside functions: source kinds that no file uses, and servers that are not started, are not loaded, and
# their packages need not be there.

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enfold.app.app import App, HTTPSettings, Limits, MCPSettings, ServerSettings

__all__ = ["App", "HTTPSettings", "Limits", "MCPSettings", "ServerSettings"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from enfold.app import app

    return getattr(app, name)
