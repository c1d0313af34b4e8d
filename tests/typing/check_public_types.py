"""Read by mypy only: what the public names promise to a type checker."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, assert_type

from enfold import Context, OperationRegistry, ResponseEnvelope, is_response_envelope, local_envelope, unwrap
from enfold.operations import Operation

ops = OperationRegistry("t")


@ops.query
def add(x: int, y: int) -> int:
    return x + y


@ops.subscription(resumable=True)
async def count(to: int) -> AsyncIterator[int]:
    yield to


class Point:
    x: int


async def promises(context: Context) -> None:
    assert_type(add(1, 2), int)  # a decorated function stays what it was
    assert_type(count(1), AsyncIterator[int])
    assert_type(await ops.execute("t.add", {}, context), ResponseEnvelope[Any])
    assert_type(ops.subscribe("t.count", {}), AsyncGenerator[ResponseEnvelope[Any], None])
    assert_type(local_envelope(3, "a"), ResponseEnvelope[int])
    assert_type(unwrap(local_envelope("x", "a")), str)
    assert_type(local_envelope({}, "a").as_(Point), Point)
    assert_type(ops.get("t.add"), Operation)


def narrows(value: object) -> None:
    if is_response_envelope(value):
        assert_type(value, ResponseEnvelope[Any] | Mapping[str, Any])
        unwrap(value)
