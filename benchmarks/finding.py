"""How well operations are found, judged by annotated tasks that others wrote: LiveMCPBench's steps are the queries, its tools the answers.

`python -m benchmarks.finding TOOLS ANNOTATIONS` takes the two files of its repository (`tools/LiveMCPTool/tools.json` and
`annotated_data/all_annotations.json`), of which nothing is kept here. Beside us: BM25 over names and descriptions as they are, and the text
and words that FastMCP's search takes. A tool counts as found where it is among the first K of one of its task's steps. The
ranking was tuned on one half of the tasks, and is shown for the other half as well.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from hashlib import sha256
from math import log
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from enfold import OperationRegistry, OperationSpec
from enfold.operations import Operation
from enfold.search.finder import Finder

Search: TypeAlias = Callable[[str, int], Iterable[int]]
FIRST: Final = (1, 5, 10)


class Tool(msgspec.Struct, frozen=True):
    """A tool of the bench."""

    server: str
    name: str
    description: str
    schema: dict[str, Any]


class Task(msgspec.Struct, frozen=True):
    """A task: its steps, for each of its tools which ones have that name, and whether the ranking was tuned on it."""

    steps: list[str]
    tools: list[set[int]]
    is_tuned: bool


def main(tools_file: str, annotations_file: str) -> int:
    tools = list(_tools(json.loads(Path(tools_file).read_text(encoding="utf-8"))))
    tasks = list(_tasks(json.loads(Path(annotations_file).read_text(encoding="utf-8")), tools))
    ways = {"plain BM25": _plain(tools), "as FastMCP": _as_fastmcp(tools), "enfold": _enfold(tools)}
    print(f"{len(tools)} tools, {len(tasks)} tasks; of the annotated tools, found among the first {FIRST}, in percent")
    for half, chosen in (("all", tasks), ("held out", [task for task in tasks if not task.is_tuned])):
        for way, search in ways.items():
            print(f"{half:9} {way:11} " + " ".join(f"{_recall(chosen, search, first):5.1f}" for first in FIRST))
    return 0


def _recall(tasks: list[Task], search: Search, first: int) -> float:
    found = wanted = 0
    for task in tasks:
        shown = {each for step in task.steps for each in search(step, first)}
        found += sum(bool(shown & tool) for tool in task.tools)
        wanted += len(task.tools)
    return 100 * found / wanted


# --- the bench ----------------------------------------------------------------------------------------------------


def _tools(servers: list[dict[str, Any]]) -> Iterable[Tool]:
    for server in servers:
        for name, each in server["tools"].items():
            for tool in each.get("tools") or ():
                yield Tool(name, tool["name"], tool.get("description") or "", tool.get("inputSchema") or {})


def _tasks(annotated: list[dict[str, Any]], tools: list[Tool]) -> Iterable[Task]:
    named: dict[str, set[int]] = {}
    for place, tool in enumerate(tools):
        named.setdefault(tool.name.lower(), set()).add(place)
    for each in annotated:
        notes = each["Annotator Metadata"]
        wanted = [named[name.lower()] for name in _items(notes["Tools"]) if name.lower() in named]
        if wanted:
            half = int(sha256(each["task_id"].encode()).hexdigest(), 16) % 2
            yield Task(_items(notes["Steps"]), wanted, half == 0)


def _items(text: str) -> list[str]:
    lines = re.split(r"\n(?=\s*\d+[.、])", text.strip())
    return [re.sub(r"^\s*\d+[.、]\s*", "", line).strip() for line in lines if line.strip()]


# --- ways to search -----------------------------------------------------------------------------------------------


def _enfold(tools: list[Tool]) -> Search:
    ops, places = OperationRegistry(), {}
    for place, tool in enumerate(tools):
        namespace, name = (re.sub(r"[^A-Za-z0-9_-]", "_", each)[:56] for each in (tool.server, tool.name))
        while f"{namespace}.{name}" in places:
            name += "_"
        places[f"{namespace}.{name}"] = place
        spec = OperationSpec(name=name, namespace=namespace, description=tool.description, input_schema=tool.schema)
        ops.register(Operation(spec, lambda *_: None))
    finder = Finder(ops)
    return lambda query, first: [places[found.id] for found in finder.find(query, None, first)]


def _plain(tools: list[Tool]) -> Search:
    return _bm25([f"{tool.name} {tool.description}" for tool in tools], lambda text: re.findall(r"\w+", text.lower()))


def _as_fastmcp(tools: list[Tool]) -> Search:
    def words(text: str) -> list[str]:
        return re.findall(r"[^\W_]{2,}", unicodedata.normalize("NFKC", text).casefold())

    return _bm25([" ".join((tool.name, tool.description, *_arguments(tool.schema))) for tool in tools], words)


def _arguments(schema: dict[str, Any]) -> Iterable[str]:
    for name, each in (schema.get("properties") or {}).items():
        yield name
        yield each.get("description") or "" if isinstance(each, dict) else ""


def _bm25(texts: list[str], words: Callable[[str], list[str]], k1: float = 1.5, b: float = 0.75) -> Search:
    documents = [words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    holders: dict[str, dict[int, int]] = {}
    for place, document in enumerate(documents):
        for word in document:
            counts = holders.setdefault(word, {})
            counts[place] = counts.get(place, 0) + 1

    def search(query: str, first: int) -> list[int]:
        scores: dict[int, float] = {}
        for word in words(query):
            counts = holders.get(word, {})
            rarity = log((len(documents) - len(counts) + 0.5) / (len(counts) + 0.5) + 1)
            for place, count in counts.items():
                weight = count + k1 * (1 - b + b * len(documents[place]) / mean)
                scores[place] = scores.get(place, 0) + rarity * count * (k1 + 1) / weight
        return sorted(scores, key=lambda place: (-scores[place], place))[:first]

    return search


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
