"""Serve a registry over HTTP as an ASGI app, and call it with the standard library."""

import json
import socket
from http.client import HTTPConnection
from threading import Thread

import uvicorn

from enfold import Identity, OperationRegistry, Tokens
from enfold.surfaces.http import to_http

ops = OperationRegistry("notes")
notes: list[str] = ["buy tea"]


@ops.query(access={"public": True})
async def find(word: str) -> list[str]:
    """Find the notes with a word."""
    return [note for note in notes if word in note]


@ops.mutation(access={"required_scopes": ["notes:write"]})
async def add(text: str) -> int:
    """Add a note, and return how many there are."""
    notes.append(text)
    return len(notes)


app = to_http(ops, tokens=Tokens({"secret": Identity("ann", frozenset({"notes:write"}))}))


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = Thread(target=server.run, args=([listening],))
        thread.start()
        port = listening.getsockname()[1]
        ask(port, "GET", "/functions/notes.find?word=tea")
        ask(port, "POST", "/functions/add", {"text": "bake a cake"})
        ask(port, "POST", "/functions/add", {"text": "bake"}, {"Authorization": "Bearer secret"})
        ask(port, "POST", "/functions/find", {}, {"Enfold-Format": "envelope"})
        server.should_exit = True
        thread.join()


def ask(port: int, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request(method, path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
    connection.close()


if __name__ == "__main__":
    main()
