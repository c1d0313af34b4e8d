"""The name and version by which clients know an application. This is the only place that decides them."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DEFAULT_NAME: Final = "enfold"
NO_VERSION: Final = "0.0.0"


class Application(msgspec.Struct, frozen=True):
    """An application as clients see it: `serverInfo` over MCP, `info` in the OpenAPI document."""

    name: str
    version: str


def file_name(path: str) -> str:
    """Return the name of a file without its extension; for the main file of a package, the name of the package."""
    folder, file = os.path.split(os.path.abspath(path))
    stem = file.partition(".")[0] or file
    return os.path.basename(folder) if stem in ("__init__", "__main__") else stem


def module_name(module: Mapping[str, Any]) -> str:
    """Return the name of the file that a module (its globals) was loaded from; "" if it has none."""
    path = module.get("__file__")
    return file_name(path) if isinstance(path, str) else ""


def module_version(module: Mapping[str, Any]) -> str:
    """Return the version of the distribution that a module (its globals) comes from; "" if there is none.

    A script outside of any package is not looked up: reading the installed distributions takes longer than it takes to start.
    """
    package = _top_package(module)
    return _distribution_version(package) if package else ""


def _top_package(module: Mapping[str, Any]) -> str:
    """Return the top-level package of a module, also for a file in a package that was loaded by its path."""
    package = str(module.get("__package__") or "").partition(".")[0]
    path = module.get("__file__")
    if package or not isinstance(path, str):
        return package
    folder, file = os.path.split(os.path.abspath(path))
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
    is_installed = os.path.basename(folder) in ("site-packages", "dist-packages")
    return package or (file.partition(".")[0] if is_installed else "")


def _distribution_version(package: str) -> str:
    # Slow to import, and only asked for by applications that are part of a package.
    from importlib.metadata import PackageNotFoundError, distributions, version

    try:
        return version(package)  # usually both have one name
    except PackageNotFoundError:
        return next((found.version for found in distributions() if _provides(found, package)), "")


def _provides(distribution: Distribution, package: str) -> bool:
    """Whether a package belongs to a distribution. The texts are searched, because parsing all of them takes too long."""
    record = "\n" + (distribution.read_text("RECORD") or "")
    named = (distribution.read_text("top_level.txt") or "").split()
    return package in named or f"\n{package}/" in record or f"\n{package}.py," in record
