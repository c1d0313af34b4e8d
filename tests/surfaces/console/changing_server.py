"""An MCP server with a tool, a resource and a prompt, whose tool says what a file says: `python changing_server.py FILE`."""

import sys
from pathlib import Path

from fastmcp import FastMCP

server = FastMCP("library")


@server.tool(description=Path(sys.argv[1]).read_text())
def lend(title: str) -> str:
    return title


@server.resource("library://catalogue")
def catalogue() -> str:
    """All books."""
    return "a, b, c"


@server.prompt
def recommend(taste: str) -> str:
    """Recommend a book."""
    return f"Recommend a book to someone who likes {taste}."


if __name__ == "__main__":
    server.run(show_banner=False)
