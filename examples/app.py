"""Serve a registry with `App`: HTTP, MCP and the console behind one authentication."""

import json
import socket
from http.client import HTTPConnection
from threading import Thread

import uvicorn

from enfold import App, Identity, OperationRegistry, Tokens
from enfold.app import Limits

ops = OperationRegistry("shop")


@ops.on_start
def connect() -> None:
    print("connected")


@ops.on_stop
def disconnect() -> None:
    print("disconnected")


@ops.query
def price(item: str) -> float:
    """Say what something costs."""
    return {"tea": 3.5}.get(item, 4.0)


app = App(ops, tokens=Tokens({"secret": Identity("ann")}), limits=Limits(calls_at_once=100))


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app.http(), log_level="warning"))
        thread = Thread(target=server.run, args=([listening],))
        thread.start()
        port = listening.getsockname()[1]
        ask(port, "/functions/shop.price", {"item": "tea"})
        ask(port, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"})
        server.should_exit = True
        thread.join()


def ask(port: int, path: str, body: object) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json", "Accept": "*/*"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
    connection.close()


if __name__ == "__main__":
    main()
