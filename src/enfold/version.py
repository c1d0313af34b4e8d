"""Which version of Enfold is installed."""

from __future__ import annotations

from functools import cache


@cache
def installed_version() -> str:
    """The version that its package has; `0` where it is run from its source alone."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and few ask

    try:
        return version("enfold")
    except PackageNotFoundError:
        return "0"
