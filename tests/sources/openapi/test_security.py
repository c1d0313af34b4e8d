"""Credentials: where each scheme puts them, which are chosen, and that they never leave their origin."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec
import pytest

from enfold import CallError
from enfold.sources.openapi import from_openapi

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
        ("user", ["ann", "se:cret"], "authorization", BASIC),
        ("user", lambda: ["ann", "se:cret"], "authorization", BASIC),
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


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/x?key={key}", "key=secret12"), ("/x?a=1&key={key}&b={b}", "a=1&b=2&key=secret12")],
    ids=str,
)
async def test_a_credential_takes_the_place_of_its_placeholder_in_the_query_of_a_path(
    server: RawServer, connect: Connect, http: Words, path: str, expected: str
) -> None:
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("key", "b")]
    operation = {"security": [{"in_query": []}], "parameters": parameters[: path.count("{")]}
    document = http.document(operation, path=path, components={"securitySchemes": SCHEMES})
    registry = connect(document, base_url=server.url, credentials={"in_query": "secret12"})
    await registry.execute("x", {"b": "2"} if "{b}" in path else {})
    assert server.received[0].query == expected


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
    ids=["first we can do", "all of one", "rather known than anonymous", "none wanted", "unknown"],
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


def test_a_variable_that_is_not_set_is_reported_at_once(connect: Connect, http: Words) -> None:
    with pytest.raises(ValueError, match="NO_SUCH_VARIABLE"):
        connect(secured(http, {"token": []}), base_url="http://a", credentials={"token": "${NO_SUCH_VARIABLE}"})


@pytest.mark.parametrize(
    ("scheme", "location", "name"), [("in_header", "header", "x-key"), ("in_query", "query", "key")]
)
async def test_a_parameter_that_a_credential_fills_in_is_not_an_argument(
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
        "the security scheme hand is of a kind that is not supported",
        "the security scheme cert is of a kind that is not supported",
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


async def test_a_token_has_the_scopes_of_the_operation_and_is_shared_by_those_with_the_same(
    serve: Serve, connect: Connect, http: Words
) -> None:
    asked: list[str | None] = []

    def answer(received: Received) -> bytes:
        if received.path == "/token":
            asked.append(parse_qs(received.body.decode()).get("scope", [None])[0])
            return http.reply({"access_token": f"{len(asked)}"})
        return http.reply({"sent": received.header("authorization")})

    server = await serve(answer)
    scopes = {"read": ["b:read", "a:read"], "list": ["a:read", "b:read"], "write": ["a:write"], "ping": [], "odd": None}
    document = secured(http)
    document["paths"] = {
        f"/{name}": {"get": {"operationId": name, "security": [{"oauth": listed}], "responses": {}}}
        for name, listed in scopes.items()
    }
    own = {name: value for name, value in CLIENT.items() if name != "scopes"}
    registry = connect(document, base_url=server.url, credentials={"oauth": own})
    sent = {name: (await registry.execute(name, {})).data["sent"] for name in (*scopes, *scopes)}
    assert asked == ["a:read b:read", "a:write", None]
    assert sent == {
        **dict.fromkeys(("read", "list"), "Bearer 1"),
        "write": "Bearer 2",
        **dict.fromkeys(("ping", "odd"), "Bearer 3"),
    }


async def test_a_rejected_credential_is_not_requested_again(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(lambda _: http.reply({"error": "invalid_scope"}, status="400 Bad Request"))
    registry = connect(secured(http, {"oauth": []}), base_url=server.url, credentials={"oauth": CLIENT})
    with pytest.raises(CallError, match="invalid_scope"):
        await registry.execute("x", {})
    assert len(server.received) == 1


async def test_a_token_that_ended_early_is_fetched_again_and_the_call_repeated(
    serve: Serve, connect: Connect, http: Words
) -> None:
    answer, given = token_server(http)
    server = await serve(answer)
    registry = connect(secured(http, {"oauth": []}), base_url=server.url, credentials={"oauth": CLIENT})
    await registry.execute("x", {})
    given.append("revoked")
    await registry.execute("x", {})
    assert given == ["t0", "revoked", "t2"]


async def test_a_token_url_on_another_host_gets_no_secret_unless_the_user_named_it(
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


# --- what the document does not say, and what the user got wrong


def test_a_credential_of_an_unknown_scheme_is_named_with_the_nearest(http: Words) -> None:
    document = secured(http, {"token": []})
    imported = from_openapi(document, base_url="http://a.test", credentials={"Tokn": "t", "zzz": "t", "user": "a:b"})
    told = [each.why for each in imported.report.degraded if each.where == "credentials"]
    assert told[0] == "the document has no security scheme Tokn: did you mean token?"
    assert told[1].startswith("the document has no security scheme zzz: it has in_header, in_query")
    assert len(told) == 2


def test_a_credential_of_three_texts_is_refused_with_a_sentence(http: Words) -> None:
    with pytest.raises(ValueError, match="a user and a password, not 3 strings"):
        from_openapi(secured(http, {"user": []}), base_url="http://a.test", credentials={"user": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("root", "own", "sent"),
    [
        ({}, {}, "Bearer t"),
        ({"security": []}, {}, None),
        ({}, {"security": []}, None),
        ({}, {"security": [{}]}, None),
        ({"security": [{"token": []}]}, {}, "Bearer t"),
        ({"security": [{"in_header": []}]}, {}, None),
    ],
    ids=str,
)
async def test_credentials_are_sent_if_a_document_declares_schemes_without_requiring_them(
    server: RawServer, connect: Connect, http: Words, root: dict[str, Any], own: dict[str, Any], sent: str | None
) -> None:
    document = http.document(own, components={"securitySchemes": SCHEMES}, **root)
    await connect(document, base_url=server.url, credentials={"token": "t"}).execute("x", {})
    assert server.received[0].header("authorization") == sent
    report = from_openapi(document, base_url=server.url, credentials={"token": "t"}).report
    is_told = any("that of token is sent anyway" in each.why for each in report.degraded)
    assert is_told == (sent is not None and not root)


async def test_of_two_credentials_for_one_location_the_first_is_sent_with_all_others(
    server: RawServer, connect: Connect, http: Words
) -> None:
    document = http.document({}, swagger="2.0", securityDefinitions=SCHEMES, version="2.0")
    given = {"token": "t", "in_header": "k", "open_id": "o"}
    await connect(document, base_url=server.url, credentials=given).execute("x", {})
    received = server.received[0]
    assert received.header("x-key") == "k"
    assert received.header("authorization") in ("Bearer t", "Bearer o")


async def test_an_operation_without_security_beside_others_with_it_gets_no_credentials(
    server: RawServer, connect: Connect, http: Words
) -> None:
    document = http.document({}, components={"securitySchemes": SCHEMES})
    document["paths"]["/y"] = {"get": {"operationId": "y", "security": [{"token": []}], "responses": {}}}
    registry = connect(document, base_url=server.url, credentials={"token": "t"})
    await registry.execute("x", {})
    assert server.received[0].header("authorization") is None


async def test_an_unused_credential_never_goes_to_another_host(
    server: RawServer, connect: Connect, http: Words
) -> None:
    document = http.document({"servers": [{"url": server.url}]}, components={"securitySchemes": SCHEMES})
    registry = connect(document, base_url="http://home.test", allow_hosts="127.0.0.1", credentials={"token": "t"})
    await registry.execute("x", {})
    assert server.received[0].header("authorization") is None


LACKING = "no credential for in_header or token: set ENFOLD_SHOP_IN_HEADER or pass credentials={'in_header': …}"


@pytest.mark.parametrize(
    ("credentials", "message", "schemes"),
    [
        (
            {},
            f"HTTP 401: who are you? ({LACKING})",
            ["in_header", "token"],
        ),
        ({"token": "t"}, "HTTP 401: who are you? (the credential of token was refused)", ["token"]),
    ],
    ids=["none", "wrong"],
)
async def test_a_401_names_the_scheme_and_the_variable_that_would_fill_it(
    serve: Serve, connect: Connect, http: Words, credentials: dict[str, str], message: str, schemes: list[str]
) -> None:
    server = await serve(lambda _: http.reply({"message": "who are you?"}, status="401 Unauthorized"))
    document = secured(http, {"in_header": []}, {"token": []})
    registry = connect(document, base_url=server.url, namespace="shop", credentials=credentials)
    with pytest.raises(CallError) as caught:
        await registry.execute("shop.x", {})
    assert (caught.value.message, caught.value.details["schemes"]) == (message, schemes)


@pytest.mark.parametrize("security", [[{"in_header": []}, {"in_query": []}], [{"in_header": [], "in_query": []}]])
async def test_no_argument_asks_for_what_a_credential_fills_in(
    server: RawServer, connect: Connect, http: Words, security: list[dict[str, list[str]]]
) -> None:
    parameters = [
        {"name": "x-key", "in": "header", "required": True, "schema": {"type": "string"}},
        {"name": "key", "in": "query", "required": True, "schema": {"type": "string"}},
    ]
    document = secured(http, *security)
    document["paths"]["/x"]["get"]["parameters"] = parameters
    registry = connect(document, base_url=server.url, credentials={"in_header": "a", "in_query": "b"})
    assert registry.get_spec("x").input_schema["properties"] == {}
    await registry.execute("x", {})
    assert (server.received[0].header("x-key"), server.received[0].query) == ("a", "key=b")


# --- headers of 2.0


def old_headers(http: Words, **more: Any) -> dict[str, Any]:
    names = ("Authorization", "Accept", "Content-Type", "Host", "X-A")
    parameters = [{"name": name, "in": "header", "type": "string"} for name in names]
    body = {"name": "b", "in": "body", "schema": {"type": "object"}}
    return http.document({"parameters": [*parameters, body]}, method="post", version="2.0", **more)


async def test_the_headers_that_only_3_x_reserves_are_arguments_in_2_0(
    server: RawServer, connect: Connect, http: Words
) -> None:
    registry = connect(old_headers(http, consumes=["application/json"]), base_url=server.url)
    names = ["Authorization", "Accept", "Content-Type", "X-A", "body"]
    assert list(registry.get_spec("x").input_schema["properties"]) == names
    given = {"Authorization": "Token 1", "Accept": "text/csv", "Content-Type": "application/vnd.x+json"}
    await registry.execute("x", {**given, "body": {"a": 1}})
    received = server.received[0]
    assert [received.header(name) for name in ("authorization", "accept", "content-type")] == list(given.values())


async def test_a_credential_takes_the_place_of_an_authorization_argument(
    server: RawServer, connect: Connect, http: Words
) -> None:
    document = old_headers(http, securityDefinitions={"login": {"type": "basic"}}, security=[{"login": []}])
    registry = connect(document, base_url=server.url, credentials={"login": ["ann", "se:cret"]})
    assert "Authorization" not in registry.get_spec("x").input_schema["properties"]
    await registry.execute("x", {})
    assert server.received[0].header("authorization") == BASIC


# --- credentials that a service repeats

PASSWORD = "pass/word of ann"


@pytest.mark.parametrize(
    ("scheme", "credential", "secrets"),
    [
        ("in_header", "key-of-ann/1", ["key-of-ann/1"]),
        ("in_query", "key&of ann", ["key&of ann", "key%26of%20ann"]),
        ("in_cookie", "session-1", ["session-1"]),
        ("token", "token-of-ann", ["token-of-ann", "Bearer token-of-ann"]),
        ("user", ("ann", PASSWORD), [PASSWORD, base64.b64encode(f"ann:{PASSWORD}".encode()).decode()]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden"])
async def test_a_credential_that_the_service_repeats_is_hidden(
    serve: Serve, connect: Connect, http: Words, scheme: str, credential: Any, secrets: list[str], status: str
) -> None:
    escaped = "".join(f"\\u{ord(each):04x}" for each in secrets[0])
    body = f'{{"sent": {msgspec.json.encode(secrets).decode()}, "escaped": "{escaped}", "message": "no {secrets[0]}"}}'
    link = f"<http://a?key={secrets[-1]}>"
    server = await serve(lambda _: http.reply(body.encode(), status=f"{status} {secrets[0]}", headers={"Link": link}))
    registry = connect(secured(http, {scheme: []}), base_url=server.url, credentials={scheme: credential})
    try:
        told = repr((await registry.execute("x", {})).to_wire())
    except CallError as error:
        told = repr(error.to_wire())
    assert "[hidden]" in told
    assert not any(each in told for each in secrets)


async def test_a_header_of_the_user_that_a_stream_repeats_is_hidden(
    serve: Serve, connect: Connect, http: Words
) -> None:
    async def respond() -> AsyncIterator[bytes]:
        yield http.stream_head() + http.chunk('data: {"sent": "Custom token-of-ann"}\n\ndata: token-of-ann\n\n')

    server = await serve(lambda _: respond())
    events = {"200": {"description": "ok", "content": {"text/event-stream": {}}}}
    document = http.document({"responses": events})
    registry = connect(document, base_url=server.url, headers={"Authorization": "Custom token-of-ann"})
    stream = registry.subscribe("x", {})
    assert [(await anext(stream)).data, (await anext(stream)).data] == [{"sent": "Custom [hidden]"}, "[hidden]"]
    await stream.aclose()


async def test_a_fixed_secret_that_a_stream_repeats_in_pieces_is_hidden(
    serve: Serve, connect: Connect, http: Words
) -> None:
    """In the data, the name and the id of an event, cut by chunks of the transport."""

    async def respond() -> AsyncIterator[bytes]:
        yield http.stream_head()
        for piece in ("id: at-tok", "en-of-ann\nevent: of-token-", "of-ann\ndata: it is token", "-of-ann\n\n"):
            yield http.chunk(piece)

    server = await serve(lambda _: respond())
    events = {"200": {"description": "ok", "content": {"text/event-stream": {}}}}
    parameter = {"name": "api_key", "in": "query", "schema": {"type": "string"}}
    document = http.document({"responses": events, "parameters": [parameter]})
    registry = connect(document, base_url=server.url, fix={"api_key": "token-of-ann"})
    stream = registry.subscribe("x", {})
    found = (await anext(stream)).to_wire()
    await stream.aclose()
    assert found["data"] == "it is [hidden]"
    assert "token-of-ann" not in repr(found)
