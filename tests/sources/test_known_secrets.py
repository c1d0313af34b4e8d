"""Secrets that a server repeats."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from enfold.sources.secrets import MAX_SECRETS, KnownSecrets

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


def test_a_text_without_the_token_is_unchanged() -> None:
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


@pytest.mark.parametrize("pad", range(3))
def test_a_secret_within_base64_is_hidden_and_the_rest_can_be_decoded(pad: int) -> None:
    known = KnownSecrets()
    known.remember("s3cret?of>ann~~~")
    for encode in (b64encode, urlsafe_b64encode):
        shown = known.redact_bytes(encode(b"x" * pad + b"s3cret?of>ann~~~ and more"))
        assert b"cret?of>ann~" not in urlsafe_b64decode(shown.replace(b"+", b"-").replace(b"/", b"_"))
        assert b" and more" in urlsafe_b64decode(shown.replace(b"+", b"-").replace(b"/", b"_"))


def test_a_secret_of_digits_leaves_json_that_can_be_read() -> None:
    known = KnownSecrets()
    known.remember_named({"pin": 86753091})
    assert json.loads(known.redact_bytes(b'{"a": 86753091, "b": "86753091"}')) == {"a": 99999999, "b": "99999999"}


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it() -> None:
    known = KnownSecrets()
    for secret in ("abcdefgh", "abcdefgh-and-more", "abcdefgh-and"):
        known.remember(secret)
    assert known.redact_bytes(b"abcdefgh-and-more abcdefgh") == b"[hidden] [hidden]"


@pytest.mark.parametrize(
    "values",
    [
        {"api_key": "very-secret"},
        {"X-Auth-Token": "very-secret"},
        {"GITHUB_PAT": "very-secret"},
        {"Authorization": "Bearer very-secret"},
        {"authorization": f"Basic {b64encode(b'ann:very-secret').decode()}"},
        {"Cookie": "a=1; session=very-secret"},
        {"login": {"password": "very-secret"}},
        {"keys": ["very-secret"]},
        {"DATABASE_URL": "postgres://ann:very-secret@db/x"},
        {"hook": "https://example.com/?api_key=very-secret"},
    ],
    ids=str,
)
def test_a_value_with_a_secret_name_is_hidden(values: dict[str, Any]) -> None:
    known = KnownSecrets()
    known.remember_named(values)
    assert known.redact("it is very-secret") == "it is [hidden]"


@pytest.mark.parametrize(
    "name",
    [
        "author",
        "authority",
        "keyword",
        "keyboard",
        "monkey",
        "tenant",
        "pinned",
        "path",
        "KEY_FILE",
        "token_type",
        "max_tokens",
        "SSH_AUTH_SOCK",
    ],
)
def test_a_value_without_a_secret_name_is_not_hidden(name: str) -> None:
    known = KnownSecrets()
    known.remember_named({name: "ann-example"})
    assert known.redact("ann-example") == "ann-example"


@pytest.mark.parametrize(
    "words",
    [
        ["--token=very-secret"],
        ["--api-key", "very-secret"],
        ["--header", "Authorization: Bearer very-secret"],
        ["--header", "X-Api-Key: very-secret"],
        ["postgres://ann:very-secret@db/x"],
    ],
    ids=str,
)
def test_secrets_on_a_command_line_are_hidden(words: list[str]) -> None:
    known = KnownSecrets()
    known.remember_words(["server", *words])
    assert known.redact("very-secret") == "[hidden]"


def test_a_short_secret_is_reported_once_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownSecrets("shop")
    for _ in range(2):
        known.remember_named({"token": "1234567"}, "fix")
    assert [record.getMessage() for record in caplog.records] == [
        "shop: the secret fix.token has fewer than 8 characters and is not redacted"
    ]
