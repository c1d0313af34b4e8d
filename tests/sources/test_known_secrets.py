"""Secrets that a server repeats."""

from __future__ import annotations

import json

import pytest

from enfold.sources.known_secrets import MAX_SECRETS, KnownSecrets

TOKEN = b"eyJhbGci/access-1+x=="
UPPER = "".join(f"\\u{each:04X}" for each in TOKEN).encode()
LOWER = "".join(f"\\u{each:04x}" for each in TOKEN).encode()


def knowing(*sent: str) -> KnownSecrets:
    known = KnownSecrets()
    for each in sent:
        known.remember_authorization(each)
    return known


KNOWN = knowing(f"Bearer {TOKEN.decode()}")


@pytest.mark.parametrize(
    "said",
    [
        TOKEN,
        b"Bearer " + TOKEN,
        UPPER,
        LOWER,
        LOWER[:6] + TOKEN[1:],
        TOKEN.replace(b"/", b"\\/"),
        json.dumps(LOWER.decode()).encode(),
        json.dumps(json.dumps(UPPER.decode())).encode(),
        json.dumps({"text": json.dumps({"sent": TOKEN.decode()})}).encode(),
    ],
)
def test_no_spelling_of_a_token_is_passed_on(said: bytes) -> None:
    shown = KNOWN.redact_bytes(b'{"a": "' + said + b'"}')
    assert b"[hidden]" in shown
    assert TOKEN[5:15] not in shown
    assert UPPER[30:60] not in shown


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("is_ascii", [True, False], ids=["ascii", "utf-8"])
def test_a_password_with_characters_that_json_escapes_is_hidden(layers: int, is_ascii: bool) -> None:
    known = KnownSecrets()
    known.remember('pä"ss\\wörd\nlong')
    said = 'pä"ss\\wörd\nlong'
    for _ in range(layers):
        said = json.dumps(said, ensure_ascii=is_ascii)
    assert "rd" not in known.redact_bytes(said.encode()).decode()


def test_a_text_without_the_token_stays_as_it_is() -> None:
    said = rb'{"path": "C:\\users\\u0041", "letter": "\u0041", "slash": "\/"}'
    assert KNOWN.redact_bytes(said) == said


def test_a_short_token_is_not_looked_for() -> None:
    assert knowing("Basic a").redact_bytes(b"Basic a") == b"Basic a"


def test_the_newest_secrets_are_hidden_and_old_ones_forgotten() -> None:
    tokens = [f"token-{number:04}" for number in range(MAX_SECRETS + 1)]
    known = knowing(*tokens, tokens[-1])
    assert known.redact(tokens) == [tokens[0], *["[hidden]"] * MAX_SECRETS]


def test_many_backslashes_do_not_stop_the_process() -> None:
    said = b"\\" * 1_000_000 + b"u00"
    assert KNOWN.redact_bytes(said) == said
