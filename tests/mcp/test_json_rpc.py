"""Messages as values."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from enfold.mcp.json_rpc import (
    ProtocolError,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    encode,
    error_response,
    parse,
    parse_batch,
)


def test_a_request_a_notification_and_an_answer_are_distinguished() -> None:
    asked = parse(b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
    told = parse(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    answer = parse(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert [message.is_request for message in (asked, told, answer)] == [True, False, False]
    assert [message.is_answer for message in (asked, told, answer)] == [False, False, True]
    assert answer.method is UNSET


def test_parameters_and_their_meta_are_always_there() -> None:
    bare = parse(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    odd = parse(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":7}}')
    assert (bare.params, bare.meta, odd.meta) == ({}, {}, {})


WRONG: dict[str, tuple[bytes, int, Any]] = {
    "not JSON": (b"{", -32700, None),
    "too deep": (b'{"params":' * 5000, -32700, None),
    "another protocol": (b'{"jsonrpc":"1.0","id":3,"method":"a"}', -32600, 3),
    "an invalid id": (b'{"jsonrpc":"2.0","id":{},"method":"a"}', -32600, None),
    "an id that is true": (b'{"jsonrpc":"2.0","id":true,"method":"a"}', -32600, None),
    "parameters by position": (b'{"jsonrpc":"2.0","id":4,"method":"a","params":[1]}', -32600, 4),
    "neither asked nor told": (b'{"jsonrpc":"2.0"}', -32600, None),
    "neither asked nor answered": (b'{"jsonrpc":"2.0","id":5}', -32600, 5),
}


@pytest.mark.parametrize(("text", "code", "request_id"), WRONG.values(), ids=WRONG)
def test_an_invalid_message_is_answered_with_a_code(text: bytes, code: int, request_id: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.request_id) == (code, request_id)


def test_a_batch_has_at_least_one_message() -> None:
    assert len(parse_batch(b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"}]')) == 2
    with pytest.raises(ProtocolError):
        parse_batch(b"[]")


def test_messages_are_written_as_the_protocol_has_them() -> None:
    error = ProtocolError(-32602, "No", {"uri": "a"})
    assert encode(RPCResponse(1, {})) == b'{"jsonrpc":"2.0","id":1,"result":{}}'
    written = encode(error_response(None, error))
    assert written == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"No","data":{"uri":"a"}}}'
    bare = encode(error_response(1, ProtocolError(-32602, "No")))
    assert bare == b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"No"}}'
    asked = encode(RPCRequest("q", "roots/list", {}))
    assert asked == b'{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{}}'
    assert encode(RPCNotification("a")) == b'{"jsonrpc":"2.0","method":"a"}'
