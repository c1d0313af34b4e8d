"""The payload log: arguments and results of calls, if the operator keeps them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from enfold.errors import CallError
from enfold.middleware.around import Around, Take

if TYPE_CHECKING:
    from enfold.operations.call import Call
    from enfold.operations.policy import PayloadLog


class LogPayloads(Around):
    """Gives the payload log the input and the results of each call, or its error."""

    def __init__(self, payloads: PayloadLog) -> None:
        self._payloads = payloads

    @contextmanager
    def around(self, call: Call) -> Generator[Take]:
        call.context.keeps_result = True
        payload = self._payloads.begin(call.operation.spec, call.input, call.context)
        try:
            yield payload.take
        except CallError as error:
            payload.fail(error)
            raise
        finally:
            payload.end()
