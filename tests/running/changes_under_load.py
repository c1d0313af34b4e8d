"""A server whose configuration is changed again and again under load: what of the unchanged sources fails, and how soon news come.

`python -m tests.running.changes_under_load --changes 100` prints the figures; the tests run a few changes.
"""

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import msgspec

SOON = 2.0  # seconds after which a new source is to be callable
LITTLE = Path(__file__).parent.parent / "sources" / "mcp" / "little_server.py"
SHOP = "def price(name: str = '') -> int:\n    return len(name)\n"


class Figures(msgspec.Struct):
    """What was seen."""

    changes: int = 0
    broken_files: int = 0
    calls: int = 0
    failures: list[str] = []
    seconds_until_callable: list[float] = []
    list_changes: int = 0
    exit_code: int | None = None
    told: list[str] = []

    @property
    def is_right(self) -> bool:
        """Whether nothing of what stays has failed, and what is new came soon."""
        is_soon = max(self.seconds_until_callable, default=0.0) <= SOON
        return not self.failures and self.exit_code == 0 and is_soon

    def __str__(self) -> str:
        slowest = max(self.seconds_until_callable, default=0.0)
        middle = statistics.median(self.seconds_until_callable or [0.0])
        return (
            f"{self.changes} changes, {self.broken_files} broken files; {self.calls} calls of unchanged sources, "
            f"{len(self.failures)} failed {dict(Counter(self.failures))}; a new source callable after {middle:.2f} s "
            f"(slowest {slowest:.2f} s); {self.list_changes} list_changed heard; exit {self.exit_code}"
        )


def run(changes: int, clients: int = 4) -> Figures:
    """Change the configuration so many times under the load of so many clients."""
    figures = Figures(failures=[], seconds_until_callable=[], told=[])
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shop.py").write_text(SHOP)
        config = folder / "enfold.toml"
        config.write_text(_text({}))
        command = [sys.executable, "-m", "enfold", "serve", "enfold.toml", "--port", "0", "--no-access-log"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
            assert server.stderr is not None
            try:
                port = _port(server.stderr)
                threading.Thread(target=lambda: figures.told.extend(server.stderr or ()), daemon=True).start()
                _run_load(server, port, config, changes, clients, figures)
                server.terminate()
                figures.exit_code = server.wait(60)
            finally:
                server.kill()
    return figures


def _run_load(
    server: subprocess.Popen[str], port: int, config: Path, changes: int, clients: int, figures: Figures
) -> None:
    over = threading.Event()
    callers = [threading.Thread(target=_call, args=(port, number, over, figures)) for number in range(clients)]
    listener = threading.Thread(target=_listen, args=(port, over, figures))
    for thread in (*callers, listener):
        thread.start()
    try:
        for number in range(changes):
            _change(server, port, config, number, figures)
    finally:
        over.set()
        for thread in (*callers, listener):
            thread.join()


def _change(server: subprocess.Popen[str], port: int, config: Path, number: int, figures: Figures) -> None:
    """One change: another source comes, the one before goes, one is changed; every fifth file is broken first."""
    if number % 5 == 4:
        _write(config, "[sources.same]\ncomand = 1\n")
        figures.broken_files += 1
        _until(lambda: sum("stays active" in line for line in figures.told) >= figures.broken_files)
    begun = time.monotonic()
    _write(config, _text({f"new{number}": "", "changed": f"timeout = {number + 1}\n"}))
    if number % 3 == 0:
        server.send_signal(signal.SIGHUP)
    _until(lambda: _answer(port, f"new{number}.price")[0] == 200)
    figures.seconds_until_callable.append(time.monotonic() - begun)
    figures.changes += 1


def _text(more: dict[str, str]) -> str:
    """A file with two sources that never change, and some that do."""
    same = f"[sources.same]\ncommand = {json.dumps([sys.executable, str(LITTLE)])}\n"
    own = '[sources.shop]\nfunctions = "shop.py"\nnamespace = "shop"\n'
    others = [f'[sources.{name}]\nfunctions = "shop.py"\nnamespace = "{name}"\n{lines}' for name, lines in more.items()]
    return "".join([same, own, *others])


def _write(config: Path, text: str) -> None:
    new = config.with_suffix(".new")
    new.write_text(text)
    new.replace(config)


def _call(port: int, number: int, over: threading.Event, figures: Figures) -> None:
    """Call what never changes until it is over; every answer that is not right is written down."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    wanted = [("same.add", {"x": number, "y": 1}, {"sum": number + 1}), ("shop.price", {"name": "tea"}, 3)]
    while not over.is_set():
        for operation, given, expected in wanted:
            status, answer = _answer(port, operation, given, connection)
            figures.calls += 1
            if (status, answer) != (200, {"result": expected}):
                figures.failures.append(f"{operation} {status} {str(answer)[:100]}")
                connection.close()
    connection.close()


def _answer(port: int, operation: str, given: Any = None, connection: HTTPConnection | None = None) -> tuple[int, Any]:
    client = connection or HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        headers = {"Content-Type": "application/json"}
        client.request("POST", f"/functions/{operation}", json.dumps(given or {}), headers)
        reply = client.getresponse()
        return reply.status, json.loads(reply.read())
    except (OSError, HTTPException, ValueError) as error:
        return 0, str(error)
    finally:
        if connection is None:
            client.close()


def _listen(port: int, over: threading.Event, figures: Figures) -> None:
    """An MCP client with a session, which counts the notifications that the tools have changed."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=2)) as client:
        _count_list_changes(client, over, figures)


def _count_list_changes(client: HTTPConnection, over: threading.Event, figures: Figures) -> None:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    client.request("POST", "/mcp", json.dumps(message), headers)
    reply = client.getresponse()
    reply.read()
    headers["Mcp-Session-Id"] = reply.headers["Mcp-Session-Id"]
    client.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}), headers)
    client.getresponse().read()
    client.request("GET", "/mcp", headers=headers)
    with client.getresponse() as stream, suppress(OSError):  # of a stream on which nothing comes for two seconds
        while not over.is_set():
            figures.list_changes += b"notifications/tools/list_changed" in stream.readline()


def _port(lines: IO[str]) -> int:
    for line in lines:
        found = re.search(r":(\d+)/functions/", line)
        if found:
            return int(found[1])
    raise AssertionError("the server did not start")


def _until(is_true: Any) -> None:
    ends_at = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < ends_at, "it did not happen within 30 seconds"
        time.sleep(0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    seen = run(options.changes, options.clients)
    print(seen)  # noqa: T201  # what the script is for
    sys.exit(0 if seen.is_right else 1)
