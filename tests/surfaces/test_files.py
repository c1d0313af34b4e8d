"""Files over HTTP, CGI and MCP: bytes with a media type as results, forms and raw bodies as arguments."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import httpx
import httpx2
import pytest
from fastmcp import Client as FastMCPClient
from mcp.client.streamable_http import streamable_http_client
from tests.gateway.conftest import serve as serve_here
from tests.serving import Answer, Client, serve
from tests.surfaces.mcp.conftest import STATELESS
from tests.surfaces.mcp.conftest import Client as MCPClient

from enfold import Identity, MediaType, OperationRegistry, http_envelope, testing
from enfold.auth.tokens import Tokens
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.cgi import to_cgi
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.openapi import to_openapi
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.testing.asgi import living
from mcp import ClientSession

PNG: Final = b"\x89PNG\r\n\x1a\n\x00\xff"
TEXT: Final = base64.b64encode(PNG).decode()
AWKWARD: Final = b"\x00\r\n--x\r\n--\r\n\xff--"  # looks like the end of a form


def lab() -> OperationRegistry:
    ops = OperationRegistry("lab")

    @ops.query
    def picture() -> Annotated[bytes, MediaType("image/png")]:
        return PNG

    @ops.query
    def sound(found: bool = True) -> Annotated[bytes, MediaType("audio/mpeg")] | None:
        return b"RIFF" if found else None

    @ops.query
    def report() -> Annotated[bytes, MediaType("application/pdf")]:
        return b"%PDF-1.7"

    @ops.query
    def page() -> Annotated[bytes, MediaType("text/html")]:
        return b"<script>alert(1)</script>"

    @ops.query
    def drawing() -> Annotated[bytes, MediaType("image/svg+xml")]:
        return b"<svg onload='alert(1)'/>"

    @ops.query
    def plain_bytes() -> bytes:
        return PNG

    @ops.query
    def proxied(kind: str) -> Any:
        return http_envelope(PNG, status_code=200, headers=[("content-type", kind)], content_type=kind)

    @ops.mutation
    def upload(content: bytes, name: str = "", tags: list[str] | None = None, size: int = 0) -> dict[str, Any]:
        return {"content": content.hex(), "name": name, "tags": tags, "size": size}

    @ops.mutation
    def convert(image: Annotated[bytes, MediaType("image/*")]) -> Annotated[bytes, MediaType("image/png")]:
        return image

    @ops.mutation
    def many(files: list[bytes], options: dict[str, int] | None = None) -> list[Any]:
        return [[each.hex() for each in files], options]

    @ops.mutation
    def add(x: int) -> int:
        return x

    return ops


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(to_http(lab(), HTTPSettings(max_body=1_000_000))) as server:
        yield server


# --- results over HTTP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "is_raw"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", False),
        ("application/*", False),
        ("image/png, application/json", False),
        ("image/png;q=0.5, */*", False),
        ("text/html,application/xhtml+xml,image/avif,image/webp,*/*;q=0.8", False),
        ("image/png", True),
        ("IMAGE/PNG", True),
        ("image/*", True),
        ("*/*;q=0.1, image/png", True),
        ("application/json;q=0.9, image/png", True),
        ("image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", True),
    ],
)
def test_a_caller_who_prefers_the_media_type_gets_the_file(client: Client, accept: str | None, is_raw: bool) -> None:
    answer = client.get("/functions/picture", **({} if accept is None else {"Accept": accept}))
    assert answer.status == 200
    if is_raw:
        assert (answer.headers["content-type"], answer.body) == ("image/png", PNG)
    else:
        assert (answer.headers["content-type"], answer.json) == ("application/json", {"result": TEXT})
    assert answer.headers["vary"] == "Accept"


@pytest.mark.parametrize(
    ("name", "kind", "disposition"),
    [
        ("picture", "image/png", 'inline; filename="lab.picture.png"'),
        ("sound", "audio/mpeg", 'inline; filename="lab.sound.mp3"'),
        ("report", "application/pdf", 'attachment; filename="lab.report.pdf"'),
        ("page", "text/html", 'attachment; filename="lab.page.html"'),
        ("drawing", "image/svg+xml", 'attachment; filename="lab.drawing.svg"'),
    ],
)
def test_a_file_cannot_become_a_page_of_the_server(client: Client, name: str, kind: str, disposition: str) -> None:
    headers = client.get(f"/functions/{name}", Accept=kind).headers
    assert headers["content-disposition"] == disposition
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]


Drawing: TypeAlias = Annotated[bytes, MediaType("image/png")] | Annotated[bytes, MediaType("application/pdf")]


def test_bytes_of_one_of_several_media_types_have_that_of_their_envelope() -> None:
    ops = OperationRegistry()

    @ops.query
    def draw(kind: str | None = None) -> Drawing:
        return PNG if kind is None else cast("Any", http_envelope(PNG, content_type=kind))

    with serve(to_http(ops)) as server:
        kinds = [
            server.request("GET", f"/functions/draw{query}", headers={"Accept": "image/png"}).headers["content-type"]
            for query in ("", "?kind=image/png", "?kind=application/pdf")
        ]
    assert kinds == ["application/octet-stream", "image/png", "application/pdf"]


def test_anything_but_a_file_stays_json(client: Client) -> None:
    accept = "audio/mpeg, */*;q=0.1"
    assert client.get("/functions/sound?found=false", Accept=accept).json == {"result": None}
    assert client.get("/functions/sound?found=maybe", Accept=accept).headers["content-type"] == "application/json"
    refused = client.get("/functions/plain_bytes", Accept="image/png")
    assert (refused.status, refused.headers["enfold-code"]) == (406, "VALIDATION_ERROR")
    refused = client.get("/functions/picture", Accept="image/gif")
    assert (refused.status, refused.json["error"]) == (
        406,
        "The response is application/json, which the Accept header does not allow",
    )


def test_head_and_cgi_answer_with_the_file_as_well(client: Client) -> None:
    head = client.request("HEAD", "/functions/picture", headers={"Accept": "image/*"})
    assert (head.headers["content-type"], head.headers["content-length"], head.body) == ("image/png", "10", b"")
    out = BytesIO()
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/picture", "HTTP_ACCEPT": "image/*"}
    to_cgi(lab(), environ=environ, stdin=BytesIO(), stdout=out)
    first, _, body = out.getvalue().partition(b"\r\n\r\n")
    assert b"Content-Type: image/png" in first
    assert body == PNG


# --- results over MCP ---------------------------------------------------------------------------------------------


async def mcp_call(name: str, given: Any = None, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = await MCPClient(to_mcp(lab(), **options), STATELESS).call(f"lab.{name}", given or {})
    return result


@pytest.mark.parametrize("format", ["result", "plain", "problem"])
async def test_images_and_audio_are_blocks_of_their_kind(format: str) -> None:
    picture = await mcp_call("picture", format=format)
    assert picture["content"] == [{"type": "image", "data": TEXT, "mimeType": "image/png"}]
    assert "structuredContent" not in picture
    assert not picture["isError"]
    sound = await mcp_call("sound", format=format)
    assert sound["content"] == [{"type": "audio", "data": "UklGRg==", "mimeType": "audio/mpeg"}]


async def test_other_files_are_embedded_resources() -> None:
    (block,) = (await mcp_call("report"))["content"]
    assert block["resource"] == {
        "uri": "enfold://result/lab.report.pdf",
        "mimeType": "application/pdf",
        "blob": base64.b64encode(b"%PDF-1.7").decode(),
    }
    nothing = await mcp_call("sound", {"found": False})
    assert nothing["content"] == [{"type": "text", "text": '{"result":null}'}]


async def test_a_tool_that_gives_files_advertises_no_output_schema() -> None:
    page = await MCPClient(to_mcp(lab()), STATELESS).result("tools/list")
    schemas = {tool["name"]: "outputSchema" in tool for tool in page["tools"]}
    assert [schemas[f"lab_{name}"] for name in ("picture", "sound", "report", "convert")] == [False] * 4
    assert [schemas[f"lab_{name}"] for name in ("plain_bytes", "upload", "many")] == [True] * 3


@pytest.mark.parametrize(("kind", "block"), [("image/webp", "image"), ("audio/ogg", "audio"), ("font/ttf", "text")])
async def test_an_image_of_any_source_is_an_image(kind: str, block: str) -> None:
    result = await mcp_call("proxied", {"kind": kind})
    (only,) = result["content"]
    assert only["type"] == block
    assert result["structuredContent"] == {"result": TEXT}  # as advertised
    if block != "text":
        assert (only["mimeType"], only["data"]) == (kind, TEXT)


async def test_a_format_that_the_caller_names_shows_the_data() -> None:
    meta = {"enfold/format": "envelope"}
    result = await MCPClient(to_mcp(lab()), STATELESS).call("lab.picture", {}, meta)
    assert json.loads(result["content"][0]["text"])["data"] == TEXT


async def test_a_limit_on_results_never_cuts_a_file() -> None:
    result = await mcp_call("picture", max_result_tokens=1)
    assert result["content"][0]["data"] == TEXT


@pytest.mark.parametrize("name", ["mcp", "fastmcp"])
async def test_clients_of_others_get_the_picture(name: str) -> None:
    async with serve_here(to_mcp(lab())) as url:
        if name == "fastmcp":
            async with FastMCPClient(f"{url}/mcp") as fast:
                (block,) = (await fast.call_tool("lab_picture", {})).content
                (proxied,) = (await fast.call_tool("lab_proxied", {"kind": "image/webp"})).content
        else:
            async with streamable_http_client(f"{url}/mcp") as streams, ClientSession(*streams[:2]) as session:
                await session.initialize()
                await session.list_tools()  # it checks results against what is listed
                (block,) = (await session.call_tool("lab_picture", {})).content
                (proxied,) = (await session.call_tool("lab_proxied", {"kind": "image/webp"})).content
    assert (getattr(block, "data", None), getattr(block, "mime_type", None)) == (TEXT, "image/png")
    assert getattr(proxied, "data", None) == TEXT


@pytest.mark.parametrize("format", ["result", "plain"])
async def test_a_gateway_passes_pictures_on(format: str) -> None:
    far = OperationRegistry()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_here(to_mcp(lab(), format=format)))
        far.register_all(await stack.enter_async_context(from_mcp(f"{url}/mcp", namespace="far")))
        result = await MCPClient(to_mcp(far, format=format), STATELESS).call("far.lab_picture", {})
        assert result["content"] == [{"type": "image", "data": TEXT, "mimeType": "image/png"}]
        assert (await far.execute("far.lab_proxied", {"kind": "image/webp"})).data == TEXT


# --- an OpenAPI service behind us ---------------------------------------------------------------------------------

SERVICE: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {"title": "images", "version": "1"},
    "paths": {
        "/picture": {
            "get": {
                "operationId": "picture",
                "responses": {"200": {"description": "", "content": {"image/*": {}}}},
            }
        },
        "/text": {
            "get": {
                "operationId": "text",
                "responses": {"200": {"description": "", "content": {"image/png": {}}}},
            }
        },
    },
}


async def _service(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    kind, body = (b"image/webp", PNG) if scope["path"] == "/picture" else (b"text/plain", b"aGVsbG8=")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


async def fetched(registry: OperationRegistry, operation: str, accept: str) -> Answer:
    headers = {"host": "localhost", "accept": accept}
    asked = testing.Conversation(to_http(registry), "GET", f"/functions/{operation}", headers)
    body = await asked.body()
    return Answer(asked.status, dict(asked.headers), body)


async def test_a_picture_of_an_openapi_service_keeps_its_own_type() -> None:
    far = OperationRegistry()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_here(_service))
        far.register_all(await stack.enter_async_context(from_openapi(SERVICE, namespace="far", base_url=url)))
        raw = await fetched(far, "far.picture", "image/webp")
        assert (raw.headers["content-type"], raw.body) == ("image/webp", PNG)
        assert (await fetched(far, "far.picture", "*/*")).json == {"result": TEXT}
        tool = MCPClient(to_mcp(far), STATELESS)
        assert (await tool.call("far.picture", {}))["content"] == [
            {"type": "image", "data": TEXT, "mimeType": "image/webp"}
        ]
        assert (await tool.call("far.text", {}))["content"] == [{"type": "text", "text": '{"result":"aGVsbG8="}'}]
        assert (await fetched(far, "far.text", "image/png")).json == {"result": "aGVsbG8="}


# --- uploads ------------------------------------------------------------------------------------------------------


def uploaded(content: bytes, **others: Any) -> dict[str, Any]:
    return {"result": {"content": content.hex(), "name": "", "tags": None, "size": 0, **others}}


def test_curl_uploads_a_form_and_a_raw_body(client: Client, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PNG + AWKWARD)
    url = f"http://127.0.0.1:{client.port}/functions"

    def curl(*words: str) -> Any:
        command = ["curl", "--silent", "--fail-with-body", *words]
        return json.loads(subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout)

    form = ["--form", "content=@photo.png", "--form", 'name=An "ä"', "--form", "tags=a", "--form", "tags=b"]
    assert curl(*form, "--form", "size=3", f"{url}/upload") == uploaded(
        PNG + AWKWARD, name='An "ä"', tags=["a", "b"], size=3
    )
    raw = ["--data-binary", "@photo.png", "--header", "Content-Type: application/octet-stream"]
    assert curl(*raw, f"{url}/upload?name=x&tags=a&size=3") == uploaded(PNG + AWKWARD, name="x", tags=["a"], size=3)
    assert curl("--form", "files=@photo.png", "--form", "files=", "--form", 'options={"a":1}', f"{url}/many") == {
        "result": [[(PNG + AWKWARD).hex(), ""], {"a": 1}]
    }
    command = ["curl", "--silent", "--form", "image=@photo.png", "--header", "Accept: image/*", f"{url}/convert"]
    assert subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout == PNG + AWKWARD


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_python_clients_upload_forms(client: Client, library: Any) -> None:
    answer = library.post(
        f"http://127.0.0.1:{client.port}/functions/upload",
        files={"content": ('ä "q".png', PNG + AWKWARD, "image/png")},
        data={"name": "Ann", "tags": ["a", "b"]},
    )
    assert answer.json() == uploaded(PNG + AWKWARD, name="Ann", tags=["a", "b"])


NODE: Final = """
const form = new FormData();
form.append("content", new Blob([new Uint8Array([0, 13, 10, 45, 45, 255])]), 'a "b".bin');
form.append("name", "Ann\\nLee");
const answer = await fetch(process.argv[1], {method: "POST", body: form});
console.log(await answer.text());
"""


def test_node_uploads_a_form(client: Client) -> None:
    url = f"http://127.0.0.1:{client.port}/functions/upload"
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", NODE, url], capture_output=True, check=True, text=True
    )
    assert json.loads(done.stdout) == uploaded(b"\x00\r\n--\xff", name="Ann\r\nLee")


def form(*parts: str | bytes, boundary: str = "x", end: bytes = b"--\r\n") -> bytes:
    delimiter = f"--{boundary}".encode()
    texts = [each.encode() if isinstance(each, str) else each for each in parts]
    return b"".join(delimiter + b"\r\n" + each + b"\r\n" for each in texts) + delimiter + end


FILE: Final = b'Content-Disposition: form-data; name="content"; filename="a"\r\n\r\n' + PNG


def post(client: Client, body: bytes, kind: str = "multipart/form-data; boundary=x", name: str = "upload") -> Answer:
    return client.request("POST", f"/functions/{name}", body, {"Content-Type": kind})


@pytest.mark.parametrize(
    "body",
    [
        form(FILE),
        b"preamble\r\n" + form(FILE) + b"epilogue --x",
        form(FILE, end=b"--"),
        form(FILE).replace(b"--x\r\n", b"--x \t\r\n", 1),
        form(FILE.replace(b"Content-Disposition", b"content-disposition").replace(b'"content"', b"content")),
        form(FILE, b'Content-Disposition: form-data; name="name"; filename=""\r\n\r\n'),
        form(b"Content-Type: image/png\r\n" + FILE),
    ],
    ids=["usual", "preamble", "no last line break", "padding", "lower case", "empty choice", "content type"],
)
def test_forms_may_be_written_in_several_ways(client: Client, body: bytes) -> None:
    assert post(client, body).json == uploaded(PNG)


def test_choosing_no_file_sends_no_file(client: Client) -> None:
    answer = post(client, form(b'Content-Disposition: form-data; name="content"; filename=""\r\n\r\n'))
    assert (answer.status, answer.json["error"]) == (400, 'Argument "content" is missing (expected string)')


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"", "multipart/form-data; boundary=x", 400, "ends before its last boundary"),
        (form(FILE, end=b"\r\n"), "multipart/form-data; boundary=x", 400, "ends before its last boundary"),
        (form(FILE)[:-40], "multipart/form-data; boundary=x", 400, "ends before its last boundary"),
        (form(FILE), "multipart/form-data", 400, "needs a boundary"),
        (form(FILE), "multipart/form-data; boundary=", 400, "needs a boundary"),
        (form(FILE), f"multipart/form-data; boundary={'x' * 71}", 400, "needs a boundary"),
        (form("\r\n\r\n"), "multipart/form-data; boundary=x", 400, "part 1 needs the header Content-Disposition"),
        (form(""), "multipart/form-data; boundary=x", 400, "part 1 has no end of its headers"),
        (form(b"A: " + b"b" * 9000 + b"\r\n" + FILE), "multipart/form-data; boundary=x", 400, "within 8192 bytes"),
        (form(FILE.replace(b"form-data", b"attachment")), "multipart/form-data; boundary=x", 400, "part 1 needs"),
        (form(FILE.replace(b"\r\n", b"\n")), "multipart/form-data; boundary=x", 400, "no end of its headers"),
        (form(b"Content-Transfer-Encoding: base64\r\n" + FILE), "multipart/form-data; boundary=x", 400, "unencoded"),
        (form(FILE, FILE), "multipart/form-data; boundary=x", 400, 'Argument "content" takes one file'),
        (form(*[FILE] * 1001), "multipart/form-data; boundary=x", 400, "more than 1000 parts"),
        (
            form(FILE, b'Content-Disposition: form-data; name="name"\r\n\r\n\xff'),
            "multipart/form-data; boundary=x",
            400,
            'Argument "name" must be UTF-8 text',
        ),
        (
            form(FILE, b'Content-Disposition: form-data; name="size"\r\n\r\nmany'),
            "multipart/form-data; boundary=x",
            400,
            'Argument "size" must be integer',
        ),
        (
            form(FILE, b'Content-Disposition: form-data; name="other"\r\n\r\n'),
            "multipart/form-data; boundary=x",
            400,
            'Unknown argument "other"',
        ),
        (PNG, "image/png", 415, "The body must be application/json, multipart/form-data or application/octet-stream"),
        (b"x" * 1_000_001, "application/octet-stream", 413, "larger than 1000000 bytes"),
        (form(b"x" * 1_000_001), "multipart/form-data; boundary=x", 413, "larger than 1000000 bytes"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_a_reason(
    client: Client, body: bytes, kind: str, status: int, said: str
) -> None:
    answer = post(client, body, kind)
    assert (answer.status, said in answer.json["error"]) == (status, True), answer.json


@pytest.mark.parametrize(
    ("body", "kind"),
    [(form(FILE), "multipart/form-data; boundary=x"), (PNG, "application/octet-stream")],
    ids=["form", "raw"],
)
def test_the_query_string_has_other_arguments_and_repeats_none(client: Client, body: bytes, kind: str) -> None:
    others = post(client, body, kind, "upload?size=3&tags=a&format=envelope")
    assert others.json["data"] == uploaded(PNG, size=3, tags=["a"])["result"]
    for query in ("content=aGk=", "content=aGk=&size=3"):
        twice = post(client, body, kind, f"upload?{query}")
        assert (twice.status, "The argument content is given twice" in twice.json["error"]) == (400, True)
    assert post(client, body, kind, "upload?other=1").json == {"error": 'Unknown argument "other"'}


def test_a_declared_media_type_is_taken_as_a_raw_body(client: Client) -> None:
    answer = client.request("POST", "/functions/convert", PNG, {"Content-Type": "image/webp", "Accept": "image/png"})
    assert answer.body == PNG
    assert post(client, b"{}", "text/csv", "convert").status == 415


def test_a_file_without_a_media_type_is_answered_with_those_there_are(client: Client) -> None:
    answer = client.request("POST", "/functions/upload", PNG)
    expected = "application/json, multipart/form-data or application/octet-stream"
    assert (answer.status, answer.json["error"]) == (415, f"The body must be {expected}")


def test_an_operation_without_files_takes_json_alone(client: Client) -> None:
    for kind in ("multipart/form-data; boundary=x", "application/octet-stream"):
        answer = post(client, form(FILE), kind, "add")
        assert (answer.status, answer.json["error"]) == (415, "The body must be application/json")
    assert post(client, form(FILE), name="many").status == 400  # several files are no raw body, but a form
    assert post(client, PNG, "application/octet-stream", "many").status == 415


def test_an_input_that_was_left_blank_is_left_out(client: Client) -> None:
    """As browsers send numbers, dates, choices and lists without a value; a text may be empty."""
    blank = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n' for name in ("name", "tags", "size")]
    assert post(client, form(FILE, *blank)).json == uploaded(PNG)
    ops = OperationRegistry()

    @ops.mutation
    def plan(file: bytes, day: date | None = None, kind: Literal["a", "b"] = "a", note: str | None = None) -> list[Any]:
        return [len(file), day, kind, note]

    blank = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n' for name in ("day", "kind", "note")]
    file = FILE.replace(b'"content"', b'"file"')
    with serve(to_http(ops)) as server:
        assert post(server, form(file, *blank), name="plan").json == {"result": [len(PNG), None, "a", ""]}


def test_a_line_of_a_file_that_only_begins_like_the_last_boundary_is_kept(client: Client) -> None:
    content = PNG + b"\r\n--x--y\r\n--xy\r\n--x-"
    assert post(client, form(FILE[: -len(PNG)] + content)).json == uploaded(content)


def test_a_hostile_body_is_read_in_one_pass(client: Client) -> None:
    """Lines that only begin like the boundary do not end a part, however many there are."""
    lines = b"\r\n--xy" * 100_000
    assert post(client, form(FILE + lines)).json == uploaded(PNG + lines)


def test_cgi_takes_forms() -> None:
    out = BytesIO()
    body = form(FILE)
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/upload",
        "CONTENT_TYPE": "multipart/form-data; boundary=x",
        "CONTENT_LENGTH": str(len(body)),
    }
    to_cgi(lab(), environ=environ, stdin=BytesIO(body), stdout=out)
    assert json.loads(out.getvalue().partition(b"\r\n\r\n")[2]) == uploaded(PNG)


# --- forms of other sites -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/octet-stream"])
def test_a_form_of_another_site_is_refused(client: Client, headers: dict[str, str], kind: str) -> None:
    answer = client.request("POST", "/functions/upload", form(FILE), {"Content-Type": kind, **headers})
    assert (answer.status, answer.headers["enfold-code"]) == (403, "ACCESS_DENIED")


def test_a_form_needs_the_token_that_json_needs() -> None:
    with serve(to_http(lab(), tokens=Tokens({"right": Identity("ann")}))) as server:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        assert server.request("POST", "/functions/upload", form(FILE), kind).status == 401
        allowed = {**kind, "Authorization": "Bearer right"}
        assert server.request("POST", "/functions/upload", form(FILE), allowed).json == uploaded(PNG)


# --- the document -------------------------------------------------------------------------------------------------


def test_the_document_describes_bodies_and_files() -> None:
    document = to_openapi(lab())
    upload = document["paths"]["/functions/lab.upload"]["post"]["requestBody"]["content"]
    assert list(upload) == ["application/json", "multipart/form-data", "application/octet-stream"]
    written = document["components"]["schemas"]["lab_upload_form"]
    assert written["properties"]["content"] == {"type": "string", "format": "binary"}
    assert written["required"] == ["content"]
    many = document["paths"]["/functions/lab.many"]["post"]["requestBody"]["content"]
    assert list(many) == ["application/json", "multipart/form-data"]
    convert = document["paths"]["/functions/lab.convert"]["post"]
    assert convert["requestBody"]["content"]["multipart/form-data"]["encoding"] == {"image": {"contentType": "image/*"}}
    assert "image/*" in convert["requestBody"]["content"]
    answer = convert["responses"]["200"]["content"]
    assert list(answer) == ["application/json", "image/png"]
    assert answer["image/png"]["schema"]["contentMediaType"] == "image/png"
    assert list(document["paths"]["/functions/lab.add"]["post"]["requestBody"]["content"]) == ["application/json"]


def test_a_rest_route_takes_and_gives_files() -> None:
    ops = OperationRegistry("lab")

    @ops.mutation(http="PUT /photos/{name}")
    def keep(name: str, photo: bytes, width: int = 1) -> Annotated[bytes, MediaType("image/png")]:
        return photo + f" {name} {width}".encode()

    with serve(to_http(ops)) as server:
        kind = {"Content-Type": "application/octet-stream", "Accept": "image/png"}
        assert server.request("PUT", "/photos/a?width=2", PNG, kind).body == PNG + b" a 2"
        content = b'Content-Disposition: form-data; name="photo"\r\n\r\n' + PNG
        width = 'Content-Disposition: form-data; name="width"\r\n\r\n3'
        sent = {**kind, "Content-Type": "multipart/form-data; boundary=x"}
        assert server.request("PUT", "/photos/b", form(content, width), sent).body == PNG + b" b 3"
    document = to_openapi(ops)
    bodies = document["paths"]["/photos/{name}"]["put"]["requestBody"]["content"]
    assert list(bodies) == ["application/json", "multipart/form-data", "application/octet-stream"]
    assert list(document["components"]["schemas"]["lab_keep_rest_form"]["properties"]) == ["photo", "width"]


async def test_another_enfold_uploads_and_downloads_by_the_document() -> None:
    far = OperationRegistry()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_here(to_http(lab())))
        source = from_openapi(to_openapi(lab()), namespace="far", base_url=url)
        far.register_all(await stack.enter_async_context(source))
        sent = await far.execute("far.lab_upload", {"content": TEXT})
        assert sent.data == uploaded(PNG)
        assert (await far.execute("far.lab_picture_get")).data == {"result": TEXT}


# --- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Annotated[str, MediaType("text/plain")], "MediaType can only be applied to bytes"),
        (Annotated[bytes, MediaType("image/*")], "must not be a range"),
    ],
)
def test_a_media_type_that_cannot_be_meant_is_refused(annotation: Any, said: str) -> None:
    def give() -> Any: ...

    give.__annotations__["return"] = annotation
    with pytest.raises(TypeError, match=said):
        OperationRegistry().query(give)


@pytest.mark.parametrize("name", ["", "png", "image/", "image/png\r\nX: y", "image png", "a/b;", "x/" + "y" * 300])
def test_anything_but_a_media_type_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a media type"):
        MediaType(name)


async def test_a_task_answers_with_its_file() -> None:
    ops = OperationRegistry("lab")

    @ops.mutation(durable=True)
    async def render() -> Annotated[bytes, MediaType("image/png")]:
        return PNG

    tasks = Tasks(ops, MemoryTasks())
    app = to_http(ops, tasks=tasks)
    async with tasks, living(app):
        headers = {"host": "localhost", "content-type": "application/json", "prefer": "respond-async, wait=20"}
        asked = testing.Conversation(app, "POST", "/functions/render", {**headers, "accept": "image/png"}, b"{}")
        body = await asked.body()
    assert (asked.status, asked.headers["content-type"], body) == (200, "image/png", PNG)
