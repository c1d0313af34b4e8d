"""Serve agents: search instead of a long tool list, and results with only the fields they ask for."""

import asyncio
from typing import TypedDict

from enfold import Context, OperationRegistry
from enfold.search.finder import Finder

ops = OperationRegistry("hub")


class User(TypedDict):
    login: str
    url: str


class Issue(TypedDict):
    number: int
    title: str
    body: str
    user: User


@ops.query
async def list_issues(repository: str, state: str = "open") -> list[Issue]:
    """List the issues of a repository. The newest come first."""
    return [{"number": 7, "title": "Too slow", "body": "…", "user": {"login": "ann", "url": "https://example.com"}}]


@ops.mutation
async def close_issue(repository: str, number: int) -> None:
    """Close an issue."""


async def main() -> None:
    for found in Finder(ops).find("list issues", identity=None, limit=1):
        print(f"{found.id}{found.signature}")
    context = Context()
    context.select = "number,user/login"
    envelope = await ops.execute("hub.list_issues", {"repository": "tea"}, context)
    print(envelope.data, envelope.warnings[0].count, "left out")


if __name__ == "__main__":
    asyncio.run(main())
