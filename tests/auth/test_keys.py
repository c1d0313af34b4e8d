"""Keys of an issuer: found by discovery, fetched no more often than documented, changed, withdrawn, and kept while it is unreachable."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.auth.little_issuer import AUDIENCE, ISSUER, Clock, LittleIssuer, public

from enfold.auth.issuers import Issuer, Issuers, discover, read_issuers

TRUSTED = Issuer(issuer=ISSUER, audiences=(AUDIENCE,))
HOUR = 3600


@pytest.fixture
def issuer() -> LittleIssuer:
    return LittleIssuer(Clock())


@pytest.fixture
def verifier(issuer: LittleIssuer) -> Issuers:
    return Issuers([TRUSTED], fetch=issuer.fetch, clock=issuer.clock)


async def lets_in(verifier: Issuers, token: str) -> bool:
    return await verifier.identify(token) is not None


async def test_the_keys_are_fetched_once_for_many_tokens(issuer: LittleIssuer, verifier: Issuers) -> None:
    assert all(await asyncio.gather(*(lets_in(verifier, issuer.token()) for _ in range(50))))
    assert issuer.fetched == [f"{ISSUER}/.well-known/openid-configuration", "https://login.example.com/keys"]


async def test_the_keys_are_fetched_again_after_ten_minutes(issuer: LittleIssuer, verifier: Issuers) -> None:
    assert await lets_in(verifier, issuer.token())
    issuer.clock.move(599)
    assert await lets_in(verifier, issuer.token())
    assert len(issuer.fetched) == 2
    issuer.clock.move(1)
    assert await lets_in(verifier, issuer.token())
    assert len(issuer.fetched) == 4


async def test_a_new_key_is_taken_at_once_though_not_within_thirty_seconds(
    issuer: LittleIssuer, verifier: Issuers
) -> None:
    assert await lets_in(verifier, issuer.token())
    issuer.shown.append("r2")
    issuer.clock.move(29)
    assert not await lets_in(verifier, issuer.token("r2"))
    assert len(issuer.fetched) == 2
    issuer.clock.move(1)
    assert await lets_in(verifier, issuer.token("r2"))


async def test_made_up_keys_do_not_make_us_fetch(issuer: LittleIssuer, verifier: Issuers) -> None:
    for number in range(100):
        assert not await lets_in(verifier, issuer.token(header={"kid": f"made-up-{number}"}))
    assert len(issuer.fetched) == 2
    assert await lets_in(verifier, issuer.token())


async def test_a_withdrawn_key_is_refused(issuer: LittleIssuer, verifier: Issuers) -> None:
    assert await lets_in(verifier, issuer.token())
    issuer.shown = ["e1"]
    assert await lets_in(verifier, issuer.token())  # the withdrawal is not known yet
    issuer.clock.move(600)
    assert not await lets_in(verifier, issuer.token())
    assert await lets_in(verifier, issuer.token("e1"))


async def test_a_key_that_was_withdrawn_between_calls_is_refused_at_once(
    issuer: LittleIssuer, verifier: Issuers
) -> None:
    assert await lets_in(verifier, issuer.token())
    issuer.shown = []
    issuer.clock.move(5 * HOUR)
    assert not await lets_in(verifier, issuer.token())


async def test_calls_continue_for_hours_while_the_issuer_is_unreachable(
    issuer: LittleIssuer, verifier: Issuers
) -> None:
    assert await lets_in(verifier, issuer.token())
    issuer.is_away = True
    for _ in range(6 * 60):
        issuer.clock.move(60)
        assert await lets_in(verifier, issuer.token())
    asked = len(issuer.fetched)
    issuer.is_away = False
    issuer.shown = ["e1"]
    issuer.clock.move(30)
    assert not await lets_in(verifier, issuer.token())
    assert len(issuer.fetched) == asked + 2


async def test_while_it_is_unreachable_one_call_waits_and_the_others_continue(issuer: LittleIssuer) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def fetch(url: str) -> bytes:
        if issuer.is_away:
            asked.set()
            await answer.wait()
        return await issuer.fetch(url)

    verifier = Issuers([TRUSTED], fetch=fetch, clock=issuer.clock)
    assert await lets_in(verifier, issuer.token())
    issuer.is_away = True
    issuer.clock.move(600)
    first = asyncio.create_task(lets_in(verifier, issuer.token()))
    await asked.wait()
    assert all([await lets_in(verifier, issuer.token()) for _ in range(10)])
    assert not first.done()
    answer.set()
    assert await first


async def test_tokens_of_an_issuer_are_rejected_until_it_has_been_reached(
    issuer: LittleIssuer, verifier: Issuers
) -> None:
    issuer.is_away = True
    assert not await lets_in(verifier, issuer.token())
    issuer.is_away = False
    assert not await lets_in(verifier, issuer.token())
    issuer.clock.move(30)
    assert await lets_in(verifier, issuer.token())


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"keys": 7}', b"<html>", b"\xff"])
async def test_an_answer_that_is_not_a_key_set_leaves_the_keys_as_they_were(
    issuer: LittleIssuer, answer: bytes
) -> None:
    answers: list[bytes] = []

    async def fetch(url: str) -> bytes:
        return answers[0] if answers and url.endswith("keys") else await issuer.fetch(url)

    verifier = Issuers([TRUSTED], fetch=fetch, clock=issuer.clock)
    assert await lets_in(verifier, issuer.token())
    answers.append(answer)
    issuer.clock.move(600)
    assert await lets_in(verifier, issuer.token())


async def test_keys_in_a_file_are_read_again_when_it_changes(issuer: LittleIssuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(issuer.key_set())
    trusted = Issuer(issuer=ISSUER, audiences=(AUDIENCE,), jwks=str(path))
    verifier = Issuers([trusted], fetch=issuer.fetch, clock=issuer.clock)
    assert await lets_in(verifier, issuer.token())
    path.write_text(json.dumps({"keys": [public("e1")]}))
    assert not await lets_in(verifier, issuer.token())
    assert await lets_in(verifier, issuer.token("e1"))
    path.unlink()
    assert not await lets_in(verifier, issuer.token("e1"))
    assert issuer.fetched == []


# --- discovery ----------------------------------------------------------------------------------------------------


def published(documents: dict[str, Any]) -> Any:
    async def fetch(url: str) -> bytes:
        if url not in documents:
            raise OSError("nothing there")
        return json.dumps(documents[url]).encode()

    return fetch


async def test_the_document_of_rfc_8414_is_found_too() -> None:
    there = "https://login.example.com/.well-known/oauth-authorization-server/realm"
    fetch = published({there: {"issuer": ISSUER, "jwks_uri": "https://keys.example.com/"}})
    assert await discover(ISSUER, fetch) == "https://keys.example.com/"


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://evil.example.com", "jwks_uri": "https://evil.example.com/keys"},
        {"issuer": ISSUER, "jwks_uri": "http://login.example.com/keys"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER},
        [],
    ],
    ids=["another issuer", "keys over http", "keys in a file", "no keys", "no document"],
)
async def test_a_document_that_cannot_be_trusted_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        await discover(ISSUER, published({f"{ISSUER}/.well-known/openid-configuration": document}))


# --- what an operator says ----------------------------------------------------------------------------------------


def test_issuers_are_read_from_a_table_or_a_list() -> None:
    one = {"issuer": ISSUER, "audiences": AUDIENCE, "claims": {"scopes": "realm_access.roles"}}
    found = read_issuers(one)[0]
    assert (found.audiences, found.claims.scopes) == ((AUDIENCE,), ("realm_access.roles",))
    assert read_issuers({"issuers": [one]}) == read_issuers([one]) == (found,)


WRONG: dict[str, dict[str, Any]] = {
    "http": {"issuer": "http://login.example.com"},
    "no URL": {"issuer": "login"},
    "no audience": {"audiences": []},
    "a shared secret": {"algorithms": ["HS256"]},
    "no algorithm at all": {"algorithms": "none"},
    "a long leeway": {"leeway": 3600},
    "keys over http": {"jwks": "http://login.example.com/keys"},
    "an unknown key": {"audience": "x"},
    "invalid claims": {"claims": {"id": 7}},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG.keys())
def test_mistakes_in_the_configuration_of_issuers_are_reported(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w{4}"):
        read_issuers({"issuer": ISSUER, "audiences": [AUDIENCE], **changed})
