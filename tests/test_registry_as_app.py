"""A registry is an ASGI app: `uvicorn app:ops` serves it without anything else."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.waiting import Said

from enfold import OperationRegistry

PROGRAM = """
from typing import Annotated

from enfold import Depends, OperationRegistry

ops = OperationRegistry("shop")


async def pool():
    print("pool opened", flush=True)
    yield 3
    print("pool closed", flush=True)


@ops.query
async def stock(pool: Annotated[int, Depends(pool, scope="app")]) -> int:
    return pool


ops.on_start(lambda: print("started", flush=True))
ops.on_stop(lambda: print("stopped", flush=True))
part = ops.only(lambda spec: False)
"""


@contextmanager
def uvicorn(folder: Path, target: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    (folder / "app.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "uvicorn", target, "--port", "0", "--no-access-log"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            said = Said(process.stderr).until("Uvicorn running")
            yield process, re.findall(r"http://[\d.:]+", said)[-1]
        finally:
            process.kill()


def call(base: str, path: str, value: Any) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with urlopen(Request(base + path, json.dumps(value).encode(), headers), timeout=30) as reply:  # noqa: S310
        return json.load(reply)


def test_uvicorn_serves_a_registry_with_http_and_mcp_and_its_lifespan(tmp_path: Path) -> None:
    with uvicorn(tmp_path, "app:ops") as (process, base):
        assert call(base, "/functions/shop.stock", {}) == {"result": 3}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        assert call(base, "/mcp", message)["result"]["serverInfo"]["name"] == "shop"
        with urlopen(f"{base}/openapi.json", timeout=30) as document:  # noqa: S310
            assert "/functions/shop.stock" in json.load(document)["paths"]
        process.terminate()
        out, _ = process.communicate(timeout=30)
    assert out.decode().split("\n")[:4] == ["started", "pool opened", "stopped", "pool closed"]


def test_uvicorn_serves_a_view(tmp_path: Path) -> None:
    with uvicorn(tmp_path, "app:part") as (_, base), urlopen(f"{base}/openapi.json", timeout=30) as document:  # noqa: S310
        assert "/functions/shop.stock" not in json.load(document)["paths"]


def test_a_registry_loads_no_surface_before_it_is_served() -> None:
    program = "import sys; from enfold import OperationRegistry; assert callable(OperationRegistry()); print([name for name in sys.modules if name.startswith(('enfold.surfaces', 'enfold.app'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_registry_is_not_taken_for_a_function() -> None:
    ops = OperationRegistry("shop")
    with pytest.raises(TypeError, match="register all of its operations with register_all"):
        ops.register(OperationRegistry("other"))
