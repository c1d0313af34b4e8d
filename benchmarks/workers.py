"""One process beside `--workers 2`: the time of a POST of `mid` over 32 connections, with a client that costs little.

`python -m benchmarks workers` runs the comparison on the two cores that it needs; the program that is served is below.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks import work
from benchmarks.environments import ROOT
from benchmarks.harness import Comparison, Contender, Goal, Sample
from benchmarks.http_load import Post, ask, ask_often
from benchmarks.program import compare_all
from enfold import OperationRegistry

ONE: Final = "one process"
TWO: Final = "--workers 2"
BATCH_US: Final = 400_000.0

ops = OperationRegistry("bench")
ops.query(work.mid)


@contextmanager
def served(*words: str) -> Iterator[int]:
    """The port of a server of the program above."""
    command = [
        sys.executable,
        "-m",
        "enfold",
        "serve",
        "benchmarks.workers:ops",
        "--port",
        "0",
        "--no-access-log",
        *words,
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            where = next(line for line in server.stderr if "/functions/" in line)
            for line in server.stderr:
                if "Ctrl-C" in line:
                    break
            yield int(where.rpartition("/functions/")[0].rpartition(":")[2])
        finally:
            server.terminate()
            server.wait()


def contender(name: str, port: int) -> Contender:
    post = Post(port, "/functions/bench.mid", json.dumps(work.MID_INPUT).encode())

    async def batch(count: int) -> Sample:
        begun = time.perf_counter()
        await ask_often(post, count)
        each = (time.perf_counter() - begun) / count * 1e6
        return Sample(each, each)

    async def answer() -> Any:
        return json.loads(await ask(post))

    return Contender(name, batch, answer, {"result": work.MID_ANSWER})


if __name__ == "__main__":
    with ExitStack() as servers:
        one = contender(ONE, servers.enter_context(served()))
        two = contender(TWO, servers.enter_context(served("--workers", "2")))
        comparison = Comparison(
            "`mid`, wall time", (one, two), (TWO,), (Goal(ONE, TWO, "at least", 1.6),), "wall", BATCH_US
        )
        sys.exit(compare_all("workers", [comparison], int(sys.argv[1])))
