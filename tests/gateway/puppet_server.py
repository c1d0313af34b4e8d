"""An MCP server on the standard streams that does nothing by itself: a test reads its input and decides its output."""

import json
import socket
import sys
import threading
from typing import Any

PORT, ERA = int(sys.argv[1]), sys.argv[2]
CAPABILITIES: dict[str, Any] = {"tools": {}, "logging": {}}
TOOLS = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("pay", "nap", "rest")]
OWN: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": TOOLS, "ttlMs": 0, "cacheScope": "private"},
    "logging/setLevel": {},
    "initialize": {"protocolVersion": ERA, "capabilities": CAPABILITIES, "serverInfo": {"name": "puppet"}},
    "server/discover": {"supportedVersions": [ERA], "capabilities": CAPABILITIES, "resultType": "complete"},
}
del OWN["initialize" if ERA == "2026-07-28" else "server/discover"]

strings = socket.create_connection(("127.0.0.1", PORT))


def obey() -> None:
    for line in strings.makefile():
        sys.stdout.write(line)
        sys.stdout.flush()


threading.Thread(target=obey, daemon=True).start()
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") in OWN:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": OWN[message["method"]]}) + "\n")
        sys.stdout.flush()
    elif message.get("method") in ("server/discover", "initialize"):
        refusal = {"code": -32601, "message": "This is another revision"}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal}) + "\n")
        sys.stdout.flush()
    else:
        strings.sendall(line.encode())
