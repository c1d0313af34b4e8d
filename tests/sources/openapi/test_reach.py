"""Where requests may go: servers and variables, redirects, references; everything else is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.openapi_options import openapi_options

from enfold import CallError
from enfold.sources.openapi import OpenAPILimits, Service, from_openapi
from enfold.sources.openapi.servers import Reach

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Received, Serve, Words

KEY: dict[str, Any] = {"components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}}}
SECURED: dict[str, Any] = {"security": [{"key": []}]}


async def refused(call: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await call
    return caught.value


# --- servers


@pytest.mark.parametrize(
    ("server", "variables", "path"),
    [
        ("{root}/v1", {}, "/v1/x"),
        ("{root}/v1/", {}, "/v1/x"),
        ("{root}/{version}", {"version": {"default": "v2"}}, "/v2/x"),
        ("{root}/{version}", {"version": {"enum": ["v3", "v4"]}}, "/v3/x"),
    ],
    ids=["path", "slash", "default", "enum"],
)
async def test_the_first_server_of_a_document_in_hand_is_used(
    serve: Serve, connect: Connect, http: Words, server: str, variables: Any, path: str
) -> None:
    running = await serve(lambda _: http.reply({}))
    url = server.replace("{root}", running.url)
    document = http.document({}, servers=[{"url": url, "variables": variables}, {"url": "http://other"}])
    await connect(document).execute("x", {})
    assert running.received[0].path == path


async def test_a_server_variable_can_be_given_and_is_checked(serve: Serve, connect: Connect, http: Words) -> None:
    running = await serve(lambda _: http.reply({}))
    server = {"url": f"{running.url}/{{v}}", "variables": {"v": {"enum": ["a", "b"], "default": "a"}}}
    document = http.document({}, servers=[server])
    await connect(document, server_variables={"v": "b"}).execute("x", {})
    assert running.received[0].path == "/b/x"
    with pytest.raises(ValueError, match="one of a, b, not c"):
        connect(document, server_variables={"v": "c"})


async def test_version_2_has_host_and_base_path(serve: Serve, connect: Connect, http: Words) -> None:
    running = await serve(lambda _: http.reply({}))
    host = running.url.removeprefix("http://")
    document = http.document({}, version="2.0", host=host, basePath="/v2", schemes=["http"])
    await connect(document).execute("x", {})
    assert running.received[0].path == "/v2/x"


async def test_a_base_url_stands_in_for_the_documents_own_server_everywhere(
    serve: Serve, connect: Connect, http: Words
) -> None:
    running = await serve(lambda _: http.reply({}))
    document = http.document({"servers": [{"url": "https://api.test/v2"}]}, servers=[{"url": "https://api.test/v1"}])
    await connect(document, base_url=running.url).execute("x", {})
    assert running.received[0].path == "/v2/x"


async def test_a_relative_server_of_an_operation_is_relative_to_the_base(
    serve: Serve, connect: Connect, http: Words
) -> None:
    running = await serve(lambda _: http.reply({}))
    document = http.document({"servers": [{"url": "/other"}]})
    await connect(document, base_url=f"{running.url}/v1").execute("x", {})
    assert running.received[0].path == "/other/x"


async def test_a_server_on_another_host_is_refused_unless_allowed_and_gets_no_credentials(
    serve: Serve, connect: Connect, http: Words
) -> None:
    home, elsewhere = await serve(lambda _: http.reply({})), await serve(lambda _: http.reply({}))
    document = http.document({**SECURED, "servers": [{"url": elsewhere.url}]}, **KEY)
    options: dict[str, Any] = {"base_url": home.url, "credentials": {"key": "secret"}}
    error = await refused(connect(document, **options).execute("x", {}))
    assert "pass allow_hosts=" in error.message
    await connect(document, **options, allow_hosts=[elsewhere.url.removeprefix("http://")]).execute("x", {})
    assert (len(home.received), elsewhere.received[0].header("x-key")) == (0, None)


async def test_a_document_without_servers_needs_a_base_url(connect: Connect, http: Words) -> None:
    error = await refused(connect(http.document({})).execute("x", {}))
    assert error.message == "The document has no server URL: pass base_url"


# --- documents by address


async def in_thread(work: Any) -> Any:
    """Reading a document waits: beside a server of the same loop it needs a thread of its own."""
    import asyncio

    return await asyncio.to_thread(work)


async def test_a_relative_server_of_a_document_is_resolved_against_its_url(
    serve: Serve, connect: Connect, http: Words
) -> None:
    document = http.document({}, servers=[{"url": "v1"}])
    server = await serve(lambda received: http.reply(document if received.path == "/api/openapi.json" else {}))
    registry = await in_thread(lambda: connect(f"{server.url}/api/openapi.json"))
    await registry.execute("x", {})
    assert server.received[-1].path == "/api/v1/x"


async def test_a_document_from_a_url_cannot_name_another_host(serve: Serve, connect: Connect, http: Words) -> None:
    elsewhere = await serve(lambda _: http.reply({}))
    document = http.document({}, servers=[{"url": elsewhere.url}])
    server = await serve(lambda _: http.reply(document))
    registry = await in_thread(lambda: connect(server.url))
    assert "another host" in (await refused(registry.execute("x", {}))).message
    assert elsewhere.received == []


async def test_references_to_other_hosts_and_to_files_are_refused_from_an_address(
    serve: Serve, connect: Connect, http: Words, tmp_path: Path
) -> None:
    (tmp_path / "secret.json").write_text('{"type": "string"}')
    elsewhere = await serve(lambda _: http.reply({"type": "string"}))
    refs = [f"{elsewhere.url}/a.json", (tmp_path / "secret.json").as_uri(), "/parts/own.json"]
    properties = {str(index): {"$ref": ref} for index, ref in enumerate(refs)}
    schema = {"type": "object", "properties": properties}
    document = http.document({"requestBody": http.json_body(schema)}, method="post")
    server = await serve(lambda received: http.reply({"type": "integer"} if "parts" in received.path else document))
    imported = await in_thread(lambda: from_openapi(server.url))
    found = await in_thread(lambda: next(iter(imported)).spec.input_schema["properties"])
    assert (found["0"], found["1"]) == ({}, {})
    assert "$ref" in found["2"]
    assert elsewhere.received == []
    assert [each.why.rpartition(": ")[2] for each in imported.report.degraded][-1] == (
        "only a document that is a file itself may refer to files"
    )


@pytest.mark.parametrize(
    "options",
    [
        lambda _: {"allow_hosts": "127.0.0.1"},
        lambda url: {"allow_hosts": [url.removeprefix("http://")]},
        lambda url: {"allow_hosts": [url]},
    ],
    ids=["a name", "with its port", "an origin"],
)
async def test_references_to_an_allowed_host_are_read(
    serve: Serve, http: Words, options: Callable[[str], dict[str, Any]]
) -> None:
    elsewhere = await serve(lambda _: http.reply({"type": "string"}))
    document = http.document({"responses": http.json_response({"$ref": f"{elsewhere.url}/a.json"})})
    imported = from_openapi(document, base_url="http://127.0.0.1:9", **openapi_options(**options(elsewhere.url)))
    assert await in_thread(lambda: next(iter(imported)).spec.output_schema) == {"type": "string"}


def test_an_allowed_name_does_not_allow_plain_text_after_an_encrypted_connection() -> None:
    reach = Reach("https://api.test", ["cdn.test"])
    assert reach.refusal("https://cdn.test/a") is None
    assert "another host" in str(reach.refusal("http://cdn.test/a"))
    assert Reach("https://api.test", ["http://cdn.test"]).refusal("http://cdn.test/a") is None


@pytest.mark.parametrize(
    ("home", "allowed", "url", "is_refused"),
    [
        ("https://api.test", "", "HTTPS://API.test:443/a", False),
        ("https://api.test:443", "", "https://api.test", False),
        ("https://api.test", "", "https://api.test:8443", True),
        ("http://api.test", "", "http://api.test:0", True),
        ("https://api.test", "", "https://api.test.evil.test", True),
        ("https://api.test", "", "https://api.test@evil.test", True),
        ("https://b\u00fccher.test", "", "https://xn--bcher-kva.test/a", False),
        ("https://api.test", "B\u00fccher.test", "https://b\u00fccher.test/a", False),
        ("https://api.test", "https://b\u00fccher.test:8443/", "https://xn--bcher-kva.test:8443", False),
        ("https://api.test", "b\u00fccher.test", "https://bucher.test", True),
        ("https://api.test", "\udcff", "https://api.test/a", False),
        ("https://[::1]", "", "https://[::1]:443/a", False),
        ("https://api.test", "", "https://api.test:99999", True),
        ("https://api.test", "", "ftp://api.test", True),
        ("https://api.test", "", "https://", True),
        ("https://api.test", "", "https://[", True),
    ],
)
def test_an_address_is_where_it_leads_however_it_is_spelled(
    home: str, allowed: str, url: str, is_refused: bool
) -> None:
    assert (Reach(home, [allowed] if allowed else ()).refusal(url) is not None) is is_refused


def test_a_refusal_shows_no_secret_of_the_address() -> None:
    assert str(Reach("http://a").refusal("http://me:secret@b/x?key=secret")).startswith("http://b/x is on another host")


async def test_a_document_over_the_limit_or_redirected_to_another_host_is_not_read(serve: Serve, http: Words) -> None:
    elsewhere = await serve(lambda _: http.reply(http.document({})))
    server = await serve(lambda _: http.reply(b"", status="302 FoundOperation", headers={"Location": elsewhere.url}))
    with pytest.raises(LookupError, match="another host"):
        await in_thread(lambda: from_openapi(server.url))
    with pytest.raises(LookupError, match="exceeds the limit of 10 bytes"):
        await in_thread(lambda: from_openapi(elsewhere.url, service=Service(limits=OpenAPILimits(document_bytes=10))))


# --- a document behind a login


def behind_login(http: Words, authorization: str) -> Any:
    def answer(received: Received) -> bytes:
        if received.header("authorization") == authorization:
            return http.reply(http.document({}) if received.path == "/openapi.json" else {"called": True})
        return http.reply(b"", status="401 No", headers={"WWW-Authenticate": authorization.partition(" ")[0]})

    return answer


BASIC = "Basic YW5uOnNlY3JldA=="


@pytest.mark.parametrize(
    ("authorization", "options"),
    [
        ("Bearer t1", {"headers": {"Authorization": "Bearer t1"}}),
        ("Bearer t1", {"credentials": {"any": "t1"}}),
        ("Bearer t1", {"credentials": {"any": lambda: "t1"}}),
        ("Bearer t1", {"credentials": {"wrong": "t0", "right": {"token": "t1"}}}),
        (BASIC, {"credentials": {"any": ("ann", "secret")}}),
        (BASIC, {"credentials": {"any": "ann:secret"}}),
        (BASIC, {"credentials": {"any": {"username": "ann", "password": "secret"}}}),
    ],
    ids=["a header", "a token", "a function", "the second", "a pair", "a text", "names"],
)
@pytest.mark.parametrize("names_base", [False, True])
async def test_a_document_behind_a_login_is_fetched_with_what_the_user_gave(
    serve: Serve, http: Words, authorization: str, options: dict[str, Any], names_base: bool
) -> None:
    server = await serve(behind_login(http, authorization))
    base_url = server.url if names_base else None
    imported = await in_thread(lambda: from_openapi(f"{server.url}/openapi.json", base_url=base_url, **options))
    assert [operation.spec.id for operation in imported] == ["x"]
    await imported.aclose()


async def test_a_document_behind_a_login_is_fetched_with_the_users_client_which_works_afterwards(
    serve: Serve, connect: Connect, http: Words
) -> None:
    import httpx2

    server = await serve(behind_login(http, BASIC))
    async with httpx2.AsyncClient(auth=("ann", "secret")) as client:
        registry = await in_thread(lambda: connect(f"{server.url}/openapi.json", client=client))
        assert (await registry.execute("x", {})).data == {"called": True}
        assert (await registry.execute("x", {})).data == {"called": True}


@pytest.mark.parametrize(
    "options",
    [{"headers": {"Authorization": "Bearer t1"}}, {"credentials": {"any": "t1"}}],
    ids=["headers", "credentials"],
)
async def test_a_document_on_another_host_gets_no_credentials(
    serve: Serve, http: Words, options: dict[str, Any]
) -> None:
    server = await serve(behind_login(http, "Bearer t1"))
    with pytest.raises(LookupError, match="answered 401: pass headers"):
        await in_thread(lambda: from_openapi(f"{server.url}/openapi.json", base_url="http://127.0.0.1:9", **options))
    assert [each.header("authorization") for each in server.received] == [None]


async def test_headers_of_the_user_go_with_every_call_to_their_server_only(
    serve: Serve, connect: Connect, http: Words
) -> None:
    elsewhere = await serve(lambda _: http.reply({}))
    server = await serve(redirecting(http, "307 Temporary", f"{elsewhere.url}/y"))
    registry = connect(http.document({}), base_url=server.url, headers={"X-Tenant": "7"}, allow_hosts=[elsewhere.url])
    await registry.execute("x", {})
    assert (server.received[0].header("x-tenant"), elsewhere.received[0].header("x-tenant")) == ("7", None)


# --- redirects


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 FoundOperation", "303 See Other", "307 Temporary", "308 Permanent"]
)
async def test_a_redirect_without_a_location_is_not_a_success(
    serve: Serve, connect: Connect, http: Words, status: str
) -> None:
    server = await serve(lambda _: http.reply(b"", status=status))
    error = await refused(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert (error.code, "a redirect without a location" in error.message) == ("EXECUTION_ERROR", True)


def redirecting(http: Words, status: str, location: str) -> Any:
    def answer(received: Received) -> bytes:
        if received.path == "/x":
            return http.reply(b"", status=status, headers={"Location": location})
        return http.reply({"method": received.method, "body": received.body.decode()})

    return answer


@pytest.mark.parametrize(
    ("status", "method", "body"),
    [
        ("307 Temporary", "POST", '{"a":1}'),
        ("308 Permanent", "POST", '{"a":1}'),
        ("301 Moved", "GET", ""),
        ("302 FoundOperation", "GET", ""),
        ("303 See Other", "GET", ""),
    ],
)
async def test_a_redirect_of_the_same_origin_is_followed_and_only_307_and_308_keep_the_method(
    serve: Serve, connect: Connect, http: Words, status: str, method: str, body: str
) -> None:
    server = await serve(redirecting(http, status, "/y?b=2"))
    operation = {**SECURED, "requestBody": http.json_body({}), "responses": http.json_response({})}
    registry = connect(
        http.document(operation, method="post", **KEY), base_url=server.url, credentials={"key": "secret"}
    )
    envelope = await registry.execute("x", {"body": {"a": 1}})
    assert envelope.data == {"method": method, "body": body}
    assert (server.received[1].target, server.received[1].header("x-key")) == ("/y?b=2", "secret")


async def test_a_redirect_to_another_host_is_refused(serve: Serve, connect: Connect, http: Words) -> None:
    elsewhere = await serve(lambda _: http.reply({}))
    server = await serve(redirecting(http, "307 Temporary", f"{elsewhere.url}/y"))
    error = await refused(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert (error.code, error.details["status"]) == ("EXECUTION_ERROR", 307)
    assert "A redirect was refused" in error.message
    assert elsewhere.received == []


async def test_a_redirect_to_an_allowed_host_leaves_credentials_behind(
    serve: Serve, connect: Connect, http: Words
) -> None:
    elsewhere = await serve(lambda _: http.reply({}))
    server = await serve(redirecting(http, "307 Temporary", f"{elsewhere.url}/y"))
    parameter = {"name": "sid", "in": "cookie", "schema": {"type": "string"}}
    registry = connect(
        http.document({**SECURED, "parameters": [parameter]}, **KEY),
        base_url=server.url,
        credentials={"key": "secret"},
        allow_hosts=[elsewhere.url],
    )
    await registry.execute("x", {"sid": "1"})
    received = elsewhere.received[0]
    assert (received.header("x-key"), received.header("cookie")) == (None, None)


async def test_a_circle_of_redirects_ends(serve: Serve, connect: Connect, http: Words) -> None:
    server = await serve(redirecting(http, "307 Temporary", "/x"))
    error = await refused(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert (error.message, len(server.received)) == ("More than 5 redirects", 6)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://a/b", "http://[broken", "//evil.test/x"])
async def test_a_redirect_to_a_foreign_address_is_refused(
    serve: Serve, connect: Connect, http: Words, location: str
) -> None:
    server = await serve(redirecting(http, "302 FoundOperation", location))
    error = await refused(connect(http.document({}), base_url=server.url).execute("x", {}))
    assert "refused" in error.message


# --- files


def test_a_file_refers_to_files_beside_it_but_only_to_documents(tmp_path: Path, http: Words) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "pet.yaml").write_text("type: object\nproperties: {owner: {$ref: '../own.json#/Owner'}}\n")
    (tmp_path / "own.json").write_text('{"Owner": {"type": "string"}}')
    (tmp_path / "secret").write_text("password: 1")
    properties = {"pet": {"$ref": "parts/pet.yaml"}, "secret": {"$ref": "secret"}}
    schema = {"type": "object", "properties": properties}
    main = tmp_path / "openapi.json"
    main.write_bytes(msgspec.json.encode(http.document({"responses": http.json_response(schema)})))
    imported = from_openapi(main)
    found = next(iter(imported)).spec.output_schema
    assert found["properties"] == {"pet": {"$ref": "#/$defs/pet"}, "secret": {}}
    assert found["$defs"]["pet"]["properties"]["owner"] == {"$ref": "#/$defs/own_Owner"}
    assert "secret is not a .json, .yaml or .yml file" in str(imported.report)


OUTSIDE = {
    "up": "../outside/part.json",
    "up and back": "sub/../../outside/part.json",
    "encoded dots": "%2e%2e/outside/part.json",
    "encoded slash": "..%2Foutside%2Fpart.json",
    "absolute path": "{outside}/part.json",
    "file address": "file://{outside}/part.json",
    "file address of a host": "file://localhost{outside}/part.json",
    "file address with dots": "file://{folder}/../outside/part.json",
    "link to a file": "link.json",
    "link to a folder": "folder/part.json",
    "another host": "file://evil.test{folder}/part.json",
    "no file name": "part%00.json",
    "a sibling that begins alike": "../docs-private/part.json",
}


def folder_with_neighbours(root: Path) -> Path:
    """A folder for a document, with links that lead out of it and a neighbour it must not reach."""
    folder, outside, alike = root / "docs", root / "outside", root / "docs-private"
    for each in (folder, outside, alike):
        each.mkdir()
        (each / "part.json").write_text('{"type": "string", "description": "secret"}')
    (folder / "link.json").symlink_to(outside / "part.json")
    (folder / "folder").symlink_to(outside)
    return folder


def referring(http: Words, reference: str) -> bytes:
    return msgspec.json.encode(http.document({"responses": http.json_response({"$ref": reference})}))


@pytest.mark.parametrize("reference", OUTSIDE.values(), ids=OUTSIDE)
def test_a_reference_does_not_leave_the_documents_folder(tmp_path: Path, http: Words, reference: str) -> None:
    folder = folder_with_neighbours(tmp_path)
    (folder / "openapi.json").write_bytes(
        referring(http, reference.format(outside=tmp_path / "outside", folder=folder))
    )
    imported = from_openapi(folder / "openapi.json")
    assert next(iter(imported)).spec.output_schema == {}
    assert "secret" not in str(imported.report)
    assert any(each.where.startswith("#/paths") for each in imported.report.degraded)


@pytest.mark.parametrize(
    "reference", [each for name, each in OUTSIDE.items() if name not in ("another host", "no file name")]
)
def test_a_folder_that_is_allowed_may_be_referred_to(tmp_path: Path, http: Words, reference: str) -> None:
    folder = folder_with_neighbours(tmp_path)
    (folder / "openapi.json").write_bytes(
        referring(http, reference.format(outside=tmp_path / "outside", folder=folder))
    )
    allowed = Service(allow_files=[tmp_path / "outside", str(tmp_path / "docs-private")])
    imported = from_openapi(folder / "openapi.json", service=allowed)
    assert next(iter(imported)).spec.output_schema["description"] == "secret"


def test_a_document_that_is_a_link_refers_to_what_lies_beside_it_and_beside_its_target(
    tmp_path: Path, http: Words
) -> None:
    folder = folder_with_neighbours(tmp_path)
    (tmp_path / "outside" / "openapi.json").write_bytes(referring(http, "part.json"))
    (folder / "openapi.json").symlink_to(tmp_path / "outside" / "openapi.json")
    assert next(iter(from_openapi(folder / "openapi.json"))).spec.output_schema["description"] == "secret"
    (folder / "part.json").unlink()
    (folder / "part.json").symlink_to(tmp_path / "outside" / "part.json")
    assert next(iter(from_openapi(folder / "openapi.json"))).spec.output_schema["description"] == "secret"
