"""Our log: text from outside stays within its line."""

from __future__ import annotations

import logging

import pytest

from enfold import OperationRegistry
from enfold.observability.log import Log

FORGED = "price\nWARNING enfold: all is well\x1b[2K\r\u2028"


@pytest.mark.parametrize("fact", [FORGED, ValueError(FORGED)], ids=["a text", "an exception"])
def test_a_fact_is_not_a_separate_line(fact: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "enfold.test"):
        Log("enfold.test").warning("%s, %d", fact, 3)
    assert caplog.messages == ["price\\nWARNING enfold: all is well\\x1b[2K\\r\\u2028, 3"]


def test_a_long_fact_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "enfold.test"):
        Log("enfold.test").warning("%s", "x" * 100_000)
    assert len(caplog.messages[0]) == 4001


async def test_a_key_of_a_result_does_not_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ops = OperationRegistry("shop")

    @ops.query()
    def price() -> dict[str, int]:
        return {FORGED: "many"}  # type: ignore[dict-item]  # a handler that does not keep its promise

    with caplog.at_level(logging.DEBUG, "enfold"):
        await ops.execute("shop.price", {})
    assert all(message.isprintable() for message in caplog.messages)
    assert len(caplog.messages) == 1
