"""The calls that every surface answers alike, and what each gives."""

from typing import Any

import msgspec
from tests.parity_app import ops

from enfold import CallError, Identity, testing
from enfold.operations import OperationSpec, OperationType

ANN = Identity("ann", frozenset({"parity"}))


class Call(msgspec.Struct, frozen=True):
    """A call that is made on every surface."""

    operation: str
    input: dict[str, Any] = {}
    is_ann: bool = False  # made with an identity that has the scope

    @property
    def spec(self) -> OperationSpec | None:
        return ops.get_spec(self.operation) if self.operation in ops else None

    @property
    def is_stream(self) -> bool:
        return self.spec is not None and self.spec.type is OperationType.SUBSCRIPTION


class Outcome(msgspec.Struct, frozen=True):
    """What came of it: data, which for a stream is the list of its items, or the code of the failure."""

    data: Any = None
    code: str | None = None


CALLS: dict[str, tuple[Call, Outcome]] = {
    "good": (Call("parity.add", {"x": 7, "y": 3}), Outcome(10)),
    "text that stands for a number": (Call("parity.add", {"x": "7", "y": 3}), Outcome(10)),
    "arrays and objects": (
        Call("parity.total", {"prices": [1.5, 2], "fees": {"a": 0.25}}),
        Outcome({"prices": 3.5, "fees": 0.25}),
    ),
    "bad": (Call("parity.add", {"x": "seven", "y": 3}), Outcome(code="VALIDATION_ERROR")),
    "missing": (Call("parity.add", {"x": 7}), Outcome(code="VALIDATION_ERROR")),
    "unknown argument": (Call("parity.add", {"x": 7, "y": 3, "z": 1}), Outcome(code="VALIDATION_ERROR")),
    "unknown operation": (Call("parity.none"), Outcome(code="OPERATION_NOT_FOUND")),
    "denied": (Call("parity.guarded"), Outcome(code="ACCESS_DENIED")),
    "allowed": (Call("parity.guarded", is_ann=True), Outcome("ann")),
    "failing": (Call("parity.divide", {"x": 1, "y": 0}), Outcome(code="EXECUTION_ERROR")),
    "failing with a code of its own": (Call("parity.sell", {"left": 0}), Outcome(code="SOLD_OUT")),
    "slow": (Call("parity.slow"), Outcome(code="TIMEOUT")),
    "unicode": (Call("parity.echo", {"text": 'grün ☃ 𝄞 \u2028 \x00 \\ "'}), Outcome('grün ☃ 𝄞 \u2028 \x00 \\ "')),
    "empty text": (Call("parity.echo", {"text": ""}), Outcome("")),
    "large": (Call("parity.echo", {"text": "x" * 1_000_000}), Outcome("x" * 1_000_000)),
    "several values": (Call("parity.divide", {"x": 7, "y": 2}), Outcome([3, 1])),
    "no value": (Call("parity.forget"), Outcome(None)),
    "a None that is a value": (Call("parity.maybe"), Outcome(None)),
    "streaming": (Call("parity.count", {"to": 3}), Outcome([0, 1, 2])),
    "an empty stream": (Call("parity.count", {"to": 0}), Outcome([])),
    "a stream that fails": (Call("parity.count", {"to": 3, "fail_at": 2}), Outcome(code="DATA_LOSS")),
    "a stream that fails at once": (Call("parity.count", {"to": "three"}), Outcome(code="VALIDATION_ERROR")),
}


async def outcome(client: testing.Client, call: Call, format: str) -> Outcome:
    asked: dict[str, Any] = {"identity": ANN if call.is_ann else None, "format": format}
    try:
        if call.is_stream:
            return Outcome([item.data async for item in client.subscribe(call.operation, call.input, **asked)])
        return Outcome((await client.call(call.operation, call.input, **asked)).data)
    except CallError as error:
        return Outcome(code=error.code)
