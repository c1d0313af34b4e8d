"""Use a protected MCP server as a source: the user logs in once in the browser, and every call sends the token."""

import asyncio
from pathlib import Path
from runpy import run_path
from urllib.request import urlopen

from enfold import CallError, OperationRegistry
from enfold.sources.mcp import from_mcp
from enfold.sources.mcp.oauth import MemoryStore, UserLogin


async def open_url(url: str) -> None:
    """Open the login page. A real program calls `webbrowser.open`; this one only fetches the page."""
    print("asked to log in at", url.partition("?")[0].rpartition("/")[2])
    await asyncio.to_thread(urlopen, url)


async def main(url: str) -> None:
    auth = UserLogin(open_url=open_url, store=MemoryStore())  # FileStore("~/…") keeps it for the next start
    for _ in range(2):
        async with from_mcp(url, namespace="vault", auth=auth) as operations:
            ops = OperationRegistry()
            ops.register_all(operations)
            print((await ops.execute("vault.treasure", {})).data)

    try:
        async with from_mcp(url, namespace="vault"):
            pass
    except CallError as error:
        print(f"{error.code}: {error.message}")


if __name__ == "__main__":
    town = run_path(str(Path(__file__).parent / "login" / "town.py"))  # something to try it with
    with town["open_town"]() as url:
        asyncio.run(main(url))
