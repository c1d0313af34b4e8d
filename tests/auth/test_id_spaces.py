"""Callers of several issuers, of a token file and of the shell have different ids, whatever their tokens say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from enfold import CallError, Identity
from enfold.auth.issuers import Issuer, Issuers
from enfold.auth.token_file import TokenFile, add_token
from enfold.auth.tokens import AnyOf, Tokens, tokens_from_environment

APP = '''
from enfold import Context, OperationRegistry

ops = OperationRegistry("shop")

@ops.query
def me(context: Context) -> str:
    """Say who calls."""
    return context.identity.id

@ops.mutation(durable=True)
def order(what: str, context: Context) -> str:
    """Order something."""
    return f"{what} for {context.identity.id}"
'''
COMPANY, PARTNER = "https://login.example.com", "https://login.partner.example"


class RealIssuer:
    """An issuer with one key, whose public half is in a file."""

    def __init__(self, url: str, keys: Path) -> None:
        self.url, self.keys = url, keys
        self._key = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
        keys.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))

    def token(self, subject: str) -> str:
        claims = {"iss": self.url, "aud": "shop", "sub": subject, "exp": int(time.time() + 600)}
        return jwt.encode({"alg": "ES256", "kid": "one"}, claims, self._key)

    def table(self, prefix: str | None) -> str:
        given = "" if prefix is None else f"prefix = {json.dumps(prefix)}\n"
        return f'[[auth.issuers]]\nissuer = "{self.url}"\naudiences = ["shop"]\njwks = "{self.keys.name}"\n{given}'


@pytest.fixture
def company(tmp_path: Path) -> RealIssuer:
    return RealIssuer(COMPANY, tmp_path / "company.json")


@pytest.fixture
def partner(tmp_path: Path) -> RealIssuer:
    return RealIssuer(PARTNER, tmp_path / "partner.json")


def write_config(folder: Path, *tables: str) -> str:
    (folder / "app.py").write_text(APP)
    (folder / "enfold.toml").write_text("\n".join([*tables, '[sources.shop]\nfunctions = "app.py"\n']))
    return str(folder / "enfold.toml")


def started(*words: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "enfold", "serve", *words, "--port", "0"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})


@contextmanager
def served(*words: str, **variables: str) -> Iterator[str]:
    with started(*words, **variables) as server:
        assert server.stderr is not None
        try:
            said = [server.stderr.readline()]
            while "Ctrl-C" not in said[-1] and said[-1]:
                said.append(server.stderr.readline())
            line = next((line for line in said if "calls" in line), None)
            assert line is not None, "".join(said)
            yield line.split()[1].removesuffix("/functions/{id}")
        finally:
            server.kill()


def refusal(*words: str, **variables: str) -> tuple[int, str]:
    """The exit code of a server that does not start, and what it says."""
    with started(*words, **variables) as server:
        try:
            _, said = server.communicate(timeout=60)
        finally:
            server.kill()
    return server.returncode, said


def send(url: str, token: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(url, data, sent), timeout=30) as reply:  # noqa: S310  # our own server
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("first", ["token file", "issuer"])
def test_callers_of_another_issuer_see_nothing_of_callers_with_the_same_id(
    tmp_path: Path, company: RealIssuer, partner: RealIssuer, first: str
) -> None:
    """Ann was here first, from a token file or the company's issuer; then the partner's issuer is added."""
    tables, words = [partner.table("partner:")], []
    if first == "issuer":
        tables.append(company.table(""))
        ann = company.token("ann")
    else:
        ann = add_token(tmp_path / "tokens.json", "ann")
        words = ["--tokens", str(tmp_path / "tokens.json")]
    config = write_config(tmp_path, *tables)
    with served(config, *words, "--token", "the-owners-own-token") as base:
        order = f"{base}/functions/shop.order"
        for token in (ann, "the-owners-own-token"):
            status, body = send(order, token, {"what": "tea"}, Idempotency_Key="one")
            assert status == 200, body
        _, task = send(order, ann, {"what": "coffee"}, Prefer="respond-async")
        assert send(f"{base}/functions/shop.me", ann) == (200, {"result": "ann"})
        for subject in ("owner", "local"):
            assert send(f"{base}/functions/shop.me", partner.token(subject))[0] == 401
            assert send(order, partner.token(subject), {"what": "tea"}, Idempotency_Key="one")[0] == 401
        theirs = partner.token("ann")
        assert send(f"{base}/functions/shop.me", theirs) == (200, {"result": "partner:ann"})
        assert send(order, theirs, {"what": "tea"}, Idempotency_Key="one") == (200, {"result": "tea for partner:ann"})
        assert send(f"{base}/tasks/{task['taskId']}", theirs)[0] == 404
        assert send(f"{base}/tasks/{task['taskId']}", ann)[0] == 200
        if first == "issuer":  # the company's people cannot enter the partner's space
            assert send(f"{base}/functions/shop.me", company.token("partner:ann"))[0] == 401


def test_adding_an_issuer_orphans_no_task(tmp_path: Path, company: RealIssuer, partner: RealIssuer) -> None:
    store = ["--tasks", str(tmp_path / "tasks.db")]
    with served(write_config(tmp_path, company.table(None)), *store) as base:
        _, task = send(f"{base}/functions/shop.order", company.token("ann"), {"what": "tea"}, Prefer="respond-async")
    config = write_config(tmp_path, company.table(""), partner.table("partner:"))
    with served(config, *store) as base:
        assert send(f"{base}/tasks/{task['taskId']}", company.token("ann"))[0] == 200
        assert send(f"{base}/tasks/{task['taskId']}", partner.token("ann"))[0] == 404


def test_a_second_source_of_identities_needs_a_prefix(tmp_path: Path, company: RealIssuer, partner: RealIssuer) -> None:
    add_token(tmp_path / "tokens.json", "ann")
    listed = ["--tokens", str(tmp_path / "tokens.json")]
    cases: list[tuple[list[str | None], list[str], str]] = [
        ([None], listed, "set its prefix"),
        ([None], ["--token", "mine"], "set its prefix"),
        ([""], listed, "need a prefix"),
        ([None, "partner:"], [], "set its prefix"),
        (["", ""], [], "need a prefix"),
        (["p:", "p:"], [], "overlap"),
        (["p:", "p:q:"], [], "overlap"),
        (["a", "b:"], [], "must end with a delimiter"),
    ]
    for prefixes, words, sentence in cases:
        tables = [issuer.table(prefix) for issuer, prefix in zip((company, partner), prefixes, strict=False)]
        code, said = refusal(write_config(tmp_path, *tables), *words)
        assert (code, sentence in said, "Traceback" in said) == (2, True, False), said
    app = str(tmp_path / "app.py")
    issuer = ["--issuer", COMPANY, "--audience", "shop"]
    assert "--issuer-prefix" in refusal(app, *listed, *issuer)[1]
    assert "set its prefix" in refusal(app, *issuer, ENFOLD_TOKENS='[{"id": "ann", "token": "very-secret"}]')[1]
    with served(app, *listed, *issuer, "--issuer-prefix", "partner:"):
        pass


# --- in a program -------------------------------------------------------------------------------------------------


def issuers(*prefixes: str | None) -> Issuers:
    named = zip((COMPANY, PARTNER), prefixes, strict=False)
    return Issuers([Issuer(issuer=url, audiences=("shop",), prefix=prefix) for url, prefix in named])


def test_issuers_and_token_lists_whose_ids_could_overlap_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set its prefix"):
        issuers(None, None)
    with pytest.raises(ValueError, match="listed twice"):
        Issuers([Issuer(issuer=COMPANY, audiences=(name,), prefix=f"{name}:") for name in ("a", "b")])
    ann = Tokens({"secret-of-ann": Identity("ann")})
    for prefix in (None, ""):
        with pytest.raises(ValueError, match="prefix"):
            AnyOf([ann, issuers(prefix)])
    AnyOf([issuers(None)])
    AnyOf([Tokens({"secret": Identity("owner", frozenset({"*"}))}), issuers("")])


async def test_a_token_list_cannot_name_callers_of_an_issuer() -> None:
    listed = Tokens({"one-secret": Identity("partner:ann"), "two-secret": Identity("ann")})
    both = AnyOf([listed, issuers("partner:")])
    assert await both.identify("one-secret") is None
    assert await both.identify("two-secret") == Identity("ann")


@pytest.mark.parametrize("name", ["owner", "local"])
def test_reserved_ids_are_refused_in_token_lists(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        add_token(tmp_path / "tokens.json", name)
    entries = [{"id": name, "token": f"sha256:{'0' * 64}"}]
    (tmp_path / "tokens.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="reserved"):
        TokenFile(tmp_path / "tokens.json")
    with pytest.raises(ValueError, match="reserved"):
        tokens_from_environment({"ENFOLD_TOKENS": json.dumps(entries)})


def test_a_revoked_token_beside_an_issuer_ends_waiting_tasks(tmp_path: Path) -> None:
    """Only ids with the issuer's prefix may be its callers'."""
    add_token(tmp_path / "tokens.json", "bob")
    both = AnyOf([TokenFile(tmp_path / "tokens.json"), issuers("partner:")])
    assert both.current(Identity("partner:ann")) is None
    assert both.current(Identity("bob")) == Identity("bob")
    with pytest.raises(CallError, match="no longer has a token"):
        both.current(Identity("ann"))
