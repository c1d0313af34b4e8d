"""Server-sent events: the published vectors under every chunking, and a sample of our own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold.sources.decoders import EventDecoder, EventTooLargeError, ServerSentEvent

SHARED = Path(__file__).parents[3] / "shared" / "data" / "sse" / "vectors.json"
VECTORS: dict[str, Any] = json.loads(SHARED.read_text()) if SHARED.exists() else {"vectors": [], "chunkings": []}

SAMPLE = [
    ("one line", b"data: a\n\n", [ServerSentEvent("a")]),
    ("several lines", b"data: a\ndata:b\ndata\n\n", [ServerSentEvent("a\nb\n")]),
    ("every line end", b"data: a\r\rdata: b\n\ndata: c\r\n\r\n", [ServerSentEvent("a"), ServerSentEvent("b"), ServerSentEvent("c")]),
    ("type for one event only", b"event: x\ndata: a\n\ndata: b\n\n", [ServerSentEvent("a", "x"), ServerSentEvent("b")]),
    ("id stays until changed", b"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", [ServerSentEvent("a", id="1"), ServerSentEvent("b", id="1"), ServerSentEvent("c")]),
    ("id with NUL is ignored", b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n", [ServerSentEvent("a", id="1"), ServerSentEvent("b", id="1")]),
    ("comments and unknown fields", b": hi\nfoo: bar\ndata: a\n\n", [ServerSentEvent("a")]),
    ("byte order mark once", b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [ServerSentEvent("a")]),
    ("no data, no event", b"event: x\nid: 3\n\ndata: a\n\n", [ServerSentEvent("a", id="3")]),
    ("unterminated event is dropped", b"data: a\n\ndata: b\n", [ServerSentEvent("a")]),
    ("only one space is taken", b"data:  a\n\n", [ServerSentEvent(" a")]),
    ("other line separators are data", "data: a\u2028b\x85c\n\n".encode(), [ServerSentEvent("a\u2028b\x85c")]),
    ("broken UTF-8 is replaced", b"data: \xff\xe2\x82\n\n", [ServerSentEvent("\ufffd\ufffd")]),
]  # fmt: skip


def decode(chunks: list[bytes]) -> tuple[list[ServerSentEvent], EventDecoder]:
    decoder = EventDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)], decoder


def cut(raw: bytes, size: int | str) -> list[bytes]:
    return [raw] if isinstance(size, str) else [raw[start : start + size] for start in range(0, len(raw), size)]


@pytest.mark.parametrize(("name", "raw", "expected"), SAMPLE, ids=[name for name, *_ in SAMPLE])
@pytest.mark.parametrize("size", ["whole", 1, 2, 3, 5, 7])
def test_a_stream_gives_the_same_events_however_it_is_cut(
    name: str, raw: bytes, expected: list[ServerSentEvent], size: int | str
) -> None:
    assert decode(cut(raw, size))[0] == expected


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_published_vectors_hold_under_every_chunking(vector: dict[str, Any]) -> None:
    raw = base64.b64decode(vector["raw_bytes"])
    cuts = [cut(raw, size) for size in VECTORS["chunkings"]]
    if "chunks_b64" in vector:
        cuts.append([base64.b64decode(chunk) for chunk in vector["chunks_b64"]])
    for chunks in cuts:
        events, decoder = decode(chunks)
        assert [{"event": each.event, "data": each.data, "id": each.id} for each in events] == vector["expected"]
        assert (decoder.retry, decoder.last_event_id) == (vector["retry"], vector["last_event_id"])


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_any_bytes_in_any_chunks_give_what_the_whole_gives(chunks: list[bytes]) -> None:
    events, decoder = decode(chunks)
    whole, same = decode([b"".join(chunks)])
    assert (events, decoder.retry, decoder.last_event_id) == (whole, same.retry, same.last_event_id)


@pytest.mark.parametrize(("text", "retry"), [("10", 10), ("010", 10), ("-1", None), ("1_0", None), ("1x", None), ("", None), ("٣", None)])  # fmt: skip
def test_retry_counts_only_in_plain_digits(text: str, retry: int | None) -> None:
    assert decode([f"retry: {text}\n\n".encode()])[1].retry == retry


def test_an_id_is_kept_for_the_reconnection_even_without_data() -> None:
    decoder = EventDecoder(last_event_id="7")
    assert decoder.last_event_id == "7"
    assert list(decoder.feed(b"data: a\n\nid: 8\n\n")) == [ServerSentEvent("a", id="7")]
    assert decoder.last_event_id == "8"


@pytest.mark.parametrize("line", [b"data: 0123456789\n", b"data: 01\n", b": 0123456789"], ids=["line", "sum", "open"])
def test_an_event_that_never_ends_is_refused_at_the_limit(line: bytes) -> None:
    decoder = EventDecoder(max_event=8)
    with pytest.raises(EventTooLargeError, match="over the limit of 8"):
        list(decoder.feed(line * 4))
