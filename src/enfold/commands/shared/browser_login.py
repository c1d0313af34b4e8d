"""How the user of a command logs in where a server asks for it: in their browser; the tokens are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enfold.log import printable

if TYPE_CHECKING:
    from enfold.config import Logins

LOGIN_PATIENCE: Final = 330.0  # seconds that a command waits for a user who has to log in


def logins(patience: float = 0.0) -> Logins:
    """Logins that open the browser, and keep their tokens below the user's home."""
    from enfold.config import Logins

    home = os.environ.get("HOME") or os.environ.get("USERPROFILE")
    state = os.environ.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    return Logins(_open_browser, str(Path(state) / "enfold" / "logins") if state else None, patience)


async def _open_browser(url: str) -> None:
    from asyncio import to_thread
    from webbrowser import open_new_tab

    print(
        f"An MCP server asks you to log in. Where no browser opens, go to:\n  {printable(url)}",
        file=sys.stderr,
        flush=True,
    )
    # Where there is no screen, a browser in the terminal would take it over.
    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        await to_thread(open_new_tab, url)
