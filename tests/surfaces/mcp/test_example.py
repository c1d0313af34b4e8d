"""What the page about the server shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "mcp_server.py"


def converse(*requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of some requests to the example, in the order of the requests."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}})
        for number, (method, params) in enumerate(requests)
    ]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True
    )
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda answer: int(answer["id"]))
    return [answer["result"] for answer in answers]


def test_the_example_is_what_the_page_says() -> None:
    tools, stock, question, read, written, proposed = converse(
        ("tools/list", {}),
        ("tools/call", {"name": "shop_stock", "arguments": {"fruit": "apple"}}),
        ("tools/call", {"name": "shop_clear"}),
        ("resources/read", {"uri": "shop://fruit/apple"}),
        ("prompts/get", {"name": "shop_recipe", "arguments": {"name": "apple"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "shop_recipe"}, "argument": {"name": "name", "value": "pe"}},
        ),
    )
    assert [tool["name"] for tool in tools["tools"]] == ["shop_stock", "shop_clear"]
    assert stock["structuredContent"] == {"result": 3}
    assert question["inputRequests"]["question1"]["params"]["message"] == "Throw all fruit away?"
    assert json.loads(read["contents"][0]["text"]) == {"name": "apple", "stock": 3}
    assert written["messages"][0]["content"]["text"] == "Write a recipe for apple cake."
    assert proposed["completion"]["values"] == ["pear"]
