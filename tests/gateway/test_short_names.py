"""A short name is not given to another server while a source has never been read."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx2
import pytest
from tests.gateway.conftest import serve

from enfold import CallError
from enfold.app.reconciler import open_config
from enfold.surfaces.http import to_http

SERVER = str(Path(__file__).parent / "counter_server.py")


async def test_short_names_are_unavailable_until_every_source_has_been_read_once(tmp_path: Path) -> None:
    """The owner of `add` never came up: its name must not run the tool of another."""
    config, owner = tmp_path / "mcp.json", tmp_path / "owner.py"
    other = {"command": sys.executable, "args": [SERVER, "plain"]}
    late = {"command": sys.executable, "args": [str(owner)]}
    config.write_text(json.dumps({"mcpServers": {"other": other, "owner": late}}))
    async with open_config(config, {}) as registry:
        app = to_http(registry)
        async with serve(app, app.stop) as url, httpx2.AsyncClient(timeout=30) as client:
            refused = await client.post(f"{url}/functions/add", json={})
            assert (refused.status_code, "use the full id" in refused.text) == (503, True)
            with pytest.raises(CallError) as raised:
                registry.find("read")
            assert (raised.value.code, raised.value.retryable) == ("UNAVAILABLE", True)
            assert (await client.post(f"{url}/functions/other.add", json={})).status_code == 200

            come = asyncio.Event()
            stop = registry.services.sources.watch(
                lambda *_: come.set() if registry.services.sources["owner"].state == "up" else None
            )
            owner.write_text(
                f"import runpy, sys\nsys.argv = ['x', 'plain']\nrunpy.run_path({SERVER!r}, run_name='__main__')"
            )
            await asyncio.wait_for(come.wait(), 60)
            stop()
            several = await client.post(f"{url}/functions/add", json={})
            assert (several.status_code, "several" in several.text) == (404, True)
            assert (await client.post(f"{url}/functions/nothing", json={})).status_code == 404


async def test_without_the_source_that_was_missing_short_names_work(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    other = {"command": sys.executable, "args": [SERVER, "plain"]}
    config.write_text(json.dumps({"mcpServers": {"other": other}}))
    async with open_config(config, {}) as registry:
        assert registry.find("add").id == "other.add"
