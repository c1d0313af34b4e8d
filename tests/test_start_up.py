"""No start loads an optional package that it does not need. How long each start takes is measured by `make bench`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

APP = '''
from enfold import OperationRegistry

ops = OperationRegistry()


@ops.query
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y
'''

# Writes down what is loaded at the very end, and runs a command as its own program would.
COMMAND = """
import atexit, sys
atexit.register(lambda: open(loaded, "w").write("\\n".join(sys.modules)))
loaded = sys.argv.pop(1)
if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    from enfold.commands.main import main
    sys.exit(main())
"""

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"x": 1, "y": 2}}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CGI = (("GATEWAY_INTERFACE", "CGI/1.1"), ("PATH_INFO", "/add"), ("SERVER_PROTOCOL", "HTTP/1.1"))


OPTIONAL = {
    "cryptography",
    "httptools",
    "idna",
    "joserfc",
    "nats",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "truststore",
    "uvicorn",
    "uvloop",
    "websockets",
    "yaml",
}


class Start(NamedTuple):
    """The words of one start, what it is given, and what it answers."""

    words: list[str]
    answer: str
    lines: tuple[object, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


STARTS = {
    "import enfold": Start(["-c", "import enfold"], ""),
    "from enfold import OperationRegistry": Start(["-c", "from enfold import OperationRegistry"], ""),
    "a program": Start(["-c", "import app; print(len(app.ops))"], "1"),
    "enfold --help": Start(["--help"], "usage: enfold COMMAND"),
    "enfold list": Start(["list", "app.py"], "add\tquery"),
    "enfold call": Start(["call", "app.py", "add", "x=1", "y=2"], '{"result":3}'),
    "enfold cgi, POST": Start(
        ["cgi", "app.py"],
        '{"result":3}',
        ({"x": 1, "y": 2},),
        (*CGI, ("REQUEST_METHOD", "POST"), ("CONTENT_TYPE", "application/json")),
    ),
    "enfold cgi, GET": Start(
        ["cgi", "app.py"], '{"result":3}', (), (*CGI, ("REQUEST_METHOD", "GET"), ("QUERY_STRING", "x=1&y=2"))
    ),
    "enfold mcp, initialize": Start(["mcp", "app.py"], '"protocolVersion":"2025-06-18"', (INITIALIZE,)),
    "enfold mcp, the first call": Start(
        ["mcp", "app.py"], '"structuredContent":{"result":3}', (INITIALIZE, INITIALIZED, CALL)
    ),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_start_loads_no_optional_package(start: Start, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "loaded", *start.words],
        cwd=tmp_path,
        env=os.environ | dict(start.variables),
        input="".join(f"{json.dumps(line)}\n" for line in start.lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert start.answer in done.stdout
    loaded = {name.partition(".")[0] for name in (tmp_path / "loaded").read_text().split()}
    assert "enfold" in loaded
    assert loaded & OPTIONAL == set()
