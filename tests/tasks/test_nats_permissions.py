"""The permissions that `enfold nats` makes let a worker of durable operations offer the verbs of tasks."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.calls.networks import Server, nats_server_program

from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport

APP = """
from enfold import OperationRegistry
ops = OperationRegistry("bakery")

@ops.mutation(durable=True)
async def bake(loaves: int) -> int: return loaves
"""
USERS = [
    {"id": "worker", "serves": ["bakery"], "password": "w"},
    {"id": "ann", "password": "a"},
    {"id": "shop", "serves": ["shop"], "password": "s"},
    {"id": "operator", "operator": True, "password": "o"},
]


async def test_a_task_is_ordered_over_calls_from_a_worker_with_just_these_rights(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "users.json").write_text(json.dumps(USERS))
    made = enfold(tmp_path, "nats", "permissions", "app.py", "--users", "users.json")
    assert made.returncode == 0, made.stderr
    blocks = made.stdout.split("user:")
    assert ["enfold.tasks.start" in block.partition("subscribe")[2] for block in blocks[1:]] == [
        True,
        False,
        False,
        False,
    ]
    server = Server(nats_server_program(), tmp_path, f'jetstream {{ store_dir: "{tmp_path}/js" }}\n{made.stdout}')
    server.wait_until_ready()
    place = server.url.removeprefix("nats://")
    assert enfold(tmp_path, "nats", "init", f"nats://operator:o@{place}").returncode == 0
    command = [sys.executable, "-m", "enfold", "work", "app.py", "--nats", f"nats://worker:w@{place}"]
    worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        assert worker.stderr is not None
        said = (await asyncio.wait_for(worker.stderr.readline(), 60)).decode()
        assert "Enfold serves" in said, said
        async with NATSTransport(server.url, user="ann", password="a") as transport:
            calls = PendingRequestMap(transport)
            ordered = await calls.call("enfold.tasks.start", {"operation": "bakery.bake", "input": {"loaves": 3}})
            assert ordered.data["operation"] == "bakery.bake"
            await calls.close()
    finally:
        worker.terminate()
        await worker.wait()
        server.close()


def enfold(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
