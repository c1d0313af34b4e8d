import json
from typing import Any

import pytest

from enfold import (
    CallError,
    FormatError,
    OperationSpec,
    ResponseEnvelope,
    TextContent,
    http_envelope,
    local_envelope,
    mcp_envelope,
)
from enfold.formats import FORMATS, find_format, result


def spec(values: int = 1) -> OperationSpec:
    return OperationSpec(namespace="shop", name="add", values=values)


@pytest.mark.parametrize(
    ("data", "values", "wire"),
    [
        pytest.param(10, 1, {"result": 10}, id="one value"),
        pytest.param(None, 1, {"result": None}, id="a None that is a value"),
        pytest.param([10, "hello"], 2, {"result0": 10, "result1": "hello"}, id="several values"),
        pytest.param([10, "hello"], 1, {"result": [10, "hello"]}, id="one value that is a list"),
        pytest.param(None, 0, {}, id="no value"),
    ],
)
def test_a_result_is_written_as_its_values_and_read_again(data: Any, values: int, wire: Any) -> None:
    written = result.write(local_envelope(data, "shop.add"), spec(values))
    assert written == wire
    assert result.read(json.loads(json.dumps(written))).data == data


@pytest.mark.parametrize(("data", "values"), [([1], 2), ("text", 2), (5, 0)])
def test_data_that_is_not_what_the_spec_says_is_not_lost(data: Any, values: int) -> None:
    assert result.write(local_envelope(data, "shop.add"), spec(values)) == {"result": data}


def test_without_an_operation_there_is_one_value() -> None:
    assert result.write(local_envelope([1, 2], "shop.add")) == {"result": [1, 2]}


def test_bytes_become_base64_text() -> None:
    assert result.write(http_envelope(b"\x00\xff", content_type="image/png")) == {"result": "AP8="}


def test_a_result_that_is_a_failure_is_written_as_its_text() -> None:
    failed: ResponseEnvelope[Any] = mcp_envelope(
        [], is_error=True, content=[TextContent(text="disk full"), TextContent(text="really")]
    )
    assert result.write(failed, spec()) == {"error": "disk full\nreally"}


@pytest.mark.parametrize("message", ["something went wrong", ""])
def test_a_failure_is_its_sentence(message: str) -> None:
    assert result.write_error(CallError("TIMEOUT", message), "shop.add") == {"error": message}


def test_a_failure_is_raised_when_it_is_read() -> None:
    with pytest.raises(CallError) as raised:
        result.read({"error": "no luck"})
    assert (raised.value.code, raised.value.message) == ("EXECUTION_ERROR", "no luck")


def test_a_result_that_was_read_is_local_and_has_no_operation() -> None:
    meta = result.read({"result": 1}).meta
    assert (meta.source, getattr(meta, "operation_id", None)) == ("local", "")


@pytest.mark.parametrize(
    "wire",
    [[], "text", None, {"data": 1}, {"result": 1, "error": "x"}, {"result0": 1, "result2": 2}, {"error": 5}, {"x": 1}],
    ids=str,
)
def test_data_of_another_format_is_refused(wire: Any) -> None:
    with pytest.raises(FormatError):
        result.read(wire)


def test_formats_are_found_by_name() -> None:
    assert list(FORMATS)[:4] == ["result", "envelope", "mcp_envelope_v0_1", "tool_envelope_v1"]
    assert find_format("result").write(local_envelope(1, "")) == {"result": 1}


def test_a_format_that_does_not_exist_is_the_callers_mistake() -> None:
    with pytest.raises(CallError, match='Unknown format "xml": use one of result, envelope'):
        find_format("xml")
