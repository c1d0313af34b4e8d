"""Canonical JSON: one text for equal values, and digests over it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.provenance import canonical_json, digest_bytes, digest_json
from enfold.provenance.integrity import available_algorithms, digest_fault
from enfold.provenance.records import Algorithm, Digest


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": None, "c": [True, False]}}, '{"a":{"c":[true,false],"d":null},"b":1}'),
        ([1.0, -0.0, 1e21, 10**30], "[1,0,1000000000000000000000,1000000000000000000000000000000]"),
        ([0.1, 1e-7, 1.5e-10, -2.5], "[0.1,1e-7,1.5e-10,-2.5]"),
        ('a"\\/\b\f\n\r\t\x01\x7fé€😀', '"a\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7fé€😀"'),
        ({"\U00010000": 1, "￿": 2, "é": 3, "z": 4}, '{"z":4,"é":3,"￿":2,"\U00010000":1}'),
        ((), "[]"),
    ],
    ids=["keys", "whole numbers", "fractions", "escapes", "code-point order", "empty"],
)
def test_a_value_has_one_text(value: Any, text: str) -> None:
    assert canonical_json(value) == text.encode()


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), b"bytes", {1: 2}, {1, 2}, "\ud800", _endless()],
    ids=["NaN", "Infinity", "-Infinity", "bytes", "a number as key", "a set", "a lone surrogate", "a cycle"],
)
def test_a_value_without_a_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        canonical_json(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        return {key: shuffled(item, chance) for key, item in items}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@settings(max_examples=150)
@given(json_values, st.randoms(use_true_random=False), st.sampled_from([None, 0, 1, 4]), st.booleans())
def test_key_order_white_space_and_escapes_make_no_difference(
    value: Any, chance: random.Random, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(shuffled(value, chance), indent=indent, ensure_ascii=ascii_only)
    assert canonical_json(json.loads(text)) == canonical_json(value)


@settings(max_examples=150)
@given(json_values)
def test_the_text_is_json_of_an_equal_value_and_its_own_canonical_text(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


# --- digests ------------------------------------------------------------------------------------------------------

KNOWN = {
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "sha512": "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
    "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    "blake3": "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
}


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "blake3"])
def test_a_digest_is_lower_case_hex_of_its_length(algorithm: Algorithm) -> None:
    if algorithm not in available_algorithms():
        with pytest.raises(ValueError, match="blake3"):
            digest_bytes(b"abc", algorithm)
        return
    digest = digest_bytes(b"abc", algorithm)
    assert digest.value == KNOWN[algorithm]
    assert digest_fault(digest) is None


def test_the_digest_of_a_value_does_not_depend_on_its_key_order() -> None:
    assert digest_json({"a": 1, "b": 2.0}) == digest_json({"b": 2, "a": 1.0})


@pytest.mark.parametrize(
    "value",
    ["0" * 63, "0" * 65, "0" * 128, "A" * 64, "g" * 64, "0" * 63 + "\n"],
    ids=["short", "long", "of sha512", "upper case", "not hex", "a line end"],
)
def test_a_digest_in_another_form_is_a_fault(value: str) -> None:
    assert digest_fault(Digest("sha256", value)) is not None
