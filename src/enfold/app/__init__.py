"""Configuration files, `enfold.toml` and the `mcpServers` JSON of editors, and the registry of all their sources."""

# Imports inside functions: a kind of source that no file names is not loaded, and its packages need not be there.

from enfold.app.file import Config, Logins, SourceEntry, read_config
from enfold.app.reconciler import ConfiguredRegistry, Difference, open_config, open_sources
from enfold.app.reload import InForce, Rereading, reread

__all__ = [
    "Config",
    "ConfiguredRegistry",
    "Difference",
    "InForce",
    "Logins",
    "Rereading",
    "SourceEntry",
    "open_config",
    "open_sources",
    "read_config",
    "reread",
]
