"""The command `enfold token`: a token is printed once, listed by its short name, and revoked."""

from pathlib import Path

import pytest

from enfold import Identity
from enfold.auth.token_file import TokenFile
from enfold.commands.token import run
from enfold.errors import CallError


def test_a_token_is_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.json")
    words = ["new", "--id", "ann", "--scope", "shop:order", "--resource", "project:42=read", "--expires", "90d"]
    assert run([*words, "--file", file], None) == 0
    token = capsys.readouterr().out.strip()
    found = TokenFile(file).identify(token)
    assert found == Identity("ann", frozenset({"shop:order"}), {"project:42": ["read"]})
    assert run(["list", "--file", file], None) == 0
    short, owner, allowed, _ = capsys.readouterr().out.rstrip("\n").split("\t")
    assert (owner, allowed) == ("ann", "shop:order project:42=read")
    assert run(["revoke", short, "--file", file], None) == 0
    assert TokenFile(file).identify(token) is None


@pytest.mark.parametrize(
    "words",
    [["revoke", "unknown"], ["new", "--id", "ann", "--expires", "soon"], ["new", "--id", "ann", "--resource", "x"]],
    ids=["unknown id", "no time", "no resource"],
)
def test_impossible_requests_are_reported(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(CallError) as raised:
        run([*words, "--file", str(tmp_path / "tokens.json")], None)
    assert raised.value.code == "VALIDATION_ERROR"
