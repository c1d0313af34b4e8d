"""Server-sent events: a table of streams, and random ones compared with the algorithm of the HTML standard."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
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


def by_the_standard(raw: bytes) -> tuple[list[ServerSentEvent], int | None, str]:
    """Events, reconnection time and last event id of a whole stream, by the steps of the HTML standard."""
    events, retry = list[ServerSentEvent](), None
    data, kind, seen_id, last_id = list[str](), "", "", ""
    text = raw.decode("utf-8", errors="replace").removeprefix("\ufeff")
    *lines, _ = re.split(r"\r\n|\r|\n", text)  # What follows the last line end is not a line yet.
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            last_id = seen_id
            if data:
                events.append(ServerSentEvent("\n".join(data), kind or "message", last_id))
            data, kind = [], ""
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            seen_id = value
        elif name == "retry" and re.fullmatch(r"[0-9]+", value):
            retry = int(value)
    return events, retry, last_id


FIELDS = ["data", "event", "id", "retry", "other", "", "\ufeffdata", " data", "Data"]
SEPARATORS = [":", ": ", ":  ", ""]
CONTENTS = ["", "a", "é😀", "10", "-1", "1_0", "٣", "a:b", '{"a": 1}', "\0", "\u2028", " x"]
ENDS = ["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n"]
sse_lines = st.tuples(*map(st.sampled_from, (FIELDS, SEPARATORS, CONTENTS, ENDS))).map("".join)
sse_streams = st.tuples(st.sampled_from(["", "\ufeff", "\ufeff\ufeff"]), st.lists(sse_lines, max_size=12)).map(
    lambda stream: (stream[0] + "".join(stream[1])).encode()
)


@settings(max_examples=300)
@given(sse_streams, st.sampled_from(["whole", 1, 2, 3, 7]))
def test_a_stream_is_decoded_by_the_steps_of_the_standard(raw: bytes, size: int | str) -> None:
    events, decoder = decode(cut(raw, size))
    assert (events, decoder.retry, decoder.last_event_id) == by_the_standard(raw)


def test_every_stream_of_the_table_is_decoded_by_the_steps_of_the_standard() -> None:
    for name, raw, expected in SAMPLE:
        assert by_the_standard(raw)[0] == expected, name


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
    with pytest.raises(EventTooLargeError, match="exceeds the limit of 8"):
        list(decoder.feed(line * 4))
