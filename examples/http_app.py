"""A registry over HTTP: `uvicorn http_app:app` serves it; here a client asks the app directly."""

import asyncio

import httpx2

from enfold import Identity, OperationRegistry
from enfold.surfaces.http import to_http
from enfold.tokens import Tokens

ops = OperationRegistry("notes")
notes: list[str] = ["buy tea"]


@ops.query
async def find(word: str) -> list[str]:
    """Find the notes with a word."""
    return [note for note in notes if word in note]


@ops.mutation(access={"required_scopes": ["notes:write"]})
async def add(text: str) -> int:
    """Write a note, and say how many there are."""
    notes.append(text)
    return len(notes)


app = to_http(ops, tokens=Tokens({"secret": Identity("ann", frozenset({"notes:write"}))}))


async def main() -> None:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [
            await client.get("/functions/notes.find", params={"word": "tea"}),
            await client.post("/functions/add", json={"text": "bake a cake"}),
            await client.post("/functions/add", json={"text": "bake"}, headers={"Authorization": "Bearer secret"}),
            await client.post("/functions/find", json={}, headers={"Enfold-Format": "envelope"}),
        ]
    for answer in answers:
        print(answer.status_code, answer.text)


if __name__ == "__main__":
    asyncio.run(main())
