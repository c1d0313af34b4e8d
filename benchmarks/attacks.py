"""Attacks on a running `enfold serve`: its memory and the latency of `/healthz` under each. `python -m benchmarks.attacks`.

Every attack has a server of its own, and some seconds; the table says what a neighbour would have noticed.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

SECONDS: Final = 5.0
SHOP: Final = """
from enfold import Context, OperationRegistry

ops = OperationRegistry("shop")

@ops.query
async def total(items: list[int]) -> int:
    return sum(items)

@ops.query
async def text(context: Context, length: int) -> str:
    context.progress(1)
    return "x" * length
"""
HEAD: Final = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
EVENTS: Final = "application/json, text/event-stream"

Going: TypeAlias = Callable[[], bool]


def main() -> int:
    """Print a line for each attack."""
    print(f"{'attack':<32} {'RSS before':>10} {'RSS most':>9} {'p50':>8} {'p99':>8}  answers")
    for name, (count, attack) in ATTACKS.items():
        print(_line(name, count, attack), flush=True)
    return 0


def _line(name: str, count: int, attack: Callable[[int, Going], None]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "shop.py"
        program.write_text(SHOP)
        # There are tokens, for the attacks with wrong ones; all others need none.
        words = [str(program), "--port", "0", "--token", "right", "--allow-anonymous"]
        command = [sys.executable, "-m", "enfold", "serve", "--no-access-log", *words]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            return _attacked(name, _port(server), server.pid, count, attack)
        finally:
            server.terminate()
            server.wait(40)


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    port = 0
    for line in server.stderr:
        found = re.search(r":(\d+)/healthz", line)
        port = int(found[1]) if found else port
        if line.startswith("Press"):
            break
    threading.Thread(target=server.stderr.read, daemon=True).start()
    return port


def _attacked(name: str, port: int, pid: int, count: int, attack: Callable[[int, Going], None]) -> str:
    end = time.monotonic() + SECONDS
    before, most, times, wrong = _memory(pid), 0.0, [], 0
    attackers = [threading.Thread(target=_attack, args=(attack, port, end), daemon=True) for _ in range(count)]
    for each in attackers:
        each.start()
    while time.monotonic() < end:
        begun = time.monotonic()
        wrong += _health(port) != 200
        times.append((time.monotonic() - begun) * 1000)
        most = max(most, _memory(pid))
        time.sleep(0.02)
    for each in attackers:
        each.join(10)
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    answers = f"{len(times) - wrong} of {len(times)}"
    return f"{name:<32} {before:>7.0f} MB {most:>6.0f} MB {p50:>5.0f} ms {p99:>5.0f} ms  {answers}"


def _attack(attack: Callable[[int, Going], None], port: int, end: float) -> None:
    while time.monotonic() < end:
        with suppress(OSError, http.client.HTTPException):
            attack(port, lambda: time.monotonic() < end)


def _health(port: int) -> int:
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            connection.sendall(HEAD + b"connection: close\r\n\r\n")
            return int(connection.recv(4096)[9:12] or 0)
    except OSError:
        return 0


def _memory(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


# --- attacks: each until it is thrown out, again and again ---------------------------------------------------------


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 5)


def _nothing(port: int, is_going: Going) -> None:
    while is_going():
        time.sleep(0.05)


def _endless_header(port: int, is_going: Going) -> None:
    with _connect(port) as connection:
        connection.sendall(HEAD + b"x: ")
        while is_going():
            connection.sendall(b"a" * 65536)


def _many_headers(port: int, is_going: Going) -> None:
    with _connect(port) as connection:
        connection.sendall(HEAD)
        while is_going():
            connection.sendall(b"x: 1\r\n" * 10_000)


def _pipelining(port: int, is_going: Going) -> None:
    with _connect(port) as connection:
        while is_going():
            connection.sendall((HEAD + b"\r\n") * 1_000)


def _silent_connections(port: int, is_going: Going) -> None:
    connections = [_connect(port) for _ in range(400)]
    while is_going():
        time.sleep(0.05)
    for connection in connections:
        connection.close()


def _wrong_tokens(port: int, is_going: Going, path: str = "/functions/shop.total") -> None:
    """A large head and body with a wrong token, from a client that does not wait for its answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\ncontent-length: 60000\r\nx-large: "
    )
    request = head.encode() + b"a" * 58_000 + b"\r\n\r\n" + b" " * 60_000
    while is_going():
        with _connect(port) as connection:
            connection.sendall(request)


def _waiting_refusals(port: int, is_going: Going) -> None:
    """As many clients as may be connected wait for the refusals of their wrong tokens."""
    head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\nx-large: " + b"a" * 58_000
    connections = [_connect(port) for _ in range(250)]
    for connection in connections:
        connection.sendall(head + b"\r\ncontent-length: 60000\r\n\r\n" + b" " * 60_000)
    while is_going():
        time.sleep(0.05)
    for connection in connections:
        connection.close()


def _post(port: int, path: str, body: bytes, **headers: str) -> tuple[bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", "Accept": EVENTS, **headers})
        answer = connection.getresponse()
        return answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def _message(method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def _session(port: int, revision: str) -> dict[str, str]:
    _, headers = _post(port, "/mcp", _message("initialize", protocolVersion=revision, capabilities={}))
    return {"Mcp-Session-Id": headers["mcp-session-id"]}


def _sessions(port: int, is_going: Going) -> None:
    while is_going():
        _session(port, "2025-11-25")


def _kept_answers(port: int, is_going: Going) -> None:
    call = _message("tools/call", name="shop_text", arguments={"length": 2_000_000}, _meta={"progressToken": 1})
    session = _session(port, "2025-11-25")
    for _ in range(4):
        if is_going():
            _post(port, "/mcp", call, **session)


def _batches(port: int, is_going: Going) -> None:
    session = _session(port, "2025-03-26")
    batch = b"[" + b",".join([_message("tools/list")] * 3_000) + b"]"
    calls = [_message("tools/call", name="shop_text", arguments={"length": 500_000})] * 100
    while is_going():
        _post(port, "/mcp", batch, **session)
        _post(port, "/mcp", b"[" + b",".join(calls) + b"]", **session)


def _faults(port: int, is_going: Going) -> None:
    body = json.dumps({"items": ["x"] * 500_000}).encode()
    while is_going():
        _post(port, "/functions/shop.total", body)


ATTACKS: Final[dict[str, tuple[int, Callable[[int, Going], None]]]] = {
    "none": (0, _nothing),
    "4 endless headers": (4, _endless_header),
    "4 times many headers": (4, _many_headers),
    "4 times pipelining, unread": (4, _pipelining),
    "400 silent connections": (1, _silent_connections),
    "sessions": (2, _sessions),
    "answers kept for resuming": (2, _kept_answers),
    "batches": (1, _batches),
    "500,000 faults": (1, _faults),
    "4 times wrong tokens, 58 KB": (4, _wrong_tokens),
    "4 times the same at /mcp": (4, partial(_wrong_tokens, path="/mcp")),
    "250 refusals that wait": (1, _waiting_refusals),
}


if __name__ == "__main__":
    sys.exit(main())
