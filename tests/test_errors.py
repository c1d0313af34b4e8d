import pickle

import pytest

from enfold.errors import CODES, CallError, code_row

# The table of the contract, row by row: code, HTTP status, retry is safe, category, recoverable, exit code.
TABLE = [
    ("OPERATION_NOT_FOUND", 404, False, "not_found", False, 3),
    ("INVALID_OPERATION_TYPE", 400, False, "validation", True, 2),
    ("VALIDATION_ERROR", 400, False, "validation", True, 2),
    ("ACCESS_DENIED", 403, False, "authorization", False, 4),
    ("TIMEOUT", 504, False, "timeout", True, 5),
    ("ABORTED", 499, False, "execution", False, 6),
    ("RESOURCE_EXHAUSTED", 429, True, "rate_limit", True, 7),
    ("PAYLOAD_TOO_LARGE", 413, False, "validation", True, 2),
    ("UNAVAILABLE", 503, True, "network", True, 7),
    ("DATA_LOSS", 502, False, "network", False, 1),
    ("EXECUTION_ERROR", 500, False, "execution", False, 1),
    ("UNKNOWN_ERROR", 500, False, "internal", False, 1),
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_each_code_means_what_the_contract_says(row: tuple[str, int, bool, str, bool, int]) -> None:
    found = code_row(row[0])
    assert row == (
        found.name,
        found.http_status,
        found.retryable,
        found.category,
        found.recoverable,
        found.exit_code,
    )


def test_the_table_has_no_other_codes() -> None:
    assert list(CODES) == [row[0] for row in TABLE]


def test_a_failed_execution_has_the_policys_code_and_the_others_our_own() -> None:
    assert code_row("EXECUTION_ERROR").envelope_code == "ADAPTER.EXECUTION.FAILED"
    assert code_row("TIMEOUT").envelope_code == "ENFOLD.TIMEOUT"


def test_a_handlers_own_code_is_a_failed_execution_under_its_own_name() -> None:
    own = code_row("OUT_OF_STOCK")
    assert (own.name, own.http_status, own.category, own.exit_code) == ("OUT_OF_STOCK", 500, "execution", 1)
    assert own.envelope_code == "OUT_OF_STOCK"


def test_an_error_is_retryable_as_its_code_says_unless_it_says_otherwise() -> None:
    assert CallError("UNAVAILABLE", "down").retryable
    assert not CallError("TIMEOUT", "slow").retryable
    assert CallError("TIMEOUT", "slow", retryable=True).retryable


def test_an_error_prints_its_sentence_and_survives_pickling() -> None:
    error = CallError("TIMEOUT", "too slow", {"status": 1}, retryable=True)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert str(again) == "too slow"
    assert again.to_wire() == error.to_wire()
