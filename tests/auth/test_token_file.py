"""Token files: a token is shown once, changes take effect at once, and faults are reported."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from enfold import Identity
from enfold.auth.token_file import (
    TokenFile,
    add_token,
    list_tokens,
    read_duration,
    read_resources,
    revoke_tokens,
)

DAY = 86400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_new_token_is_accepted_and_not_stored_in_the_file(path: Path) -> None:
    token = add_token(path, "ann", scopes=["shop:order"], resources={"project:42": ["read"]})
    assert TokenFile(path).identify(token) == Identity("ann", frozenset({"shop:order"}), {"project:42": ["read"]})
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert [(entry.id, entry.scopes) for entry in list_tokens(path)] == [("ann", ["shop:order"])]


def test_a_changed_file_is_read_again_at_once(path: Path) -> None:
    ann = add_token(path, "ann")
    tokens = TokenFile(path)
    bob = add_token(path, "bob")
    assert tokens.identify(bob) == Identity("bob")
    revoke_tokens(path, "ann")
    assert (tokens.identify(ann), tokens.identify(bob)) == (None, Identity("bob"))
    path.unlink()
    assert tokens.identify(bob) is None


@pytest.mark.parametrize("entry", [{"token": "open-secret"}, {"token": "sha256:open-secret"}], ids=["plain", "no hash"])
def test_a_file_that_becomes_wrong_leaves_the_tokens_as_they_were(
    path: Path, caplog: pytest.LogCaptureFixture, entry: dict[str, str]
) -> None:
    ann = add_token(path, "ann")
    tokens = TokenFile(path)
    path.write_text(json.dumps([{"id": "bob", **entry}]))
    assert (tokens.identify(ann), tokens.identify("open-secret")) == (Identity("ann"), None)
    assert "previous tokens stay valid" in caplog.text
    assert "open-secret" not in caplog.text


def test_a_token_expires(path: Path) -> None:
    now = 1_800_000_000.0
    short = add_token(path, "ann", seconds=DAY, now=now)
    long = add_token(path, "ann", seconds=2 * DAY, now=now)
    tokens = TokenFile(path, clock=lambda: now)
    assert tokens.identify(short) is not None
    now += DAY
    assert (tokens.identify(short), tokens.identify(long)) == (None, Identity("ann"))
    now += DAY
    assert tokens.identify(long) is None


def test_a_token_is_revoked_by_its_owner_or_by_its_short_name(path: Path) -> None:
    kept, gone = add_token(path, "ann"), add_token(path, "ann")
    short = list_tokens(path)[1].short
    assert [entry.short for entry in revoke_tokens(path, short)] == [short]
    tokens = TokenFile(path)
    assert (tokens.identify(kept), tokens.identify(gone)) == (Identity("ann"), None)
    assert len(revoke_tokens(path, "ann")) == 1
    assert revoke_tokens(path, "ann") == []


def test_two_who_add_at_the_same_time_both_find_their_token(path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        tokens = pool.starmap(add_token, [(path, f"user-{number}") for number in range(20)])
    found = TokenFile(path)
    assert [found.identify(token) for token in tokens] == [Identity(f"user-{number}") for number in range(20)]


@pytest.mark.parametrize(
    "entries",
    [
        [{"id": "ann"}],
        [{"id": "ann", "token": "secret"}],
        [{"id": "ann", "token": "sha256:12"}],
        [{"id": "ann", "token": "sha256:" + "0" * 64, "expires": "tomorrow"}],
        [{"id": "ann", "token": "sha256:" + "0" * 64, "expires": "2030-01-01T00:00:00"}],
        [{"id": "ann", "token": "sha256:" + "0" * 64, "scope": "x"}],
        {},
    ],
    ids=["no token", "in clear", "half a hash", "no time", "no time zone", "an unknown key", "no list"],
)
def test_a_file_that_is_wrong_is_reported_at_the_start(path: Path, entries: object) -> None:
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"tokens\.json|hash") as raised:
        TokenFile(path)
    assert "secret" not in str(raised.value)


def test_a_token_needs_an_owner_whose_name_can_be_printed(path: Path) -> None:
    for owner in ("", "ann\nbob"):
        with pytest.raises(ValueError, match="owner"):
            add_token(path, owner)


def test_times_and_resources_are_read_as_people_write_them() -> None:
    assert [read_duration(text) for text in ("30m", "12h", "90d", "2w")] == [1800, 43200, 90 * DAY, 14 * DAY]
    for text in ("", "d", "90", "-1d", "1.5h", "0d", "9999999999d"):
        with pytest.raises(ValueError, match="is not a duration"):
            read_duration(text)
    assert read_resources(["project:42=read,list", "project:*=list"]) == {
        "project:42": ["read", "list"],
        "project:*": ["list"],
    }
    assert read_resources([]) is None
    with pytest.raises(ValueError, match="is not a resource"):
        read_resources(["project"])
