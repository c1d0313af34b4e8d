import json
from pathlib import Path

import pytest

from enfold.auth.token_file import TokenFile
from enfold.auth.tokens import Tokens, bearer_token, hash_token, new_token, tokens_from_environment
from enfold.operations import Identity

ANN = Identity("ann", frozenset({"task:write"}))


def test_a_known_token_gives_its_identity_and_any_other_none() -> None:
    tokens = Tokens({"secret-of-ann": ANN})
    assert tokens.identify("secret-of-ann") == ANN
    assert [tokens.identify(token) for token in ("", "secret-of-an", "secret-of-ann ", "\ud800")] == [None] * 4


def test_a_hash_can_configure_a_token_but_not_authenticate() -> None:
    tokens = Tokens({hash_token("secret-of-ann"): ANN})
    assert tokens.identify("secret-of-ann") == ANN
    assert tokens.identify(hash_token("secret-of-ann")) is None


def test_no_token_is_kept_in_memory() -> None:
    tokens = Tokens({"secret-of-ann": ANN})
    assert "secret-of-ann" not in repr(tokens)
    assert "secret-of-ann" not in repr(vars(tokens))


def test_new_tokens_differ_and_are_long() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(first) > 40


def test_a_file_of_hashes_gives_identities_with_their_rights(tmp_path: Path) -> None:
    token = new_token()
    entry = {"id": "bob", "token": hash_token(token), "scopes": ["read"], "resources": {"project:*": ["list"]}}
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps([entry]))
    assert TokenFile(path).identify(token) == Identity("bob", frozenset({"read"}), {"project:*": ["list"]})


def test_a_file_with_a_token_in_clear_is_refused_with_the_hash_to_write_instead(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('[{"id": "bob", "token": "open-secret"}]')
    with pytest.raises(ValueError, match=hash_token("open-secret")) as refused:
        TokenFile(path)
    assert "open-secret" not in str(refused.value)


def test_a_variable_may_hold_tokens_in_clear() -> None:
    tokens = tokens_from_environment({"ENFOLD_TOKENS": '[{"id": "bob", "token": "open-secret"}]'})
    assert tokens is not None
    assert tokens.identify("open-secret") == Identity("bob")


def test_no_variable_means_no_tokens() -> None:
    assert tokens_from_environment({}) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("{", "ENFOLD_TOKENS", id="no JSON"),
        pytest.param('[{"id": "bob"}]', "token", id="no token"),
        pytest.param('[{"id": "bob", "token": "x", "scope": []}]', "scope", id="unknown field"),
        pytest.param('[{"id": "bob", "token": "sha256:12"}]', "64 hexadecimal digits", id="short hash"),
        pytest.param('[{"id": "bob", "token": "sha256:xy"}]', "hexadecimal", id="no hash"),
    ],
)
def test_a_list_that_cannot_be_read_is_reported_in_one_sentence(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        tokens_from_environment({"ENFOLD_TOKENS": text})


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", None), ("", None)],
)
def test_the_token_is_what_follows_bearer(header: str, token: str | None) -> None:
    assert bearer_token(header) == token
