"""Failed attempts: the first few are not delayed, further ones are, and any number of addresses uses limited memory."""

from __future__ import annotations

import pytest

from enfold.auth.tokens import FORGOTTEN, FREE, MAX_DELAY, Attempts


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_few_mistakes_cost_nothing_and_more_cost_more(clock: Clock) -> None:
    attempts = Attempts(clock)
    waits = []
    for _ in range(FREE + 8):
        waits.append(attempts.failed("192.0.2.1"))
        clock.now += waits[-1]
    assert waits[:FREE] == [0.0] * FREE
    assert waits[FREE:] == sorted(waits[FREE:])
    assert (waits[FREE] > 0, waits[-1]) == (True, MAX_DELAY)


def test_guesses_at_the_same_time_are_answered_one_after_the_other(clock: Clock) -> None:
    attempts = Attempts(clock)
    waits = [attempts.failed("192.0.2.1") for _ in range(FREE + 3)]
    assert len(set(waits[FREE:])) == 3


def test_a_guesser_gets_few_answers_in_an_hour(clock: Clock) -> None:
    attempts = Attempts(clock)
    answered = 0
    while clock.now < 3600:
        clock.now += attempts.failed("192.0.2.1")
        answered += 1
    assert answered < 400


def test_another_address_is_not_slowed(clock: Clock) -> None:
    attempts = Attempts(clock)
    for _ in range(100):
        attempts.failed("192.0.2.1")
    assert attempts.failed("192.0.2.2") == 0.0


def test_addresses_of_one_network_count_as_one(clock: Clock) -> None:
    attempts = Attempts(clock)
    waits = [attempts.failed(f"2001:db8::{number:x}") for number in range(20)]
    assert waits[-1] > 0
    assert attempts.failed("2001:db8:0:1::1") == 0.0
    mapped = Attempts(clock)
    assert [mapped.failed(each) for each in ["192.0.2.1", "::ffff:192.0.2.1"] * FREE][-1] > 0


def test_an_address_that_stops_guessing_is_unblocked(clock: Clock) -> None:
    attempts = Attempts(clock)
    for _ in range(20):
        attempts.failed("192.0.2.1")
    clock.now += FORGOTTEN + 1
    assert attempts.failed("192.0.2.1") == 0.0


def test_no_number_of_addresses_fills_the_memory(clock: Clock) -> None:
    attempts = Attempts(clock, max_addresses=100)
    for number in range(1000):
        attempts.failed(f"10.0.{number // 256}.{number % 256}")
        attempts.failed("x" * 10_000 + str(number))
    assert len(attempts) == 100
