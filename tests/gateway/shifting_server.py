"""A server on the standard streams whose definitions are those of a file: `python shifting_server.py tools.json`.

A tool `reload` says that the list has changed, `die` ends the process.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    own: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("reload", "die")]
    for line in sys.stdin:
        message = json.loads(line)
        method, own_id, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "initialize":
            info = {"name": "shifting", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            write(id=own_id, result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})
        elif method == "tools/list":
            write(id=own_id, result={"tools": [*own, *json.loads(Path(sys.argv[1]).read_text())]})
        elif method == "tools/call":
            if params["name"] == "die":
                sys.exit(3)
            if params["name"] == "reload":
                write(method="notifications/tools/list_changed")
            write(id=own_id, result={"content": [{"type": "text", "text": "done"}]})
        elif own_id is not None:
            write(id=own_id, error={"code": -32601, "message": "There is no such method"})


def write(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
