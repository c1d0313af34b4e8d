"""A custom surface: calls and results as lines of JSON on a TCP connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from enfold import CallError, Context, Identity, OperationRegistry, OperationType
from enfold.formats import Format, find_format
from enfold.runtime.registry import Registry
from enfold.surfaces.responses import encode_failure, encode_result

ops = OperationRegistry("shop")


@ops.query
def add(x: int, y: int) -> int:
    return x + y


@ops.subscription
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


async def to_lines(
    registry: Registry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: Identity | None = None
) -> None:
    """Answer each line of a connection until it closes."""
    guarded = registry.guarded()  # the view that checks the caller's access
    try:
        while line := await reader.readline():  # a line is limited to 64 KiB
            async for answer in _answers(guarded, line, Context(identity=identity)):
                writer.write(answer + b"\n")
                await writer.drain()  # a client that reads slowly slows the handler down
    except (ConnectionError, ValueError):
        pass  # the client has gone, or its line was too long to be read
    finally:
        writer.close()


async def _answers(registry: Registry, line: bytes, context: Context) -> AsyncIterator[bytes]:
    """Parse and run one call. Parsing is inside the error handling, so that every failure gets a code and never a traceback."""
    written, operation = find_format("envelope"), ""
    try:
        operation, given, written = _read(line)
        spec = registry.find(operation)
        if spec.type is OperationType.SUBSCRIPTION:
            async for envelope in registry.subscribe(spec.id, given, context):
                yield encode_result(written.write, envelope, spec)
        else:
            yield encode_result(written.write, await registry.execute(spec.id, given, context), spec)
    except CallError as error:
        yield encode_failure(written.write_error(error, operation))


def _read(line: bytes) -> tuple[str, dict[str, Any], Format]:
    try:
        call = json.loads(line)
        return str(call["call"]), dict(call.get("input", {})), find_format(call.get("format", "envelope"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CallError("VALIDATION_ERROR", 'A line is {"call": id, "input": {…}, "format": name}') from None


async def main() -> None:
    server = await asyncio.start_server(lambda *streams: to_lines(ops, *streams), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for line in (
        '{"call": "shop.add", "input": {"x": 1, "y": 2}, "format": "result"}',
        '{"call": "shop.none"}',
        "hello",
    ):
        writer.write(line.encode() + b"\n")
        print((await reader.readline()).decode().strip())
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
