"""What tools and tasks cost a model, counted with a real tokenizer, and how quickly operations are found.

`python -m benchmarks agents`. The documents are GitHub's (from npm), and Trello's and Box's where the shared data lies beside the
project. Nothing here is timed against the clock of a loaded machine: times are those of the processor.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.environments import HOME, ROOT
from benchmarks.openapi import GITHUB, ask_mcp
from enfold import Context, OperationRegistry, OperationSpec
from enfold.operations import Operation
from enfold.operations.outcomes import envelope_of
from enfold.schema.structs import encode
from enfold.search.finder import Finder
from enfold.sources.openapi import from_openapi
from enfold.sources.options import Shape
from enfold.surfaces.mcp import to_mcp

NPM: Final = HOME / "npm"
TOKENIZER: Final = "gpt-tokenizer@3.4.0"
SHARED: Final = ROOT.parent / "shared/data/openapi/documents"
TRELLO: Final = SHARED / "guru__trello.com_1.0_openapi.yaml"
BOX: Final = SHARED / "box_box-openapi__openapi_openapi-v2025.0.json"
RECORDS: Final = 30


def main(_rounds: int) -> int:
    _install()
    _show_finding()
    _show_selecting()
    asyncio.run(_show_costs())
    return 0


# --- counting tokens ----------------------------------------------------------------------------------------------


def _install() -> None:
    if not (NPM / "node_modules/gpt-tokenizer").exists() or not _github().exists():
        npm = str(ROOT / ".venv/bin/npm")
        subprocess.run([npm, "install", "--silent", "--no-audit", "--prefix", str(NPM), TOKENIZER, GITHUB], check=True)


def _github() -> Path:
    return NPM / "node_modules/@octokit/openapi/generated/api.github.com.json"


def count_tokens(texts: list[str]) -> list[int]:
    """The tokens of each text by o200k_base."""
    node = str(ROOT / ".venv/bin/node")
    lines = "\n".join(json.dumps(text) for text in texts)
    done = subprocess.run(
        [node, str(ROOT / "benchmarks/tokens.mjs"), str(NPM)], input=lines, text=True, check=True, capture_output=True
    )
    return [int(line) for line in done.stdout.split()]


# --- finding among ten thousand -----------------------------------------------------------------------------------


def _show_finding() -> None:
    documents = [_github(), *(each for each in (TRELLO, BOX) if each.exists())]
    specs = [each.spec for document in documents for each in from_openapi(str(document), base_url="http://127.0.0.1:1")]
    registry = OperationRegistry()
    registry.register_all(_copies(specs, 10_000))
    for spec in registry.list():
        _ = spec.input_schema, spec.output_schema
    finder = Finder(registry)
    before, began = _memory(), time.process_time()
    finder.find("warm up", None)
    print(
        f"\n10,000 operations: indexed in {time.process_time() - began:.1f} s, {_memory() - before:.0f} MB (at most 50)"
    )
    chosen = random.Random(1)  # noqa: S311  # the same queries every time
    queries = [chosen.choice(specs).description.partition("\n")[0] or "get a card" for _ in range(500)]
    times = sorted(_timed(partial(finder.find, query, None)) for query in queries)
    middle, late = statistics.median(times), times[int(len(times) * 0.99)]
    print(f"search: median {middle * 1e3:.1f} ms, p99 {late * 1e3:.1f} ms (at most 20)")
    app = to_mcp(registry, expose="search")
    asyncio.run(_listed(app))
    took = min(_timed(lambda: asyncio.run(_listed(app))) for _ in range(5))
    print(f"tools/list with search: {took * 1e3:.1f} ms (at most 50)", flush=True)


def _copies(specs: list[OperationSpec], count: int) -> list[Operation]:
    sources = [specs[number % len(specs)] for number in range(count)]
    made = [spec.replace(namespace=f"n{number // len(specs)}.{number % 7}") for number, spec in enumerate(sources)]
    named = {spec.id: spec for spec in made}
    left = count - len(named)
    more = [specs[number].replace(namespace=f"more{number}") for number in range(left)]
    return [Operation(spec, _nothing) for spec in (*named.values(), *more)]


async def _nothing(*_: Any) -> None: ...


def _timed(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _memory() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1_024


# --- selecting ----------------------------------------------------------------------------------------------------


class User(msgspec.Struct):
    login: str
    url: str


class Issue(msgspec.Struct):
    number: int
    title: str
    body: str
    state: str
    user: User
    labels: list[str]


def _show_selecting() -> None:
    issues = [
        Issue(each, f"title {each}", "x" * 120, "open", User("ann", "https://example.com"), []) for each in range(4_000)
    ]
    data = msgspec.to_builtins(issues)
    ops = OperationRegistry()

    @ops.query
    async def records() -> list[Issue]:
        return data  # type: ignore[no-any-return]

    prepared = ops.prepared("records", for_writing=True)

    async def run(select: str | None) -> bytes:
        context = Context() if select else None
        if context is not None:
            context.select = select
        return encode({"result": envelope_of(await prepared.execute({}, context)).data})

    pairs = [
        (_timed(lambda: asyncio.run(run(None))), _timed(lambda: asyncio.run(run("number,title,user/login"))))
        for _ in range(15)
    ]
    whole, less = (statistics.median(each) for each in zip(*pairs, strict=True))
    size = len(msgspec.json.encode(data)) / 1_000_000
    print(
        f"\nselect from {size:.1f} MB: {less * 1e3:.1f} ms, whole {whole * 1e3:.1f} ms: {less / whole:.2f} (at most 2)"
    )


# --- what a model reads -------------------------------------------------------------------------------------------


class Task(msgspec.Struct, frozen=True):
    """Something to be done with one operation: what is looked for, the arguments, and which fields are wanted."""

    query: str
    operation: str
    fastmcp: str
    arguments: dict[str, Any]
    select: str
    answer: Callable[[Any], Any]


TASKS: Final = (
    Task(
        "list the open issues of a repository",
        "github.issues_list-for-repo",
        "issueslist_for_repo",
        {"owner": "tea", "repo": "pot"},
        "number,title,user/login",
        lambda found: [(each["number"], each["title"], each["user"]["login"]) for each in found],
    ),
    Task(
        "get the cards on a list",
        "trello.getListsCardsByIdList",
        "getListsCardsByIdList",
        {"idList": "l1"},
        "id,name,due",
        lambda found: [(each["id"], each["name"], each["due"]) for each in found],
    ),
    Task(
        "list the hubs in Box",
        "box.get_hubs_v2025_0",
        "get_hubs_v2025_0",
        {"box-version": "2025.0"},
        "entries(id,title)",
        lambda found: [(each["id"], each["title"]) for each in found["entries"]],
    ),
)
SECRETS: Final = {"key": "k" * 32, "token": "t" * 64}


async def _show_costs() -> None:
    if not TRELLO.exists():
        print("\nTrello's and Box's documents are not here: no costs are counted")
        return
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        ways = {
            "all": await _by_list(base),
            "search and select": await _by_search(base),
            "FastMCP with its search": await _by_fastmcp(base),
        }
    lists = count_tokens([ways["all"][0], ways["search and select"][0], ways["FastMCP with its search"][0]])
    print(
        f"\ntools/list of GitHub, Trello and Box: all {lists[0]:,} tokens, search {lists[1]:,}: {lists[0] / lists[1]:,.0f}x fewer (at least 100)"
    )
    for place, task in enumerate(TASKS):
        texts = {way: "".join(said[1][place][0]) for way, said in ways.items()}
        answers = {way: said[1][place][1] for way, said in ways.items()}
        same = len({json.dumps(answer) for answer in answers.values()}) == 1
        tokens = dict(zip(texts, count_tokens(list(texts.values())), strict=True))
        whole = {way: tokens[way] + cost for way, cost in zip(ways, lists, strict=True)}
        ours = whole["search and select"]
        told = ", ".join(f"{way} {cost:,} ({cost / ours:.1f}x)" for way, cost in whole.items())
        print(f"{task.query}: {told}; {'the same answer' if same else 'DIFFERENT ANSWERS'}", flush=True)


def _registry(base: str) -> OperationRegistry:
    ops = OperationRegistry()
    for namespace, document in (("github", _github()), ("trello", TRELLO), ("box", BOX)):
        shape = Shape(fix=SECRETS if namespace == "trello" else {})
        ops.register_all(from_openapi(str(document), namespace=namespace, base_url=base, shape=shape))
    return ops


async def _listed(app: Any) -> str:
    """All that `tools/list` gives, page by page."""
    tools: list[Any] = []
    cursor: str | None = None
    while True:
        answer = await _result(app, "tools/list", {} if cursor is None else {"cursor": cursor})
        tools += answer["tools"]
        cursor = answer.get("nextCursor")
        if cursor is None:
            return json.dumps(tools, separators=(",", ":"), ensure_ascii=False)


async def _result(app: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request, whether it came as JSON or, because it took its time, as the last of some events."""
    text = await ask_mcp(app, method, params)
    message = text if text.startswith(b"{") else text.rpartition(b"data: ")[2]
    result: dict[str, Any] = json.loads(message)["result"]
    return result


Way = tuple[str, list[tuple[list[str], Any]]]


async def _by_list(base: str) -> Way:
    app = to_mcp(_registry(base))
    done = []
    for task in TASKS:
        name = task.operation.replace(".", "_")
        said, result = await _called(app, name, task.arguments)
        done.append((said, task.answer(result)))
    return await _listed(app), done


async def _by_search(base: str) -> Way:
    app = to_mcp(_registry(base), expose="search")
    done = []
    for task in TASKS:
        asked, found = await _called(app, "search_operations", {"query": task.query})
        if task.operation not in [each["id"] for each in found]:
            raise LookupError(f"{task.query} finds no {task.operation}")
        call = {"id": task.operation, "arguments": task.arguments, "select": task.select}
        said, result = await _called(app, "call_operation", call)
        done.append(([*asked, *said], task.answer(result)))
    return await _listed(app), done


async def _called(app: Any, name: str, arguments: dict[str, Any]) -> tuple[list[str], Any]:
    """What a model writes to call a tool and what it reads, and the result."""
    answer = await _result(app, "tools/call", {"name": name, "arguments": arguments})
    text = answer["content"][0]["text"]
    if answer["isError"]:
        raise RuntimeError(text)
    return [json.dumps({"name": name, "arguments": arguments}), text], json.loads(text)["result"]


async def _by_fastmcp(base: str) -> Way:
    """FastMCP with its own search, over the three documents mounted together."""
    fastmcp, httpx = import_module("fastmcp"), import_module("httpx2")
    search = import_module("fastmcp.server.transforms.search")
    sys.setrecursionlimit(20_000)
    whole = fastmcp.FastMCP("all")
    for namespace, document in (("github", _github()), ("trello", TRELLO), ("box", BOX)):
        client = httpx.AsyncClient(base_url=base)
        whole.mount(fastmcp.FastMCP.from_openapi(openapi_spec=_document(document), client=client), namespace=namespace)
    whole.add_transform(search.BM25SearchTransform())
    async with fastmcp.Client(whole) as client:
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in await client.list_tools()]
        done = [await _fastmcp_task(client, task) for task in TASKS]
    return json.dumps(tools, separators=(",", ":"), ensure_ascii=False), done


async def _fastmcp_task(client: Any, task: Task) -> tuple[list[str], Any]:
    said: list[str] = []
    name = None
    for query in (task.query, task.fastmcp):  # where the words find nothing, the operation's own name does
        if name is None:
            found = (await client.call_tool("search_tools", {"query": query})).content[0].text
            said += [json.dumps({"name": "search_tools", "arguments": {"query": query}}), found]
            name = next((each["name"] for each in json.loads(found) if task.fastmcp in each["name"]), None)
    secrets = SECRETS if task.operation.startswith("trello.") else {}
    call = {"name": name, "arguments": {**task.arguments, **secrets}}
    text = (await client.call_tool("call_tool", call)).content[0].text
    result = json.loads(text)
    inner = result["result"] if isinstance(result, dict) and set(result) == {"result"} else result
    return [*said, json.dumps({"name": "call_tool", "arguments": call}), text], task.answer(inner)


def _document(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    return import_module("yaml").safe_load(path.read_text(encoding="utf-8"))


# --- the services -------------------------------------------------------------------------------------------------


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests with records as large as the services give them."""
    try:
        while line := await reader.readline():
            path = line.split()[1].decode()
            while (await reader.readline()).strip():
                pass
            body = json.dumps(_records(path)).encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
    except asyncio.CancelledError:  # the benchmark is over
        pass
    finally:
        writer.close()


def _records(path: str) -> Any:
    numbers = range(RECORDS)
    if "/issues" in path:
        return [_issue(number) for number in numbers]
    if "/cards" in path:
        return [_card(number) for number in numbers]
    return {"entries": [_hub(number) for number in numbers], "limit": RECORDS, "next_marker": "m"}


def _issue(number: int) -> dict[str, Any]:
    url = f"https://api.github.com/repos/tea/pot/issues/{number}"
    links = ("comments", "events", "labels", "timeline")
    return {
        "id": 10_000 + number,
        "node_id": f"I_kwDO{number:08}",
        "url": url,
        "repository_url": "https://api.github.com/repos/tea/pot",
        **{f"{name}_url": f"{url}/{name}" for name in links},
        "html_url": f"https://github.com/tea/pot/issues/{number}",
        "number": number,
        "state": "open",
        "state_reason": None,
        "title": f"The pot drips, case {number}",
        "body": "When it is poured quickly, tea runs down the spout. Steps to see it: fill the pot, pour, look. " * 3,
        "user": _person("ann", number),
        "labels": [],
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "locked": False,
        "active_lock_reason": None,
        "comments": 2,
        "closed_at": None,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-02T00:00:00Z",
        "author_association": "MEMBER",
    }


def _person(login: str, number: int) -> dict[str, Any]:
    url = f"https://api.github.com/users/{login}"
    links = ("followers", "following", "gists", "starred", "subscriptions", "organizations", "repos", "events")
    return {
        "login": login,
        "id": number,
        "node_id": f"U_{number:08}",
        "avatar_url": f"https://avatars.githubusercontent.com/u/{number}",
        "gravatar_id": "",
        "url": url,
        "html_url": f"https://github.com/{login}",
        **{f"{name}_url": f"{url}/{name}" for name in links},
        "received_events_url": f"{url}/received_events",
        "type": "User",
        "site_admin": False,
    }


def _card(number: int) -> dict[str, Any]:
    badges = dict.fromkeys(("votes", "attachments", "comments", "checkItems", "checkItemsChecked", "location"), 0)
    return {
        "id": f"{number:024x}",
        "address": None,
        "badges": {**badges, "due": None, "description": True, "fogbugz": ""},
        "checkItemStates": [],
        "closed": False,
        "dateLastActivity": "2026-01-01T00:00:00.000Z",
        "desc": "Buy the green one. The shop at the corner has it, and is open until six. " * 3,
        "descData": {"emoji": {}},
        "due": "2026-02-01T00:00:00.000Z",
        "dueComplete": False,
        "idBoard": "b" * 24,
        "idChecklists": [],
        "idLabels": [],
        "idList": "l1",
        "idMembers": [],
        "idShort": number,
        "labels": [],
        "limits": {"attachments": {"perCard": {"status": "ok", "disableAt": 1000, "warnAt": 800}}},
        "name": f"Buy tea {number}",
        "pos": 65535 * number,
        "shortLink": f"s{number:07}",
        "shortUrl": f"https://trello.com/c/s{number:07}",
        "subscribed": False,
        "url": f"https://trello.com/c/s{number:07}/{number}-buy-tea",
        "cover": {"color": None, "size": "normal", "brightness": "light"},
    }


def _hub(number: int) -> dict[str, Any]:
    person = {"type": "user", "id": "7", "name": "Ann", "login": "ann@example.com"}
    return {
        "id": str(number),
        "type": "hubs",
        "title": f"Hub {number}",
        "description": "All about tea, with the documents that the kitchen needs. " * 3,
        "view_count": 3,
        "is_ai_enabled": True,
        "is_collaboration_restricted_to_enterprise": False,
        "can_non_owners_invite": True,
        "can_shared_link_be_created": True,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "created_by": person,
        "updated_by": person,
    }


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
