"""The settings of a login in a configuration, and the messages for wrong ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from enfold import CallError
from enfold.app.file import Logins, read_config
from enfold.app.reconciler import open_config
from enfold.app.sources import auth_of
from enfold.sources.mcp.oauth import AssertionLogin, Auth, ClientCredentials, UserLogin
from enfold.sources.secrets import current

ROOT = Path(__file__).parents[3]


def read_auth(path: Path, environ: dict[str, str] | None = None) -> Auth | None:
    config = read_config(path, environ or {})
    return auth_of(config.sources[-1].entry.get("auth"), Logins(), config.folder)


def test_the_file_on_the_page_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "mcp-login.md").read_text()
    path = tmp_path / "enfold.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    config = read_config(path, {"REPORTS_SECRET": "s3cret"})
    logins = [auth_of(source.entry["auth"], config.logins, config.folder) for source in config.sources]
    program = ClientCredentials(client_id="nightly", client_secret="s3cret", scopes=("reports:read",))
    assert logins == [UserLogin(), program]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": {}}, UserLogin()),
        ({"auth": "oauth"}, UserLogin()),
        ({"oauth": True}, UserLogin()),
        ({"oauth": False}, None),
        ({"auth": {"client_id": "a", "redirect_port": 8123}}, UserLogin(client_id="a", redirect_port=8123)),
        (
            {"oauth": {"clientId": "a", "callbackPort": 8123, "enabled": True}},
            UserLogin(client_id="a", redirect_port=8123),
        ),
        (
            {"auth": {"CLIENT_ID": "a", "CLIENT_SECRET": "${S}", "scopes": ["x"]}},
            UserLogin(client_id="a", client_secret="b", scopes=("x",)),
        ),
        ({"auth": {"scope": "x y"}}, UserLogin(scopes=("x", "y"))),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_an_editors_words_for_a_login_are_understood(
    tmp_path: Path, entry: dict[str, Any], expected: Auth | None
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"x": {"url": "https://x.org/mcp", **entry}}}))
    assert read_auth(path, {"S": "b"}) == expected


async def test_a_statement_is_read_again_each_time(tmp_path: Path) -> None:
    (tmp_path / "enfold.toml").write_text(
        '[sources.x]\nurl = "https://x.org/mcp"\nauth = {grant = "jwt_bearer", assertion_file = "token"}\n'
    )
    login = read_auth(tmp_path / "enfold.toml")
    assert isinstance(login, AssertionLogin)
    for words in ("first", "second"):
        (tmp_path / "token").write_text(f"{words}\n")
        assert await current(login.assertion) == words


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('auth = "yes"', 'line 3: "auth" must be a table'),
        ("auth = {client = 1}", 'line 3: "client" is not known here: did you mean "client_id"?'),
        ("[sources.x.auth]\nissuer = 1", 'line 4: "issuer" must be a string'),
        ("[sources.x.auth]\n\nredirect_port = 70000", 'line 5: "redirect_port" must be a port'),
        ('auth = {grant = "password"}', 'line 3: "grant" must be authorization_code, client_credentials or jwt_bearer'),
        ('credentials = "t"\nauth = {}', 'line 4: "auth" cannot be combined with "credentials": remove one of them'),
    ],
)
def test_mistakes_in_a_login_are_reported_with_their_location(tmp_path: Path, lines: str, expected: str) -> None:
    path = tmp_path / "enfold.toml"
    path.write_text(f'[sources.x]\nurl = "https://x.org/mcp"\n{lines}\n')
    with pytest.raises(CallError) as caught:
        read_config(path, {})
    assert caught.value.message.removeprefix(f"{path}, ").startswith(expected)


def test_a_mistake_in_an_editors_file_is_reported_too(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"x": {"url": "https://x.org/mcp",\n"auth": {"client_idd": "a"}}}}')
    with pytest.raises(CallError, match='line 2: "client_idd" is not known here: did you mean "client_id"'):
        read_config(path, {})


def test_a_key_that_is_not_there_is_reported_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "enfold.toml"
    path.write_text('[sources.x]\nurl = "https://x.org/mcp"\nauth = {private_key_file = "key.pem"}\n')
    with pytest.raises(CallError, match=r"Cannot read key\.pem, which the login requires"):
        read_auth(path)


async def test_credentials_and_a_login_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "enfold.toml"
    path.write_text('[sources.x]\nurl = "https://x.org/mcp"\nauth = {}\ncredentials = "t"\n')
    with pytest.raises(CallError, match='"auth" cannot be combined with "credentials"'):
        async with open_config(path, {}):
            pass
