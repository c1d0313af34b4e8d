"""The application: `App` and its settings; its server and worker processes; the registry of a configuration file."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enfold.app.app import App, HTTPSettings, Limits, MCPSettings, ServerSettings

__all__ = ["App", "HTTPSettings", "Limits", "MCPSettings", "ServerSettings"]


def __getattr__(name: str) -> Any:
    # With their first use: commands that serve nothing read configurations without loading every surface.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from enfold.app import app

    return getattr(app, name)
