"""Logging in to MCP servers: a real authorization server and a real protected server, each at its own address."""

import asyncio
import base64
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import msgspec
import pytest
from tests.serving import serve
from tests.sources.mcp.oauth_servers import Authority, Form, Vault

from enfold import CallError, OperationRegistry
from enfold.app.file import Logins
from enfold.app.reconciler import open_config
from enfold.sources.mcp import Connection, MCPLimits, from_mcp
from enfold.sources.mcp.oauth import (
    ClientCredentials,
    FileStore,
    LoginStore,
    MemoryStore,
    RegisteredClient,
    Saved,
    UserLogin,
)
from enfold.sources.options import Selection


class Stage:
    """A server at a fixed address whose part is played by another app in each test."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def stages() -> Iterator[list[tuple[Stage, str]]]:
    """Three addresses, because starting a server takes longer than any of the tests."""
    with ExitStack() as stack:
        built = [Stage() for _ in range(3)]
        yield [(stage, f"http://127.0.0.1:{stack.enter_context(serve(stage)).port}") for stage in built]


@pytest.fixture
def vault(stages: list[tuple[Stage, str]]) -> Vault:
    """A protected server and its authorization server."""
    (first, url), (second, its_url), _ = stages
    authority = Authority(its_url)
    first.app, second.app = Vault(authority, url), authority
    found: Vault = first.app
    return found


@pytest.fixture
def second(stages: list[tuple[Stage, str]]) -> Authority:
    """Another authorization server."""
    stage, url = stages[2]
    stage.app = found = Authority(url)
    return found


async def browser(url: str) -> None:
    """A user who agrees to everything."""
    async with httpx2.AsyncClient(follow_redirects=True) as client:
        page = await client.get(url)
        assert "You can close this page" in page.text


@asynccontextmanager
async def opened(vault: Vault, **auth: Any) -> AsyncIterator[OperationRegistry]:
    login = auth.pop("login", None) or UserLogin(**{"open_url": browser, **auth})
    async with from_mcp(f"{vault.url}/mcp", auth=login, connection=Connection(protocol="2025-11-25")) as operations:
        registry = OperationRegistry()
        registry.register_all(operations)
        yield registry


def let_end(store: LoginStore, vault: Vault) -> None:
    """Make it so late that the token has just ended."""
    saved = store.load(f"{vault.url}/mcp")
    assert saved is not None
    assert saved.tokens is not None
    tokens = msgspec.structs.replace(saved.tokens, until=time.time())
    store.save(f"{vault.url}/mcp", msgspec.structs.replace(saved, tokens=tokens))


async def refused(vault: Vault, **auth: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        async with opened(vault, **auth):
            pass
    return caught.value


# --- a user -------------------------------------------------------------------------------------------------------


async def test_a_user_logs_in_once_and_every_call_carries_their_token(vault: Vault) -> None:
    async with opened(vault) as ops:
        assert not (await ops.execute("read", {})).is_error
        await ops.execute("read", {})
    [registered], [asked], [granted] = vault.authority.registered, vault.authority.asked, vault.authority.granted
    assert registered["application_type"] == "native"
    assert registered["redirect_uris"] == [asked["redirect_uri"]]
    assert (asked["client_id"], asked["scope"], asked["code_challenge_method"]) == ("client-1", "read", "S256")
    assert asked["resource"] == granted["resource"] == f"{vault.url}/mcp"
    assert set(vault.seen) == {"access-1"}


async def test_the_newest_revision_is_found_behind_a_login_too(vault: Vault) -> None:
    auth = UserLogin(open_url=browser)
    async with from_mcp(f"{vault.url}/mcp", auth=auth, selection=Selection(include="read")) as operations:
        assert [operation.spec.name for operation in operations] == ["read"]
    assert len(vault.authority.asked) == 1


async def test_a_slow_user_has_longer_than_a_slow_server(vault: Vault) -> None:
    async def slow_browser(url: str) -> None:
        await asyncio.sleep(2.5)
        await browser(url)

    limits = MCPLimits(connect=2.0, probe=1.0)
    async with from_mcp(
        f"{vault.url}/mcp", auth=UserLogin(open_url=slow_browser), connection=Connection(limits=limits)
    ) as operations:
        assert len(operations) == 3


async def test_many_calls_at_once_log_in_only_once(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        vault.authority.refreshes.clear()
        await asyncio.gather(*(ops.execute("read", {}) for _ in range(10)))
    assert len(vault.authority.asked) == 2


async def test_a_token_near_its_end_is_renewed_before_it_is_refused(vault: Vault) -> None:
    store = MemoryStore()
    for _ in range(4):
        async with opened(vault, store=store) as ops:
            await ops.execute("read", {})
        let_end(store, vault)
    grants = [form["grant_type"] for form in vault.authority.granted]
    assert grants == ["authorization_code", "refresh_token", "refresh_token", "refresh_token"]
    assert [form["refresh_token"] for form in vault.authority.granted[1:]] == ["refresh-1", "refresh-2", "refresh-3"]
    assert vault.refusals == 1


async def test_a_token_that_ends_meanwhile_is_renewed_in_time(vault: Vault) -> None:
    vault.authority.life = 2.0
    async with opened(vault) as ops:
        await asyncio.sleep(1.25)
        await ops.execute("read", {})
    assert [form["grant_type"] for form in vault.authority.granted[:2]] == ["authorization_code", "refresh_token"]
    assert vault.refusals == 1


async def test_a_refusal_that_arrives_late_does_not_renew_again(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        vault.dawdles = 0.5
        await asyncio.gather(ops.execute("read", {}), ops.execute("read", {}))
    assert [form["grant_type"] for form in vault.authority.granted] == ["authorization_code", "refresh_token"]


async def test_many_calls_at_once_renew_a_refused_token_only_once(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        await asyncio.gather(*(ops.execute("read", {}) for _ in range(10)))
    assert [form["grant_type"] for form in vault.authority.granted] == ["authorization_code", "refresh_token"]


async def test_an_authority_that_does_not_rotate_keeps_its_refresh_token(vault: Vault) -> None:
    vault.authority.rotates = False
    async with opened(vault) as ops:
        for _ in range(2):
            vault.authority.tokens.clear()
            await ops.execute("read", {})
    assert [form["grant_type"] for form in vault.authority.granted[1:]] == ["refresh_token"] * 2


async def test_a_user_is_asked_again_where_the_renewal_is_refused(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        vault.authority.refreshes.clear()
        await ops.execute("read", {})
    grants = [form["grant_type"] for form in vault.authority.granted]
    assert grants == ["authorization_code", "refresh_token", "authorization_code"]


async def test_a_call_that_needs_more_asks_for_that_and_for_what_was_there(vault: Vault) -> None:
    async with opened(vault) as ops:
        assert not (await ops.execute("write", {})).is_error
    assert [asked["scope"] for asked in vault.authority.asked] == ["read", "read write"]


async def test_the_same_scopes_are_asked_for_only_once(vault: Vault) -> None:
    async with opened(vault) as ops:
        await ops.execute("write", {})
        for token in vault.authority.tokens:
            vault.authority.tokens[token] = "read"
        with pytest.raises(CallError) as caught:
            await ops.execute("write", {})
    assert caught.value.code == "ACCESS_DENIED"
    assert "requires the scope write" in caught.value.message
    assert len(vault.authority.asked) == 2


async def test_a_token_that_is_never_accepted_ends_the_call(vault: Vault) -> None:
    giver = vault.authority
    vault.authority = Authority(giver.url)  # of whose tokens there are none
    error = await refused(vault)
    assert error.code == "ACCESS_DENIED"
    assert "does not accept the token" in error.message
    assert len(giver.asked) == 1


@pytest.mark.parametrize(
    ("metadata", "answer", "words"),
    [
        ({"issuer": "https://elsewhere.example"}, {}, "another issuer"),
        ({"code_challenge_methods_supported": None}, {}, "PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, {}, "PKCE"),
        ({"token_endpoint": "http://elsewhere.example/token"}, {}, "https"),
        ({"registration_endpoint": None}, {}, "client_id"),
        ({}, {"iss": "https://elsewhere.example"}, "another authorization server"),
        ({}, {"iss": ""}, "another authorization server"),
        ({}, {"iss": "https://elsewhere.example", "error": "SPOOF", "code": ""}, "another authorization server"),
        ({}, {"code": "", "error": "access_denied"}, "access_denied"),
        ({}, {"code": ""}, "without a code"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else str(value),
)
async def test_an_invalid_login_ends_before_its_code_is_used(
    vault: Vault, metadata: dict[str, Any], answer: Form, words: str
) -> None:
    vault.authority.metadata, vault.authority.answer = metadata, answer
    error = await refused(vault)
    assert error.code == "ACCESS_DENIED"
    assert words in error.message
    assert "SPOOF" not in error.message
    assert vault.authority.granted == []


@pytest.mark.parametrize("state", ["wrong", ""])
async def test_an_answer_to_another_question_is_not_waited_for_forever(vault: Vault, state: str) -> None:
    async def curious_browser(url: str) -> None:
        async with httpx2.AsyncClient(follow_redirects=True) as client:
            assert (await client.get(url)).status_code == 404

    vault.authority.answer = {"state": state}
    assert "was not completed" in (await refused(vault, open_url=curious_browser, wait=0.3)).message
    assert vault.authority.granted == []


async def test_a_page_that_calls_the_way_back_does_not_end_a_login(vault: Vault) -> None:
    async def busy_browser(url: str) -> None:
        back = dict(parse_qsl(urlsplit(url).query))["redirect_uri"]
        async with httpx2.AsyncClient() as client:
            strays = [await client.get(f"{back}?{query}") for query in ("x", "code=evil", "error=no&state=guess")]
        assert {page.status_code for page in strays} == {404}
        await browser(url)

    async with opened(vault, open_url=busy_browser) as ops:
        await ops.execute("read", {})
    assert [form["code"] for form in vault.authority.granted] == ["code-1"]


@pytest.mark.parametrize("document", [b'{"issuer": "\xff"}', b'{"x":' + b"[" * 100_000, b"[]", b""])
async def test_invalid_metadata_is_reported_as_such(vault: Vault, document: bytes) -> None:
    vault.authority.raw = {"/.well-known/oauth-authorization-server": document}
    error = await refused(vault)
    assert (error.code, "has no authorization server metadata" in error.message) == ("ACCESS_DENIED", True)


async def test_tokens_that_cannot_be_read_are_refused(vault: Vault) -> None:
    vault.authority.raw = {"/token": b'{"access_token": "\xff"}'}
    error = await refused(vault)
    assert (error.code, "the response is not valid OAuth" in error.message) == ("ACCESS_DENIED", True)


async def test_a_redirect_to_an_invalid_url_is_an_error(vault: Vault) -> None:
    vault.authority.moved = {"/.well-known/oauth-authorization-server": "http://["}
    error = await refused(vault)
    assert (error.code, "has no authorization server metadata" in error.message) == ("ACCESS_DENIED", True)


async def test_a_server_cannot_send_us_around_the_world(vault: Vault, second: Authority) -> None:
    vault.servers = [f"{second.url}/{number}" for number in range(500)]
    assert "has no authorization server metadata" in (await refused(vault)).message
    assert 0 < second.visits < 50


async def test_metadata_may_move_on_its_own_server_only(vault: Vault, second: Authority) -> None:
    place = "/.well-known/oauth-authorization-server"
    second.metadata = {"issuer": vault.authority.url}
    vault.authority.moved = {place: f"{second.url}/elsewhere"}
    assert "has no authorization server metadata" in (await refused(vault)).message
    vault.authority.moved = {place: "/elsewhere"}
    async with opened(vault) as ops:
        assert len(ops) == 3


async def test_a_secret_is_not_carried_to_where_a_redirect_leads(vault: Vault, second: Authority) -> None:
    vault.authority.moved = {"/token": f"{second.url}/token"}
    error = await refused(vault, client_id="known", client_secret="s3cret")
    assert "HTTP 307" in error.message
    assert second.granted == []


async def test_endless_metadata_is_not_read_to_its_end(vault: Vault) -> None:
    vault.authority.metadata = {"padding": "x" * 300_000}
    assert (await refused(vault)).code == "PAYLOAD_TOO_LARGE"


async def test_an_issuer_that_need_not_say_its_name_may_leave_it_out(vault: Vault) -> None:
    vault.authority.metadata = {"authorization_response_iss_parameter_supported": None}
    vault.authority.answer = {"iss": ""}
    async with opened(vault) as ops:
        assert len(ops) == 3


async def test_a_server_that_claims_to_be_another_gets_no_token(vault: Vault) -> None:
    vault.resource = "https://bank.example/mcp"
    error = await refused(vault)
    assert "a different server" in error.message
    assert vault.authority.asked == []


async def test_a_login_that_is_never_completed_times_out(vault: Vault) -> None:
    error = await refused(vault, open_url=str, wait=0.1)  # which takes the address, and goes nowhere
    assert (error.code, error.message.split(" within")[0]) == (
        "ACCESS_DENIED",
        f"The login to {vault.url[7:]} was not completed",
    )


async def test_a_user_who_declines_more_scopes_keeps_the_old_ones(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.answer = {"code": "", "error": "access_denied"}
        with pytest.raises(CallError, match="access_denied"):
            await ops.execute("write", {})
        vault.authority.tokens.clear()
        assert not (await ops.execute("read", {})).is_error
    assert [form["grant_type"] for form in vault.authority.granted] == ["authorization_code", "refresh_token"]


async def test_closing_never_asks_for_a_login(vault: Vault) -> None:
    async with opened(vault):
        vault.authority.tokens.clear()
        vault.authority.refreshes.clear()
    assert len(vault.authority.asked) == 1


async def test_closing_ends_a_login_that_waits(vault: Vault) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    operations = from_mcp(f"{vault.url}/mcp", auth=UserLogin(open_url=asked.put))
    opening = asyncio.create_task(operations.__aenter__())
    await asked.get()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_without_a_way_to_ask_the_sentence_says_what_is_missing(vault: Vault) -> None:
    error = await refused(vault, open_url=None)
    assert error.code == "ACCESS_DENIED"
    assert "open_url" in error.message


async def test_without_settings_the_message_says_what_to_set(vault: Vault) -> None:
    with pytest.raises(CallError) as caught:
        async with from_mcp(f"{vault.url}/mcp"):
            pass
    assert caught.value.code == "ACCESS_DENIED"
    assert "requires a login (OAuth): set auth" in caught.value.message


async def test_a_fixed_token_that_is_refused_is_reported_as_such(vault: Vault) -> None:
    with pytest.raises(CallError, match="rejected the credentials") as caught:
        async with from_mcp(f"{vault.url}/mcp", auth="sesame"):
            pass
    assert "sesame" not in repr(caught.value)


async def test_offline_access_is_asked_for_where_the_authority_offers_it(vault: Vault) -> None:
    vault.authority.metadata = {"scopes_supported": ["read", "offline_access"]}
    async with opened(vault):
        pass
    [asked] = vault.authority.asked
    assert (asked["scope"], asked["prompt"]) == ("read offline_access", "consent")


async def test_a_token_that_must_be_bound_to_a_key_comes_with_a_new_proof_each_time(
    vault: Vault, tmp_path: Path
) -> None:
    vault.nonce = "n1"
    async with opened(vault, store=FileStore(tmp_path)):
        pass
    vault.nonce = "n2"
    async with opened(vault, store=FileStore(tmp_path)) as ops:
        await ops.execute("read", {})
    assert len(vault.authority.asked) == 1
    assert {proof["htu"] for proof in vault.proofs} == {f"{vault.url}/mcp"}
    assert len({proof["jti"] for proof in vault.proofs}) == len(vault.proofs)


# --- who we are ---------------------------------------------------------------------------------------------------


async def test_a_client_known_beforehand_is_not_registered(vault: Vault) -> None:
    async with opened(vault, client_id="known", client_secret="s3cret"):
        pass
    assert vault.authority.registered == []
    assert vault.authority.asked[0]["client_id"] == "known"
    pair = base64.b64encode(b"known:s3cret").decode()
    assert vault.authority.granted[0]["authorization"] == f"Basic {pair}"


async def test_a_client_with_a_document_is_not_registered_where_that_is_enough(vault: Vault) -> None:
    document = "https://example.org/enfold.json"
    async with opened(vault, client_metadata_url=document):
        assert vault.authority.asked[0]["client_id"] == "client-1"
    vault.authority.metadata = {"client_id_metadata_document_supported": True}
    async with opened(vault, client_metadata_url=document):
        assert vault.authority.asked[1]["client_id"] == document
    assert len(vault.authority.registered) == 1


async def test_a_client_that_is_no_longer_known_is_registered_again(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        vault.authority.forgets = "client-1"
        await ops.execute("read", {})
    assert [asked["client_id"] for asked in vault.authority.asked] == ["client-1", "client-2"]


async def test_a_registered_client_comes_back_to_where_it_said_if_it_can(vault: Vault) -> None:
    async with opened(vault) as ops:
        for _ in range(2):
            vault.authority.tokens.clear()
            vault.authority.refreshes.clear()
            await ops.execute("read", {})
    assert len(vault.authority.registered) == 1
    port = int(vault.authority.registered[0]["redirect_uris"][0].split(":")[2].split("/")[0])
    store = MemoryStore()
    saved = Saved(
        vault.authority.url, client=RegisteredClient("client-1", redirect_uri=f"http://127.0.0.1:{port}/callback")
    )
    store.save(f"{vault.url}/mcp", saved)
    with socket.create_server(("127.0.0.1", port)):
        async with opened(vault, store=store):
            pass
    assert len(vault.authority.registered) == 2


async def test_an_authority_that_is_busy_does_not_cost_the_login(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        vault.authority.is_busy = True
        with pytest.raises(CallError) as caught:
            await ops.execute("read", {})
        assert (caught.value.code, caught.value.message.rpartition(": ")[2]) == ("UNAVAILABLE", "HTTP 503")
        vault.authority.is_busy = False
        await ops.execute("read", {})
    assert len(vault.authority.asked) == 1


async def test_another_authority_gets_nothing_that_belongs_to_the_first(vault: Vault, second: Authority) -> None:
    first = vault.authority
    async with opened(vault) as ops:
        vault.authority = second
        await ops.execute("read", {})
    assert [form["grant_type"] for form in first.granted] == ["authorization_code"]
    assert [form["grant_type"] for form in second.granted] == ["authorization_code"]
    assert len(second.registered) == 1


async def test_a_client_known_to_the_first_authority_is_not_shown_to_another(vault: Vault, second: Authority) -> None:
    async with opened(vault, client_id="known", client_secret="s3cret") as ops:
        vault.authority = second
        with pytest.raises(CallError, match="has moved from") as caught:
            await ops.execute("read", {})
    assert caught.value.code == "ACCESS_DENIED"
    assert second.asked == second.granted == []


async def test_only_the_issuer_that_was_named_is_asked(vault: Vault) -> None:
    error = await refused(vault, client_id="known", issuer="https://login.example.org")
    assert "but the client is registered at https://login.example.org" in error.message
    assert vault.authority.asked == []


# --- programs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "in_header"), [(["client_secret_basic"], True), (["client_secret_post"], False), (None, True)]
)
async def test_a_program_logs_in_with_its_secret(vault: Vault, methods: list[str] | None, in_header: bool) -> None:
    vault.authority.metadata = {"token_endpoint_auth_methods_supported": methods}
    async with opened(vault, login=ClientCredentials(client_id="robot", client_secret="s3cret")) as ops:
        await ops.execute("write", {})
    first, second = vault.authority.granted
    assert (first["grant_type"], first["scope"], second["scope"]) == ("client_credentials", "read", "read write")
    assert bool(first["authorization"]) is in_header
    assert first.get("client_secret") == (None if in_header else "s3cret")


async def test_an_authority_that_reads_only_the_form_gets_the_secret_there(vault: Vault) -> None:
    methods = ["client_secret_basic", "client_secret_post"]
    vault.authority.metadata = {"token_endpoint_auth_methods_supported": methods}
    vault.authority.complains = "Missing client_id"
    vault.authority.complains_without = "client_id"
    async with opened(vault, login=ClientCredentials(client_id="robot", client_secret="s3cret")) as ops:
        await ops.execute("read", {})
    assert [form.get("client_secret") for form in vault.authority.granted] == [None, "s3cret"]


async def test_a_program_gets_a_new_token_before_the_old_one_ends(vault: Vault) -> None:
    store = MemoryStore()
    login = ClientCredentials(client_id="robot", client_secret="s3cret", store=store)
    for _ in range(2):
        async with opened(vault, login=login) as ops:
            await ops.execute("read", {})
        let_end(store, vault)
    assert (vault.seen[-1], vault.refusals) == ("access-2", 1)


# --- what is kept, and what is never told -------------------------------------------------------------------------


async def test_a_second_start_does_not_ask_again(vault: Vault, tmp_path: Path) -> None:
    folder = tmp_path / "logins"
    for _ in range(2):
        async with opened(vault, store=FileStore(folder)) as ops:
            await ops.execute("read", {})
    assert len(vault.authority.asked) == 1
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


async def test_a_stored_login_that_has_ended_is_renewed_without_a_user(vault: Vault, tmp_path: Path) -> None:
    async with opened(vault, store=FileStore(tmp_path)):
        pass
    let_end(FileStore(tmp_path), vault)
    async with opened(vault, store=FileStore(tmp_path), open_url=None) as ops:
        await ops.execute("read", {})
    assert [form["grant_type"] for form in vault.authority.granted] == ["authorization_code", "refresh_token"]


async def test_a_login_renewed_by_another_program_is_used(vault: Vault, tmp_path: Path) -> None:
    async with opened(vault, store=FileStore(tmp_path)) as mine, opened(vault, store=FileStore(tmp_path)) as other:
        vault.authority.tokens.clear()
        await other.execute("read", {})
        await mine.execute("read", {})
    assert [form["grant_type"] for form in vault.authority.granted] == ["authorization_code", "refresh_token"]


async def test_programs_that_share_a_folder_renew_one_after_the_other(vault: Vault, tmp_path: Path) -> None:
    async with opened(vault, store=FileStore(tmp_path)):
        pass
    let_end(FileStore(tmp_path), vault)
    vault.authority.dawdles = 0.2

    async def program() -> None:
        async with opened(vault, store=FileStore(tmp_path), open_url=None) as ops:
            await ops.execute("read", {})

    await asyncio.gather(*(program() for _ in range(3)))
    assert [form["grant_type"] for form in vault.authority.granted] == ["authorization_code", "refresh_token"]


async def test_sources_that_share_a_store_share_a_login(vault: Vault) -> None:
    store = MemoryStore()
    async with opened(vault, store=store), opened(vault, store=store):
        pass
    assert len(vault.authority.asked) == 1


async def test_no_secret_is_in_an_error(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "enfold")
    vault.authority.complains = "client_secret {client_secret} or code {code} is wrong"
    vault.authority.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    error = await refused(vault, client_id="known", client_secret="s3cret")
    assert "client_secret … or code … is wrong" in error.message
    assert "s3cret" not in repr(error) + caplog.text


async def test_a_secret_header_is_hidden_where_a_server_repeats_it(vault: Vault) -> None:
    vault.authority.complains = "you sent {authorization}"
    error = await refused(vault, client_id="known", client_secret="s3cret")
    assert error.message.endswith("you sent Basic …")


@pytest.mark.parametrize(
    "place",
    ["body", "kind of body", "error", "result", "stream", "escapes", "some escapes", "escapes in a text"],
)
async def test_a_token_is_hidden_where_a_server_repeats_it(vault: Vault, place: str) -> None:
    vault.echoes = place
    async with opened(vault) as ops:
        try:
            told = repr((await ops.execute("echo", {})).to_wire())
        except CallError as error:
            told = repr(error.to_wire())
    assert "access-1" not in told
    assert "[hidden]" in told


async def test_a_login_that_failed_is_not_tried_again_at_once(vault: Vault) -> None:
    async with opened(vault) as ops:
        vault.authority.tokens.clear()
        vault.authority.refreshes.clear()
        vault.authority.answer = {"code": "", "error": "access_denied"}
        for _ in range(3):
            with pytest.raises(CallError, match="access_denied"):
                await ops.execute("read", {})
    assert len(vault.authority.asked) == 2


async def test_a_user_who_declines_is_asked_only_a_few_times(vault: Vault) -> None:
    vault.wants = (f"write-{number}" for number in range(20))
    async with opened(vault) as ops:
        vault.authority.answer = {"code": "", "error": "access_denied"}
        for _ in range(10):
            with pytest.raises(CallError, match="access_denied"):
                await ops.execute("write", {})
    assert len(vault.authority.asked) == 4


async def test_a_store_that_cannot_be_written_does_not_bring_back_what_has_ended(vault: Vault) -> None:
    class ReadOnly(MemoryStore):
        def save(self, server_url: str, saved: Saved) -> None:
            if self.load(server_url) is not None:
                raise PermissionError(13, "no")
            super().save(server_url, saved)

    async with opened(vault, store=ReadOnly()) as ops:
        for _ in range(3):
            vault.authority.tokens.clear()
            await ops.execute("read", {})
    assert [form.get("refresh_token") for form in vault.authority.granted[1:]] == [
        "refresh-1",
        "refresh-2",
        "refresh-3",
    ]


async def test_a_server_without_an_authorization_server_is_reported(vault: Vault) -> None:
    vault.authority.url = ""
    error = await refused(vault)
    assert "does not name its authorization server" in error.message


# --- configurations and the command -------------------------------------------------------------------------------


async def test_a_configured_source_comes_up_when_its_user_has_logged_in(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "enfold.toml"
    path.write_text(f'[sources.vault]\nurl = "{vault.url}/mcp"\nauth = {{scopes = "read"}}\n')
    for _ in range(2):
        async with open_config(path, {}, logins=Logins(browser, str(tmp_path / "logins"))) as registry:
            assert [source.state for source in registry.services.sources] == ["up"]
            await registry.execute("vault.read", {})
    assert len(vault.authority.asked) == 1


async def test_a_configured_source_that_cannot_ask_says_so(vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"vault": {"url": f"{vault.url}/mcp", "oauth": {"clientId": "known"}}}}))
    async with open_config(path, {}) as registry:
        [source] = registry.services.sources
    assert source.state == "down"
    assert "log in once with the enfold command" in source.why


async def test_the_command_asks_its_user_once(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"vault": {"url": f"{vault.url}/mcp", "auth": {}}}}))
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "DISPLAY": "", "WAYLAND_DISPLAY": ""}

    async def run() -> tuple[str, str]:
        words = [sys.executable, "-m", "enfold", "list", str(tmp_path / "mcp.json")]
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*words, env=environ, stdout=pipe, stderr=pipe)
        assert program.stdout is not None
        assert program.stderr is not None
        said = ""
        while line := (await program.stderr.readline()).decode():
            said += line
            if line.strip().startswith("http://"):
                await browser(line.strip())
        listed = (await program.stdout.read()).decode()
        await program.wait()
        return listed, said

    (listed, said), (again, silence) = await run(), await run()
    assert listed.split()[:1] == again.split()[:1] == ["vault.read"]
    assert "asks you to log in" in said
    assert silence == ""
