import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError
from tests.formats.surfaces import Call, in_the_shell, over_cgi, over_http

from enfold import Context, OperationRegistry, OperationSpec, testing
from enfold.errors import CATEGORIES, CODES, CallError, code_row
from enfold.formats import FORMATS, tool_envelope_v1

# The table of the contract, row by row: code, HTTP status, retry is safe, category, recoverable, exit code.
TABLE = [
    ("OPERATION_NOT_FOUND", 404, False, "not_found", False, 3),
    ("TASK_NOT_FOUND", 404, False, "not_found", False, 3),
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
    ("OUTCOME_UNKNOWN", 409, False, "execution", False, 1),
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


# --- codes of an operation's own ----------------------------------------------------------------------------------

# The example of the ToolEnvelope V1 specification.
SEED = {"code": "ERR_INPUT_SCHEMA", "category": "validation", "recoverable": True, "http_status": 422, "exit": 9}
MESSAGE = "The provided context does not match schema"
ACTION = "Provide all required fields and retry"


def failing(
    error_schemas: list[dict[str, Any]], failure: Callable[[], BaseException], **options: Any
) -> OperationRegistry:
    ops = OperationRegistry("t", **options)

    @ops.query(error_schemas=error_schemas)
    def fail() -> None:
        raise failure()

    return ops


def seed_error() -> CallError:
    return CallError("ERR_INPUT_SCHEMA", MESSAGE, {"suggested_action": ACTION, "next_tool": "inspect"})


def test_a_declared_code_means_what_the_operation_says_on_every_surface() -> None:
    ops = failing([SEED], seed_error)
    assert over_http(ops, "t.fail", "result").status == 422
    assert over_cgi(ops, "t.fail", "result").status == 422
    assert in_the_shell(ops, "t.fail", "result").status == 9


@pytest.mark.parametrize("call", [over_http, over_cgi, in_the_shell])
def test_the_error_of_the_tool_envelope_specification_can_be_raised(call: Any) -> None:
    body = call(failing([SEED], seed_error), "t.fail", "tool_envelope_v1").body
    assert tool_envelope_v1.parse_block(body["content"][1]["text"]).payload == {
        "category": "validation",
        "code": "ERR_INPUT_SCHEMA",
        "message": MESSAGE,
        "recoverable": True,
        "suggestedAction": ACTION,
        "nextTool": "inspect",
    }


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_can_be_chosen(category: str) -> None:
    ops = failing([{"code": "MINE", "category": category}], lambda: CallError("MINE", "no"))
    body = over_http(ops, "t.fail", "tool_envelope_v1").body
    assert tool_envelope_v1.parse_block(body["content"][1]["text"]).payload["category"] == category


def test_a_code_of_the_table_means_the_same_for_every_operation() -> None:
    declared = [{"code": "TIMEOUT", "http_status": 418, "category": "model", "exit": 99}]
    ops = failing(declared, lambda: CallError("TIMEOUT", "late"))
    assert over_http(ops, "t.fail", "result").status == 504
    assert in_the_shell(ops, "t.fail", "result").status == 5


def test_an_undeclared_code_is_a_failed_execution() -> None:
    ops = failing([], seed_error)
    assert over_http(ops, "t.fail", "result").status == 500
    assert in_the_shell(ops, "t.fail", "result").status == 1


def test_a_code_declared_by_an_inner_operation_reaches_the_caller_of_the_outer_one() -> None:
    ops = failing([SEED], seed_error)

    @ops.query
    async def through(context: Context) -> None:
        await context.env.t.fail({})

    assert over_http(ops, "t.through", "result").status == 422


@pytest.mark.parametrize("wrong", [{"category": "modell"}, {"exit": 0}, {"exit": 256}], ids=str)
def test_a_wrong_declaration_is_reported_at_registration(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"category|exit code"):
        OperationSpec(name="a", error_schemas=[{"code": "MINE", **wrong}])


def test_a_declared_code_survives_the_wire_form_of_its_spec() -> None:
    spec = OperationSpec(name="a", error_schemas=[SEED])
    assert OperationSpec.from_dict(spec.to_dict()).declared_row("ERR_INPUT_SCHEMA") == spec.error_schemas[0].row


# --- exceptions ---------------------------------------------------------------------------------------------------

SECRET = "--token=s3cr3t"


def failed_program() -> BaseException:
    said = "import sys; print('3 of 5 done'); sys.stderr.write('disk \\x1b[31mfull\\x07'); sys.exit(3)"
    try:
        subprocess.run([sys.executable, "-c", said, SECRET], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return error
    raise AssertionError


PROGRAMS: dict[str, tuple[Callable[[], BaseException], str, dict[str, Any]]] = {
    "a real program": (
        failed_program,
        "A program failed with exit code 3",
        {"exit_code": 3, "stdout": "3 of 5 done\n", "stderr": "disk [31mfull"},
    ),
    "a signal": (
        lambda: subprocess.CalledProcessError(-9, ["x", SECRET]),
        "A program was terminated by signal 9",
        {"exit_code": -9},
    ),
    "much to say": (
        lambda: subprocess.CalledProcessError(1, f"x {SECRET}", b"b" * 100_000, "a" * 100_000 + "end"),
        "A program failed with exit code 1",
        {"exit_code": 1, "stdout": "b" * 2000, "stderr": "a" * 1997 + "end"},
    ),
    "a program that timed out": (
        lambda: subprocess.TimeoutExpired(["x", SECRET], 5),
        "A subprocess took longer than 5 seconds",
        {},
    ),
    "a program that timed out, with output": (
        lambda: subprocess.TimeoutExpired(["x", SECRET], 5, b"3 of 5", b"slow"),
        "A subprocess took longer than 5 seconds",
        {"stdout": "3 of 5", "stderr": "slow"},
    ),
}


@pytest.mark.parametrize(("failure", "message", "details"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_failed_program_is_reported_without_its_command_line(
    failure: Callable[[], BaseException], message: str, details: dict[str, Any]
) -> None:
    ops = failing([], failure)
    error = over_http(ops, "t.fail", "envelope").body["error"]
    assert (error["message"], error["details"]) == (message, details)
    for written in FORMATS:
        assert "s3cr3t" not in str(over_http(ops, "t.fail", written).body)


@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_the_output_of_a_failed_program_is_the_partial_output_of_an_mcp_envelope(call: Call) -> None:
    body = call(failing([], failed_program), "t.fail", "mcp_envelope_v0_1").body
    details = {"exit_code": 3, "stdout": "3 of 5 done\n", "stderr": "disk [31mfull"}
    assert (body["result"], body["errors"][0]["details"]) == ("3 of 5 done\n", details)
    hidden = call(failing([], failed_program, expose_errors=False), "t.fail", "mcp_envelope_v0_1").body
    assert (hidden["result"], hidden["errors"][0]["details"]) == (None, {"exit_code": 3})


async def test_a_failed_program_says_nothing_where_errors_are_not_exposed() -> None:
    with pytest.raises(CallError) as raised:
        await failing([], failed_program, expose_errors=False).execute("t.fail", {})
    assert (raised.value.message, raised.value.details) == ("Operation t.fail failed", {"exit_code": 3})


class Item(BaseModel):
    count: int
    name: str = Field(alias="itemName")


def validation_faults() -> Any:
    try:
        Item.model_validate({"count": "many"})
    except ValidationError as error:
        return error.errors(include_url=False)


def endless() -> dict[str, Any]:
    details: dict[str, Any] = {"id": 7}
    details["self"] = details
    return details


# What handlers give as details, and what every caller gets.
DETAILS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a list": (lambda: ["a", 1], {"details": ["a", 1]}),
    "a word": (lambda: "why", {"details": "why"}),
    "a model": (lambda: {"item": Item(count=1, itemName="x")}, {"item": {"count": 1, "itemName": "x"}}),
    "a date and an object": (lambda: {"day": date(2026, 1, 2), "to": object(), "n": 7}, {"day": "2026-01-02", "to": "object", "n": 7}),
    "an unpaired surrogate": (lambda: {"name": "a\ud800"}, {"name": "a?"}),
    "a number of 5,000 digits": (lambda: {"n": 10**5000, "m": [1]}, {"n": "int", "m": [1]}),
    "no number": (lambda: {"f": float("nan"), "g": 1.5}, {"f": "nan", "g": 1.5}),
    "keys that are no text": (lambda: {1: "a", None: "b"}, {"1": "a", "None": "b"}),
    "an exception inside": (lambda: {"errors": [ValueError("not so"), {"deep": {1, 2}}]}, {"errors": ["not so", {"deep": [1, 2]}]}),
}  # fmt: skip


@pytest.mark.parametrize("surface", testing.SURFACES)
@pytest.mark.parametrize(("give", "told"), DETAILS.values(), ids=DETAILS)
async def test_details_of_any_kind_reach_every_caller_alike(
    surface: str, give: Callable[[], Any], told: dict[str, Any]
) -> None:
    ops = failing([], lambda: CallError("VALIDATION_ERROR", "wrong", give()))
    async with testing.open_client(surface, ops) as client:
        reply = await client.call("t.fail", {}, format="envelope")
    assert (reply.code, reply.message, reply.details) == ("VALIDATION_ERROR", "wrong", told)


@pytest.mark.parametrize("surface", testing.SURFACES)
@pytest.mark.parametrize("give", [validation_faults, endless], ids=["faults of pydantic", "details within themselves"])
async def test_details_that_cannot_be_serialized_leave_the_rest_intact(surface: str, give: Callable[[], Any]) -> None:
    ops = failing([], lambda: CallError("VALIDATION_ERROR", "wrong", give()))
    async with testing.open_client(surface, ops) as client:
        reply = await client.call("t.fail", {}, format="envelope")
    assert (reply.code, reply.message) == ("VALIDATION_ERROR", "wrong")
    assert reply.details["id"] == 7 if "id" in reply.details else reply.details["details"][0]["loc"] == ["count"]


def test_a_missing_permission_is_a_failed_execution_of_the_category_authorization() -> None:
    ops = failing([], lambda: PermissionError(13, "Permission denied"))
    seen = over_http(ops, "t.fail", "tool_envelope_v1")
    payload = tool_envelope_v1.parse_block(seen.body["content"][1]["text"]).payload
    assert (seen.status, payload["code"], payload["category"]) == (500, "EXECUTION_ERROR", "authorization")


@pytest.mark.parametrize(("exception", "message"), [(TimeoutError("late"), "late"), (TimeoutError(), "timed out")])
async def test_a_timeout_of_a_handlers_own_is_a_timeout(exception: TimeoutError, message: str) -> None:
    with pytest.raises(CallError, match=message) as raised:
        await failing([], lambda: exception).execute("t.fail", {})
    assert (raised.value.code, raised.value.retryable) == ("TIMEOUT", True)


async def test_an_exception_that_cannot_be_printed_is_reported_by_its_name() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(CallError, match="OddError"):
        await failing([], OddError).execute("t.fail", {})


async def test_the_one_failure_in_a_task_group_is_reported_as_itself() -> None:
    ops = OperationRegistry("t")

    @ops.query
    async def many(code: bool) -> None:
        async def fail() -> None:
            raise CallError("SOLD_OUT", "None left") if code else ValueError("no such disk")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    for given, expected in ((True, ("SOLD_OUT", "None left")), (False, ("EXECUTION_ERROR", "no such disk"))):
        with pytest.raises(CallError) as raised:
            await ops.execute("t.many", {"code": given})
        assert (raised.value.code, raised.value.message) == expected
