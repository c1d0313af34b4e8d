"""Credentials: where each scheme puts them, which are chosen, and that they never leave their origin."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest

from enfold import CallError

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, RawServer, Received, Serve, Words

SCHEMES: dict[str, Any] = {
    "in_header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "in_query": {"type": "apiKey", "in": "query", "name": "key"},
    "in_cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "user": {"type": "http", "scheme": "basic"},
    "token": {"type": "http", "scheme": "bearer"},
    "open_id": {"type": "openIdConnect", "openIdConnectUrl": "https://example.com"},
    "oauth": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/token", "scopes": {}}}},
}
BASIC = "Basic " + base64.b64encode(b"ann:se:cret").decode()


def secured(http: Words, *security: dict[str, list[str]], **schemes: Any) -> dict[str, Any]:
    return http.document({"security": list(security)}, components={"securitySchemes": {**SCHEMES, **schemes}})


@pytest.fixture
async def server(serve: Serve, http: Words) -> RawServer:
    return await serve(lambda _: http.reply({}))


@pytest.mark.parametrize(
    ("scheme", "credential", "where", "expected"),
    [
        ("in_header", "s&1", "x-key", "s&1"),
        ("in_query", "s&1", "query", "key=s%261"),
        ("in_cookie", "s1", "cookie", "sid=s1"),
        ("user", ("ann", "se:cret"), "authorization", BASIC),
        ("user", "ann:se:cret", "authorization", BASIC),
        ("user", {"username": "ann", "password": "se:cret"}, "authorization", BASIC),
        ("token", "t1", "authorization", "Bearer t1"),
        ("token", lambda: "t2", "authorization", "Bearer t2"),
        ("open_id", "t3", "authorization", "Bearer t3"),
        ("oauth", "t4", "authorization", "Bearer t4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_credential_stands_where_its_scheme_says(
    server: RawServer, connect: Connect, http: Words, scheme: str, credential: Any, where: str, expected: str
) -> None:
    document = secured(http, {scheme: []})
    await connect(document, base_url=server.url, credentials={scheme: credential}).execute("x", {})
    received = server.received[0]
    assert (received.query if where == "query" else received.header(where)) == expected


async def test_version_2_knows_basic_and_keys(server: RawServer, connect: Connect, http: Words) -> None:
    definitions = {"user": {"type": "basic"}}
    document = http.document({"security": [{"user": []}]}, version="2.0", securityDefinitions=definitions)
    await connect(document, base_url=server.url, credentials={"user": ("ann", "se:cret")}).execute("x", {})
    assert server.received[0].header("authorization") == BASIC


@pytest.mark.parametrize(
    ("security", "key", "cookie"),
    [
        ([{"in_header": []}, {"in_cookie": []}], None, "sid=c"),
        ([{"in_header": [], "in_cookie": []}, {"in_cookie": []}], None, "sid=c"),
        ([{}, {"in_cookie": []}], None, "sid=c"),
        ([], None, None),
        ([{"unknown": []}], None, None),
    ],
    ids=["first we can do", "all of one", "rather known than anonymous", "none wanted", "nobody knows it"],
)
async def test_the_first_alternative_we_have_credentials_for_is_taken(
    server: RawServer, connect: Connect, http: Words, security: Any, key: str | None, cookie: str | None
) -> None:
    await connect(secured(http, *security), base_url=server.url, credentials={"in_cookie": "c"}).execute("x", {})
    assert (server.received[0].header("x-key"), server.received[0].header("cookie")) == (key, cookie)


async def test_credentials_come_from_the_environment(
    server: RawServer, connect: Connect, http: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENFOLD_PET_SHOP_TOKEN", "from-environment")
    monkeypatch.setenv("MY_KEY", "k")
    document = secured(http, {"token": [], "in_header": []})
    options = {"base_url": server.url, "namespace": "pet-shop", "credentials": {"in_header": "${MY_KEY}"}}
    await connect(document, **options).execute("pet-shop.x", {})
    received = server.received[0]
    assert (received.header("authorization"), received.header("x-key")) == ("Bearer from-environment", "k")


def test_a_variable_that_is_not_set_is_told_at_once(connect: Connect, http: Words) -> None:
    with pytest.raises(ValueError, match="NO_SUCH_VARIABLE"):
        connect(secured(http, {"token": []}), base_url="http://a", credentials={"token": "${NO_SUCH_VARIABLE}"})


@pytest.mark.parametrize(
    ("scheme", "location", "name"), [("in_header", "header", "x-key"), ("in_query", "query", "key")]
)
async def test_a_parameter_that_a_credential_fills_in_is_no_argument(
    server: RawServer, connect: Connect, http: Words, scheme: str, location: str, name: str
) -> None:
    document = secured(http, {scheme: []})
    parameter = {"name": name, "in": location, "required": True, "schema": {"type": "string"}}
    document["paths"]["/x"]["get"]["parameters"] = [parameter]
    registry = connect(document, base_url=server.url, credentials={scheme: "ours"})
    await registry.execute("x", {})
    assert (server.received[0].header("x-key"), server.received[0].query) in (("ours", ""), (None, "key=ours"))
    assert "required" in connect(document, base_url=server.url).get_spec("x").input_schema


def test_a_scheme_we_cannot_do_is_named_in_the_report(http: Words) -> None:
    from enfold.sources.openapi import from_openapi

    schemes = {"hand": {"type": "http", "scheme": "digest"}, "cert": {"type": "mutualTLS"}}
    report = from_openapi(secured(http, {"hand": []}, **schemes), base_url="http://a").report
    assert [each.why for each in report.degraded] == [
        "the security scheme hand is of a kind we cannot do",
        "the security scheme cert is of a kind we cannot do",
    ]


# --- OAuth2 client credentials


def token_server(http: Words, *, life: int = 3600, in_body: bool = False) -> Any:
    """Answers for a token address that counts its tokens, and an operation that wants the newest."""
    given: list[str] = []

    def answer(received: Received) -> bytes:
        if received.path != "/token":
            is_good = received.header("authorization") == f"Bearer {given[-1]}"
            return http.reply({}, status="200 OK" if is_good else "401 Unauthorized")
        form = parse_qs(received.body.decode())
        by_body = form.get("client_secret") == ["se:cret"]
        by_header = received.header("authorization") == "Basic " + base64.b64encode(b"me:se%3Acret").decode()
        if not (by_body if in_body else by_header):
            return http.reply({"error": "invalid_client"}, status="401 Unauthorized")
        given.append(f"t{len(given)}")
        return http.reply({"access_token": given[-1], "expires_in": life, "scope": form.get("scope")})

    return answer, given


CLIENT = {"client_id": "me", "client_secret": "se:cret", "scopes": "read"}


@pytest.mark.parametrize("in_body", [False, True], ids=["in the header", "in the body"])
async def test_a_token_is_fetched_once_and_used_until_it_ends(
    serve: Serve, connect: Connect, http: Words, in_body: bool
) -> None:
    answer, given = token_server(http, in_body=in_body)
    server = await serve(answer)
    registry = connect(secured(http, {"oauth": ["read"]}), base_url=server.url, credentials={"oauth": CLIENT})
    for _ in range(3):
        await registry.execute("x", {})
    assert given == ["t0"]
    assert b"grant_type=client_credentials&scope=read" in server.received[0].body


async def test_a_token_that_ended_early_is_fetched_anew_and_the_call_repeated(
    serve: Serve, connect: Connect, http: Words
) -> None:
    answer, given = token_server(http)
    server = await serve(answer)
    registry = connect(secured(http, {"oauth": []}), base_url=server.url, credentials={"oauth": CLIENT})
    await registry.execute("x", {})
    given.append("revoked")
    await registry.execute("x", {})
    assert given == ["t0", "revoked", "t2"]


async def test_a_token_address_elsewhere_gets_no_secret_unless_the_user_named_it(
    serve: Serve, connect: Connect, http: Words
) -> None:
    answer, _ = token_server(http)
    server, elsewhere = await serve(answer), await serve(answer)
    flow = {"clientCredentials": {"tokenUrl": f"{elsewhere.url}/token", "scopes": {}}}
    document = secured(http, {"oauth": []}, oauth={"type": "oauth2", "flows": flow})
    registry = connect(document, base_url=server.url, credentials={"oauth": CLIENT})
    with pytest.raises(CallError, match="another host"):
        await registry.execute("x", {})
    assert elsewhere.received == []
    own = {**CLIENT, "token_url": f"{elsewhere.url}/token"}
    await connect(document, base_url=server.url, credentials={"oauth": own}).execute("x", {})
    assert len(elsewhere.received) == 1
