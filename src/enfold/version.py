"""The installed version of Enfold, and the command that adds an extra to the installation."""

from __future__ import annotations

from functools import cache

import msgspec


@cache
def installed_version() -> str:
    """Return the package version; `0` when run from source without installation."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and few ask

    try:
        return version("enfold")
    except PackageNotFoundError:
        return "0"


class DirectUrl(msgspec.Struct, frozen=True):
    """The origin of a package that was not installed from an index: PEP 610's `direct_url.json`."""

    url: str
    dir_info: dict[str, bool] | None = None
    vcs_info: dict[str, str] | None = None


@cache
def origin() -> DirectUrl | None:
    """Return the origin of the installed package; None for one from a package index."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, and few ask

    try:
        text = distribution("enfold").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    return msgspec.json.decode(text, type=DirectUrl) if text else None


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, without local paths, since callers may see it."""
    found = origin()
    if found is None:
        return f"pip install 'enfold[{extra}]'"
    if found.vcs_info is not None:
        revision = found.vcs_info.get("requested_revision", "")
        return f"pip install 'enfold[{extra}] @ {found.vcs_info['vcs']}+{found.url}{'@' if revision else ''}{revision}'"
    if not found.url.startswith("file:"):
        return f"pip install 'enfold[{extra}] @ {found.url}'"
    if found.dir_info is None:
        return f"pip install './{found.url.rpartition('/')[2]}[{extra}]' (in the directory of that file)"
    editable = "-e " if found.dir_info.get("editable") else ""
    return f"pip install {editable}'.[{extra}]' (in the checkout of Enfold)"
