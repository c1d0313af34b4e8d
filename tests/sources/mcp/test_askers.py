"""Whose call a server can mean when it names none."""

from __future__ import annotations

import asyncio
from typing import Any

from enfold.sources.mcp.askers import MAX_LEFT, Askers
from enfold.sources.mcp.outgoing_call import OutgoingCall


class Person:
    """A listener that is its own client."""

    @property
    def client(self) -> object:
        return self

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Nothing is told here."""

    def stream_closed(self) -> None:
        """Nothing is held here."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


def call(number: int, person: Person, method: str = "tools/call", **params: Any) -> OutgoingCall:
    return OutgoingCall(number, method, params, person, asyncio.get_running_loop().create_future())


async def test_a_task_counts_from_its_beginning_until_its_result_has_come() -> None:
    """The answer that begins a task ends its request, and its question may come in the same breath."""
    ann, bob, askers = Person(), Person(), Askers()
    begun, nap = call(1, ann, task={}), call(2, bob)
    askers.answered(1, begun, {"task": {"taskId": "t"}})
    assert askers.only([nap]) is None
    assert askers.only([call(3, ann, "tasks/result", taskId="t")]) is ann
    askers.answered(3, call(3, ann, "tasks/result", taskId="t"), {})
    assert askers.only([nap]) is bob


async def test_with_too_many_calls_given_up_nobody_is_asked_any_more() -> None:
    ann, askers = Person(), Askers()
    for number in range(MAX_LEFT + 1):
        askers.given_up(call(number, ann))
    for number in range(MAX_LEFT):
        askers.answered(number, None, {})
    assert askers.only([call(MAX_LEFT + 1, ann)]) is None
