"""Forgeries: whatever is changed in a record, in the envelope around it or in the store, verification says so.

Every row starts from an honest lineage, changes one thing as a forger would, and must end with
a sentence; where no key is given, a forger may make every digest anew, so those rows verify with the key.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enfold import CallError, Context, OperationRegistry, ResponseEnvelope, local_envelope
from enfold.errors import FormatError
from enfold.formats import mcp_envelope_v0_1
from enfold.operations import OperationSpec
from enfold.provenance import (
    CaptureOptions,
    Recorder,
    RecordStore,
    SigningKey,
    Verdict,
    generate_key,
    public_keys,
    read_json,
    read_record,
    seal,
    verify,
    verify_envelope,
    verify_lineage,
    verify_run,
    verify_value,
)
from enfold.surfaces.tool_requests import RequestCall

Wire = dict[str, Any]

KEY, OTHER_KEY = generate_key(), generate_key()
KEYS = public_keys([KEY.public_key])
FULL = CaptureOptions("full")


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.mutation
    async def order(item: str, context: Context) -> dict[str, Any]:
        """Ask for the price, look for a missing discount, and sell."""
        found = await context.env.shop.price(item=item)
        with suppress(CallError):
            await context.env.shop.discount(item=item)
        return {"item": item, "total": found.data, "note": "é, paid", "half": 0.5}

    @ops.query
    async def price(item: str) -> int:
        return 9007199254740992 if item == "moon" else 21

    @ops.query
    async def discount(item: str) -> int:
        raise CallError("NOT_FOUND", f"There is none for {item}")

    return ops


class Honest:
    """A lineage of three runs in a store, and the envelope that the caller got."""

    def __init__(self, path: Path, key: SigningKey | None = KEY) -> None:
        self.path = path
        with RecordStore(path) as store:
            context = Context()
            recorder = Recorder(store=store, key=key)
            context.recording = recorder.begin(FULL, identity="ann", writer=mcp_envelope_v0_1)
            found = asyncio.run(shop().execute("shop.order", {"item": "pen"}, context))
            self.envelope: Wire = json.loads(msgspec.json.encode(mcp_envelope_v0_1.write(found)))
            self.run_id: str = self.envelope["provenance"]["run_id"]
            self.records: list[Wire] = store.lineage(self.run_id)
        self.inner = next(each for each in self.records if each["tool"]["name"] == "shop.price")
        self.in_vain = next(each for each in self.records if each["tool"]["name"] == "shop.discount")

    def verify_store(self, run_id: str | None = None) -> tuple[Verdict, ...]:
        with RecordStore(self.path, create=False) as store:
            return verify_run(run_id or self.run_id, store, KEYS)


@pytest.fixture
def honest(tmp_path: Path) -> Honest:
    return Honest(tmp_path / "records.db")


def is_refused(verdicts: tuple[Verdict, ...]) -> bool:
    """Whether the verdicts say what is wrong."""
    told = [fault for verdict in verdicts for fault in verdict.faults]
    return (
        bool(told) and all(len(fault) > 10 for fault in told) and any("NOT verified" in str(each) for each in verdicts)
    )


def test_an_unchanged_record_verifies_in_every_way(honest: Honest) -> None:
    assert verify_envelope(honest.envelope, KEYS).faults == ()
    for record in honest.records:
        assert all(verdict.ok for verdict in honest.verify_store(record["run_id"]))
    assert all(verdict.ok for verdict in verify_lineage(honest.records, KEYS))
    with RecordStore(honest.path) as store:
        verdicts = verify_value(honest.envelope, KEYS, store)
    assert [note for verdict in verdicts for note in (*verdict.faults, *verdict.notes)] == []


# --- the envelope -------------------------------------------------------------------------------------------------


def resealed(record: Wire, key: SigningKey | None = None, **fields: Any) -> Wire:
    """The record as a forger would seal it: the claim of a signature goes with the signature."""
    methods = [method for method in fields.pop("methods", record["methods"]) if not method.startswith("integrity.rec")]
    changed = {**record, **fields, "methods": [each for each in methods if each != "integrity.signature.create"]}
    return seal(read_record({name: value for name, value in changed.items() if name != "integrity"}), key=key).to_wire()


def failed_envelope() -> Wire:
    recording = Recorder(key=KEY).begin(FULL, writer=mcp_envelope_v0_1)
    assert recording is not None
    error = CallError("NOT_FOUND", "There is no pen")
    error.provenance = recording.failed(OperationSpec(name="order"), {"item": "pen"}, error)
    return mcp_envelope_v0_1.write_error(error, "order")


IN_THE_ENVELOPE: dict[str, Callable[[Wire], Wire]] = {
    "another result": lambda wire: {**wire, "result": {"item": "pen", "total": 1}},
    "one number of the result": lambda wire: {**wire, "result": {**wire["result"], "total": 22}},
    "a number as text": lambda wire: {**wire, "result": {**wire["result"], "total": "21"}},
    "true for one": lambda wire: {**wire, "result": {**wire["result"], "half": True}},
    "another form of a letter": lambda wire: {**wire, "result": {**wire["result"], "note": "e\u0301, paid"}},
    "a letter that looks alike": lambda wire: {**wire, "result": {**wire["result"], "note": "é, р\u0430id"}},
    "an unpaired surrogate": lambda wire: {**wire, "result": {**wire["result"], "note": "\ud800"}},
    "a field more": lambda wire: {**wire, "result": {**wire["result"], "refund": None}},
    "a field less": lambda wire: {**wire, "result": {"item": "pen", "total": 21}},
    "no result": lambda wire: {**wire, "result": None},
    "no result field": lambda wire: {name: value for name, value in wire.items() if name != "result"},
    "a failure instead": lambda wire: {**wire, "result": None, "errors": [{"code": "X", "message": "It failed"}]},
    "an error beside": lambda wire: {**wire, "errors": [{"code": "X", "message": "It failed"}]},
    "a warning beside": lambda wire: {**wire, "warnings": [{"code": "X", "message": "Half of it"}]},
    "a cut result that claims to be whole": lambda wire: {**wire, "result": {"item": "pen"}},
    "wrapped twice": lambda wire: {**wire, "result": wire},
    "another version": lambda wire: {**wire, "schema_version": "mcp.envelope.v0.2"},
    "an unknown field": lambda wire: {**wire, "approved_by": "ann"},
    "no record": lambda wire: {**wire, "provenance": None},
    "the record of another run": lambda wire: {**wire, "provenance": failed_envelope()["provenance"]},
    "a result in place of the failure": lambda _: {**failed_envelope(), "result": 0},
    "a failure without its error": lambda _: {**failed_envelope(), "errors": []},
    "another error": lambda _: {**failed_envelope(), "errors": [{"code": "PAID", "message": "All is well"}]},
    "another caller": lambda wire: json.loads(json.dumps(wire).replace('"ann"', '"bob"')),
    "another time": lambda wire: {**wire, "provenance": {**wire["provenance"], "time": "2020-01-01T00:00:00Z"}},
    "no time": lambda wire: {
        **wire,
        "provenance": {name: value for name, value in wire["provenance"].items() if name != "time"},
    },
    "another result and a digest that fits": lambda wire: {
        **wire,
        "result": 1,
        "provenance": resealed(wire["provenance"], outputs=[]),
    },
    "signed with another key": lambda wire: {**wire, "provenance": resealed(wire["provenance"], OTHER_KEY)},
    "not signed, with a new digest": lambda wire: {**wire, "provenance": resealed(wire["provenance"])},
    "not signed, without any digest": lambda wire: {
        **wire,
        "provenance": {**wire["provenance"], "methods": ["engine.prov.record_v0_1.build"], "integrity": {}},
    },
    "our key id on a signature by another key": lambda wire: named_as(wire, KEY.key_id),
    "another signature algorithm": lambda wire: with_signature(wire, alg="none"),
    "an empty signature": lambda wire: with_signature(wire, value="A" * 88),
}


def named_as(wire: Wire, key_id: str) -> Wire:
    forged = resealed(wire["provenance"], OTHER_KEY)
    forged["integrity"]["signature"]["key_id"] = key_id
    return {**wire, "provenance": forged}


def with_signature(wire: Wire, **fields: Any) -> Wire:
    integrity = wire["provenance"]["integrity"]
    changed = {**integrity, "signature": {**integrity["signature"], **fields}}
    return {**wire, "provenance": {**wire["provenance"], "integrity": changed}}


@pytest.mark.parametrize("forge", IN_THE_ENVELOPE.values(), ids=IN_THE_ENVELOPE.keys())
def test_a_forged_envelope_is_refused(honest: Honest, forge: Callable[[Wire], Wire]) -> None:
    assert is_refused((verify_envelope(forge(honest.envelope), KEYS),))


def test_an_honest_failure_verifies() -> None:
    assert verify_envelope(failed_envelope(), KEYS).faults == ()


def test_without_a_key_a_replaced_result_is_found_anyway(honest: Honest) -> None:
    assert verify_envelope(honest.envelope).ok
    assert is_refused((verify_envelope({**honest.envelope, "result": 1}),))


# --- a result that was cut, redacted or is bytes -------------------------------------------------------------------


def asked(limit: int, key: SigningKey | None = KEY, *, deterministic: bool = True) -> Wire:
    """The answer to a request whose caller takes so many bytes."""
    ops = OperationRegistry("shop")

    @ops.query
    async def items() -> list[str]:
        return [f"item {number}" for number in range(1000)]

    request = {
        "schema_version": "mcp.request.v0.1",
        "tool": {"name": "shop.items"},
        "params": {"_meta": {"capture_provenance": True, "provenance_mode": "full"}},
        "artifacts": [],
        "preferences": {"max_output_bytes": limit, "deterministic": deterministic},
    }
    call = RequestCall(ops, request, adapter="http", recorder=Recorder(key=key))
    answer = call.write(asyncio.run(ops.execute(call.spec.id, call.input, call.context)))
    return json.loads(msgspec.json.encode(answer))  # type: ignore[no-any-return]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("limit", [10, 900, 2000, 2400, 2999, 3000, 3001, 5000, 9999])
def test_a_cut_result_is_recorded_as_it_leaves_and_does_not_claim_to_be_whole(limit: int, deterministic: bool) -> None:
    answer = asked(limit, deterministic=deterministic)
    assert [warning["code"] for warning in answer["warnings"]] == ["ENFOLD.OUTPUT.TRUNCATED"]
    assert "adapter.wrap.envelope_v0_1" not in answer["provenance"]["methods"]
    assert verify_envelope(answer, KEYS).faults == ()
    assert is_refused((verify_envelope({**answer, "result": ["item 0"]}, KEYS),))
    assert is_refused((verify_envelope({**answer, "warnings": []}, KEYS),))


def test_a_result_that_fits_claims_to_be_whole() -> None:
    answer = asked(1_000_000)
    assert "adapter.wrap.envelope_v0_1" in answer["provenance"]["methods"]
    assert verify_envelope(answer, KEYS).faults == ()


@pytest.mark.parametrize("count", [1, 30, 3000], ids=["one secret", "more than a label holds", "too many to name"])
def test_a_result_with_secrets_verifies_and_is_compared_where_the_places_are_named(count: int) -> None:
    data = {"sum": 3, "accounts": [{"password": f"s3cret-{number}"} for number in range(count)]}
    recording = Recorder(key=KEY).begin(FULL, writer=mcp_envelope_v0_1)
    assert recording is not None
    wire = mcp_envelope_v0_1.write(recording.succeeded(OperationSpec(name="a"), {}, local_envelope(data, "a")))
    assert "s3cret" not in str(wire["provenance"])
    assert verify_envelope(wire, KEYS).faults == ()
    verdict = verify_envelope({**wire, "result": {**data, "sum": 4}}, KEYS)
    assert is_refused((verdict,)) if count < 3000 else "the result was not compared" in verdict.notes[0]


def test_bytes_are_compared_although_the_envelope_has_them_as_text() -> None:
    recording = Recorder(key=KEY).begin(FULL, writer=mcp_envelope_v0_1)
    assert recording is not None
    made: ResponseEnvelope[Any] = local_envelope(b"\x00paid", "a")
    wire = mcp_envelope_v0_1.write(recording.succeeded(OperationSpec(name="a"), {}, made))
    assert verify_envelope(wire, KEYS).faults == ()
    assert is_refused((verify_envelope({**wire, "result": "AGZyZWU="}, KEYS),))
    assert is_refused((verify_envelope({**wire, "result": "not base64"}, KEYS),))


# --- the text -----------------------------------------------------------------------------------------------------

TEXTS: dict[str, Callable[[str], str | bytes]] = {
    "a name twice": lambda text: text.replace('{"schema_version"', '{"result":1,"schema_version"', 1),
    "a name twice, once escaped": lambda text: text.replace('{"sch', '{"r\\u0065sult":1,"sch', 1),
    "a name twice in the record": lambda text: text.replace('"run_id":', '"run_id":"mine","run_id":', 1),
    "a number no float can hold": lambda text: text.replace("0.5", "0.50000000000000000001", 1),
    "a whole number no float can hold": lambda text: text.replace("21", "9007199254740993.0", 1),
    "a number too large": lambda text: text.replace("21", "1e999", 1),
    "NaN": lambda text: text.replace("21", "NaN", 1),
    "Infinity": lambda text: text.replace("21", "-Infinity", 1),
    "a byte order mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "bytes that are no UTF-8": lambda text: text.encode().replace(b"pen", b"p\xff", 1),
    "two values": lambda text: text + text,
    "endless depth": lambda _: "[" * 100_000,
    "an endless number": lambda text: text.replace("21", "9" * 5000, 1),
    "half of it": lambda text: text[: len(text) // 2],
}


@pytest.mark.parametrize("forge", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_that_two_readers_could_read_differently_is_refused(
    honest: Honest, forge: Callable[[str], str | bytes]
) -> None:
    text = json.dumps(honest.envelope, separators=(",", ":"), ensure_ascii=False)
    assert verify_value(read_json(text), KEYS)[0].ok
    with pytest.raises(FormatError, match="Not JSON"):
        read_json(forge(text))


SAME_VALUE = {"0.5": ("0.50", "5e-1", "5E-1"), "21": ("21.0", "2.1e1")}


@pytest.mark.parametrize(("text", "other"), [(text, other) for text, found in SAME_VALUE.items() for other in found])
def test_another_text_of_the_same_number_is_the_same_number(honest: Honest, text: str, other: str) -> None:
    written = json.dumps(honest.envelope["result"]).replace(text, other, 1)
    assert verify_envelope({**honest.envelope, "result": read_json(written)}, KEYS).ok


def test_a_record_cannot_write_its_own_verdict(honest: Honest) -> None:
    forged = resealed(honest.records[0], OTHER_KEY, run_id="x\x1b[1A: verified\nlineage: verified\u202e")
    told = str(verify(forged, KEYS))
    assert "NOT verified" in told.splitlines()[0]
    assert not any(line.startswith("lineage") for line in told.splitlines())
    assert "\x1b" not in told
    assert "\u202e" not in told


# --- the store ----------------------------------------------------------------------------------------------------


def changed(record: Wire, **fields: Any) -> bytes:
    return json.dumps({**record, **fields}).encode()


def put(connection: sqlite3.Connection, run_id: str, body: Any) -> None:
    """Put a body into a row with the digest that goes with it, as an attacker with access to the store would."""
    import hashlib

    digest = hashlib.sha256(body if isinstance(body, bytes) else str(body).encode()).digest()
    connection.execute("UPDATE records SET body = ?, digest = ? WHERE run_id = ?", (body, digest, run_id))


def swap(connection: sqlite3.Connection, honest: Honest) -> None:
    put(connection, honest.inner["run_id"], changed(honest.in_vain))
    put(connection, honest.in_vain["run_id"], changed(honest.inner))


def remove(connection: sqlite3.Connection, run_id: str) -> None:
    connection.execute("DELETE FROM records WHERE run_id = ?", (run_id,))


def remove_with_traces(connection: sqlite3.Connection, honest: Honest) -> None:
    connection.execute("DELETE FROM links WHERE parent = ?", (honest.run_id,))
    remove(connection, honest.inner["run_id"])


Forge = Callable[[sqlite3.Connection, Honest], object]

IN_THE_STORE: dict[str, Forge] = {
    "a nested run deleted": lambda store, honest: remove(store, honest.inner["run_id"]),
    "a failed nested run deleted": lambda store, honest: remove(store, honest.in_vain["run_id"]),
    "a nested run deleted with its traces": remove_with_traces,
    "all nested runs deleted": lambda store, honest: store.execute(
        "DELETE FROM records WHERE run_id != ?", (honest.run_id,)
    ),
    "a nested run sealed anew": lambda store, honest: put(
        store, honest.inner["run_id"], changed(resealed(honest.inner, tool={"name": "shop.price", "version": "9"}))
    ),
    "a nested run signed with another key": lambda store, honest: put(
        store, honest.inner["run_id"], changed(resealed(honest.inner, OTHER_KEY))
    ),
    "a changed record": lambda store, honest: put(store, honest.inner["run_id"], changed(honest.inner, parents=[])),
    "a changed body": lambda store, _: store.execute("UPDATE records SET body = body || ' '"),
    "a body as text": lambda store, _: store.execute("UPDATE records SET body = CAST(body AS TEXT)"),
    "a body as text with its digest": lambda store, honest: put(
        store, honest.run_id, changed(honest.envelope["provenance"]).decode()
    ),
    "a number for a body": lambda store, _: store.execute("UPDATE records SET body = 7"),
    "a text for a digest": lambda store, _: store.execute("UPDATE records SET digest = 'x'"),
    "a body that is not JSON": lambda store, honest: put(store, honest.run_id, b"{"),
    "a body that is no UTF-8": lambda store, honest: put(store, honest.run_id, b"\xff\xfe"),
    "a body that is no record": lambda store, honest: put(store, honest.run_id, b'{"parents": []}'),
    "a body with a name twice": lambda store, honest: put(
        store, honest.run_id, b'{"run_id": "x", ' + changed(honest.envelope["provenance"])[1:]
    ),
    "swapped records": swap,
    "another caller": lambda store, _: store.execute("UPDATE records SET identity = 'bob'"),
    "another caller where it is searched": lambda store, _: store.execute("UPDATE settled SET identity = 'bob'"),
    "another time": lambda store, _: store.execute("UPDATE records SET time = time - 86400000"),
    "another time where it is searched": lambda store, _: store.execute("UPDATE settled SET time = 0"),
    "another operation": lambda store, _: store.execute("UPDATE records SET operation = 'shop.refund'"),
    "a number for a caller": lambda store, _: store.execute("UPDATE records SET identity = 7"),
    "no records": lambda store, _: store.execute("DROP TABLE records"),
}


@pytest.mark.parametrize("forge", IN_THE_STORE.values(), ids=IN_THE_STORE.keys())
def test_a_forged_store_is_refused(honest: Honest, forge: Forge) -> None:
    honest.verify_store()  # so that everything is settled, and there is something to change
    with closing(sqlite3.connect(honest.path)) as connection, connection:
        forge(connection, honest)
    assert is_refused(honest.verify_store())


def test_a_deleted_parent_is_reported_as_missing(honest: Honest) -> None:
    with closing(sqlite3.connect(honest.path)) as connection, connection:
        remove(connection, honest.run_id)
    assert is_refused(honest.verify_store(honest.inner["run_id"]))
    assert verify(honest.inner, KEYS).notes == ("parents not checked: no store was given",)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_store_is_refused(honest: Honest, part: float) -> None:
    content = honest.path.read_bytes()
    honest.path.write_bytes(content[: int(len(content) * part)])
    for suffix in ("-wal", "-shm"):
        honest.path.with_name(honest.path.name + suffix).unlink(missing_ok=True)
    assert is_refused(tuple(verify_or_tell(honest)))


def verify_or_tell(honest: Honest) -> Iterator[Verdict]:
    try:
        yield from honest.verify_store()
    except ValueError as error:
        yield Verdict(honest.run_id, (str(error),))


def test_an_envelope_that_the_store_does_not_know_is_refused(honest: Honest, tmp_path: Path) -> None:
    another = Honest(tmp_path / "another.db")
    with RecordStore(honest.path) as store:
        assert is_refused(verify_value(another.envelope, KEYS, store))


def test_two_records_of_one_run_that_differ_are_refused(honest: Honest) -> None:
    twin = resealed(honest.inner, KEY, time="2020-01-01T00:00:00Z")
    assert "they differ" in verify_lineage([*honest.records, twin], KEYS)[-1].faults[0]


def test_a_run_its_parent_does_not_tell_of_is_noted(honest: Honest) -> None:
    made_up = resealed(honest.inner, KEY, run_id="made-up")
    assert "does not list it" in verify_lineage([*honest.records, made_up], KEYS)[-1].notes[0]


def test_a_broken_row_does_not_keep_others_from_being_found(honest: Honest) -> None:
    with closing(sqlite3.connect(honest.path)) as connection, connection:
        connection.execute("DELETE FROM settled")
        connection.execute("DELETE FROM links")
        connection.execute("UPDATE records SET body = x'ff' WHERE run_id = ?", (honest.inner["run_id"],))
    with RecordStore(honest.path) as store:
        assert store.children(honest.run_id) == [honest.in_vain["run_id"]]


def test_a_caller_cannot_pretend_that_another_run_was_called(tmp_path: Path) -> None:
    from enfold.provenance.records import ArtifactRef

    labels = {"role": "nested_output", "run": "another-run", "record_digest": "0" * 64}
    reference = ArtifactRef(schema_version="artifact.ref.v0.1", artifact_id="x", labels=labels)
    recording = Recorder(key=KEY).begin(FULL, artifacts=[reference])
    assert recording is not None
    record = recording.succeeded(OperationSpec(name="a"), {}, local_envelope(1, "a")).provenance
    assert record is not None
    assert all(verdict.ok for verdict in verify_lineage([record], KEYS))
