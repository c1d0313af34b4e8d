"""Admission to a worker: above all, it runs no call whose caller has stopped waiting."""

from __future__ import annotations

import pytest

from enfold import CallError, OperationSpec
from enfold.calls.protocol.events import Requested
from enfold.calls.protocol.settings import WorkerLimits
from enfold.calls.protocol.transport import Message
from enfold.calls.worker.admission import AdmissionControl, Counts

SPEC = OperationSpec(namespace="shop", name="add")


def request(ttl_ms: int) -> Requested:
    return Requested("0123456789abcdef", "shop.add", {}, ttl_ms)


def admission() -> AdmissionControl:
    made = AdmissionControl(WorkerLimits(remembered=2), Counts())
    made.wake(100.0)
    return made


def test_a_call_has_the_time_its_caller_gave() -> None:
    assert admission().deadline(request(300), SPEC, 100.1) == pytest.approx(100.4)


def test_calls_that_arrived_while_the_worker_was_suspended_may_be_too_old() -> None:
    with pytest.raises(CallError) as raised:
        admission().deadline(request(5000), SPEC, 107.0)
    assert (raised.value.code, raised.value.details) == ("UNAVAILABLE", {"reason": "late", "started": False})


def test_for_a_moment_after_standing_still_every_message_is_suspect() -> None:
    made = admission()
    made.wake(107.0)
    with pytest.raises(CallError):
        made.deadline(request(5000), SPEC, 107.1)
    assert made.deadline(request(60_000), SPEC, 107.1) == pytest.approx(160.1)
    made.wake(107.4)
    assert made.deadline(request(5000), SPEC, 107.6) == pytest.approx(112.6)


def test_no_pause_is_assumed_before_the_first_wake_up() -> None:
    fresh = AdmissionControl(WorkerLimits(), Counts())
    assert fresh.deadline(request(300), SPEC, 100.0) == pytest.approx(100.3)
    fresh.wake(107.0)
    assert fresh.deadline(request(300), SPEC, 107.1) == pytest.approx(107.4)


def test_a_request_is_taken_once() -> None:
    counts = Counts()
    made = AdmissionControl(WorkerLimits(remembered=2), counts)

    def accepts(peer: str, request_id: str) -> bool:
        message = Message(f"op.{peer}.shop.add", reply=f"_INBOX.{peer}.boot.{request_id}", peer=peer)
        return made.accepts(message, request_id)

    assert accepts("alice", "a")
    assert not accepts("alice", "a")
    assert accepts("bob", "a")
    assert accepts("alice", "b")
    assert not accepts("alice", "a")  # remembered for one round more than the limit
    assert (counts.duplicates, counts.refused) == (2, 0)


@pytest.mark.parametrize(
    "reply", [None, "_INBOX.bob.boot.a", "_INBOX.alice.boot.b", "_INBOX.alice.boot.ba", "op.alice.shop.add.a"]
)
def test_a_request_whose_reply_would_go_to_another_peer_is_refused(reply: str | None) -> None:
    counts = Counts()
    message = Message("op.alice.shop.add", reply=reply, peer="alice")
    assert not AdmissionControl(WorkerLimits(), counts).accepts(message, "a")
    assert counts.refused == 1
