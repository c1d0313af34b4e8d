"""The load generator, a process of its own: `python -m benchmarks.scale.load JOB` sends a job's calls and prints their outcomes.

Without a rate it keeps so many calls in flight; with a rate it starts calls at that rate whether or not others have ended.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sys
import time
from typing import Final, Literal

import msgspec

Kind = Literal["query", "mutation", "stream", "task", "slow", "idle"]

OK: Final = "OK"
NO_ANSWER: Final = "no answer"  # a connection that was refused or broke
TOO_LATE: Final = "too late"  # for the client
FRESH: Final = 1.0  # seconds that a connection may be idle and be used again
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CODE: Final = re.compile(rb"\r\nenfold-code: *([A-Z_]+)", re.IGNORECASE)
_HEADERS: Final[dict[Kind, str]] = {
    "stream": "Accept: application/x-ndjson\r\n",
    "idle": "Accept: application/x-ndjson\r\n",
    "task": "Prefer: respond-async, wait=30\r\n",
}


class Job(msgspec.Struct, frozen=True):
    kind: Kind
    ports: list[int]  # of the edges, which take turns
    size: int  # bytes of the text that is sent, and comes back
    seconds: float
    in_flight: int = 16
    rate: float = 0.0
    timeout: float = 10.0


class CallOutcome(msgspec.Struct, frozen=True, array_like=True):
    started: float  # by the monotonic clock, which all processes of a machine share
    seconds: float
    code: str


class _Connection:
    """A connection to an edge, for one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.used_at = time.monotonic()

    def close(self) -> None:
        self._writer.close()

    async def send(self, request: bytes) -> str:
        """Send a request, read the whole answer, and return its code."""
        self.used_at = time.monotonic()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None:
            is_complete = await self._read_chunks()
        else:
            await self._reader.readexactly(int(length[1]))
            is_complete = True
        if head.startswith(b"HTTP/1.1 200"):
            return OK if is_complete else "DATA_LOSS"
        code = _CODE.search(head)
        return head[9:12].decode() if code is None else code[1].decode()

    async def _read_chunks(self) -> bool:
        """Read a chunked body; whether the stream in it came to its end."""
        last = b""
        while size := int(await self._reader.readline(), 16):
            last = (last + await self._reader.readexactly(size + 2))[-100:]
        await self._reader.readline()
        return b'"complete":true' in last


class Load:
    """Sends the calls of a job."""

    def __init__(self, job: Job) -> None:
        self.outcomes: list[CallOutcome] = []
        self._job = job
        self._idle: dict[int, list[_Connection]] = {port: [] for port in job.ports}
        self._ports = itertools.cycle(job.ports)
        self._body = msgspec.json.encode({"text": "x" * job.size})
        self._keys = itertools.count()

    async def run(self) -> None:
        ends_at = time.monotonic() + self._job.seconds
        if self._job.rate:
            await self._at_rate(ends_at)
        else:
            await asyncio.gather(*(self._one_after_another(ends_at) for _ in range(self._job.in_flight)))
        for connection in itertools.chain.from_iterable(self._idle.values()):
            connection.close()

    async def _one_after_another(self, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            await self._call()

    async def _at_rate(self, ends_at: float) -> None:
        began, started = time.monotonic(), 0
        async with asyncio.TaskGroup() as calls:
            while (now := time.monotonic()) < ends_at:
                while started < (now - began) * self._job.rate:
                    calls.create_task(self._call())
                    started += 1
                await asyncio.sleep(0.005)

    async def _call(self) -> None:
        port, started = next(self._ports), time.monotonic()
        try:
            async with asyncio.timeout(self._job.timeout):
                code = await self._exchange(port)
        except TimeoutError:
            code = TOO_LATE
        except (OSError, EOFError, ValueError):
            code = NO_ANSWER
            await asyncio.sleep(0.01)
        self.outcomes.append(CallOutcome(started, time.monotonic() - started, code))

    async def _exchange(self, port: int) -> str:
        connection = self._pooled(port) or _Connection(*await asyncio.open_connection("127.0.0.1", port))
        try:
            code = await connection.send(self._request(port))
        except BaseException:
            connection.close()
            raise
        self._idle[port].append(connection)
        return code

    def _pooled(self, port: int) -> _Connection | None:
        """An open connection; one that was idle for long may be closed by the server at this moment."""
        idle = self._idle[port]
        while idle:
            connection = idle.pop()
            if time.monotonic() - connection.used_at < FRESH:
                return connection
            connection.close()
        return None

    def _request(self, port: int) -> bytes:
        kind = self._job.kind
        headers = _HEADERS.get(kind, "")
        if kind == "mutation":
            headers = f"Idempotency-Key: {os.getpid()}-{next(self._keys)}\r\n"
        return (
            f"POST /functions/scale.{kind} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(self._body)}\r\n\r\n"
        ).encode() + self._body


def main(job: Job) -> None:
    load = Load(job)
    asyncio.run(load.run())
    sys.stdout.buffer.write(msgspec.json.encode(load.outcomes))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Job))
