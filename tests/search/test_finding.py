"""Finding operations by what they do, on every surface, and the lines that show them."""

from __future__ import annotations

import gc
import itertools
import sqlite3
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from enfold import AccessControl, Identity, OperationRegistry, OperationSpec, testing
from enfold.operations import Operation
from enfold.search import finder
from enfold.search.finder import Finder, Index, _stem, search_words, split_words
from enfold.search.signatures import outline, signature
from enfold.surfaces.http import to_http


def test_names_are_split_at_their_parts() -> None:
    assert list(split_words("getHTTPServer_v2.list-all 卡片 größe")) == [
        *("get", "http", "server", "v", "2", "list", "all", "卡", "片", "größe"),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("cities", "city"), ("boxes", "box"), ("running", "runs"), ("created", "creates"), ("classes", "class")),
        *(("conversations", "conversation"), ("searches", "searching"), ("deployments", "deploy")),
    ],
)
def test_plurals_and_simple_endings_do_not_matter(one: str, other: str) -> None:
    assert search_words(one) == search_words(other)


def test_long_search_words_are_not_cached() -> None:
    before = _stem.cache_info().currsize
    assert search_words("z" * 2_000) == ["z" * 2_000]
    assert _stem.cache_info().currsize == before


def registry() -> OperationRegistry:
    ops = OperationRegistry()
    for own, description, inputs, outputs in (
        ("trello.create_card", "Create a new card on a list.", ["name", "idList"], ["id", "shortUrl"]),
        ("trello.get_board", "Get a board.", ["id"], ["id", "memberships"]),
        ("github.listIssues", "Lists issues in a repository.", ["owner", "repo"], ["number", "title"]),
        ("github.create_issue", "Create an issue.", ["owner", "title"], ["number"]),
        ("maps.geocode", "Convert an address into coordinates.", ["address"], ["latitude", "longitude"]),
    ):
        namespace, _, name = own.partition(".")
        spec = OperationSpec(
            namespace=namespace,
            name=name,
            description=description,
            type="mutation" if "create" in name else "query",
            input_schema={"type": "object", "properties": {each: {"type": "string"} for each in inputs}},
            output_schema={"type": "object", "properties": {each: {"type": "string"} for each in outputs}},
        )
        ops.register(Operation(spec, lambda *_: {}))
    return ops


QUERIES = [
    ("list the issues of a repository", "github.listIssues"),
    ("creating cards", "trello.create_card"),
    ("longitude of a place", "maps.geocode"),
    ("memberships", "trello.get_board"),
    ("create source:github", "github.create_issue"),
    ("issue kind:query", "github.listIssues"),
    ("whatever puts a ticket somewhere: create an issue", "github.create_issue"),
    ("nothing of this exists", None),
    ('" OR (', None),
    ("", "trello.create_card"),
]


@pytest.mark.parametrize(("query", "first"), QUERIES)
def test_the_operation_that_fits_best_comes_first(query: str, first: str | None) -> None:
    found = Finder(registry()).find(query, None)
    assert (found[0].id if found else None) == first


def test_hidden_operations_do_not_change_what_a_caller_finds() -> None:
    plain, more = registry(), registry()
    for number in range(20):
        rule, said = AccessControl(required_scopes=("vault",)), "Convert the secret issue card."
        spec = OperationSpec(namespace="vault", name=f"open{number}", description=said, access_control=rule)
        more.register(Operation(spec, lambda *_: {}))
    without, beside = Finder(plain), Finder(more)
    assert len(beside.find("secret", Identity("root", frozenset({"vault"})), 50)) == 20
    words = ["secret", "issue", "card", "convert", "board", "create", "vault"]
    queries = [" ".join(each) for each in itertools.permutations(words, 3)]
    me = Identity("me", frozenset())
    assert [without.find(query, me) for query in queries] == [beside.find(query, me) for query in queries]


def test_the_indexes_of_many_kinds_of_callers_stay_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "MAX_ROWS", 10)
    ops = registry()
    for number in range(4):
        rule = AccessControl(required_scopes=(f"s{number}",))
        spec = OperationSpec(namespace="own", name=f"thing{number}", access_control=rule)
        ops.register(Operation(spec, lambda *_: {}))
    found = Finder(ops)
    for number in (*range(4), *range(4)):
        caller = Identity("me", frozenset({f"s{number}"}))
        assert [each.id for each in found.find("own thing", caller)] == [f"own.thing{number}"]
    del ops
    gc.collect()
    assert sum(type(each) is Index for each in gc.get_objects()) == 1


def test_only_what_changed_is_indexed_again() -> None:
    ops = registry()
    finder = Finder(ops)
    assert [each.id for each in finder.find("board", None)] == ["trello.get_board"]
    ops.unregister("trello.get_board")
    ops.query(namespace="x", name="draw_board", description="Draw.")(lambda: 1)
    assert [each.id for each in finder.find("board", None)] == ["x.draw_board"]


async def test_the_search_is_the_same_over_http() -> None:
    app = to_http(registry())
    answer = await testing.Conversation(app, "GET", "/operations?q=create+issue&limit=1", {"host": "localhost"}).json()
    [found] = answer["result"]
    assert (found["id"], found["signature"]) == ("github.create_issue", "(owner?: string, title?: string) -> {number}")
    for query in ("q=x&kind=y", "q=x&limit=-1"):
        wrong = testing.Conversation(app, "GET", f"/operations?{query}", {"host": "localhost"})
        assert (await wrong.began()).status == 400


def test_a_program_that_searches_nothing_loads_no_database() -> None:
    code = "import sys, enfold, enfold.surfaces.mcp.http, enfold.surfaces.cgi, enfold.search; print('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"False"


# --- lines --------------------------------------------------------------------------------------------------------

NODE: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}, "v": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "depth", "drawn"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": NODE}}, 3, "[{next, v}]"),
        ({"enum": ["a", "b"]}, 1, '"a"|"b"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1, "integer"),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {"type": "array"}}}]}, 1, "{a, b}"),
        ({}, 1, "any"),
        ({"type": ["string", "null"]}, 1, "string"),
        ({"properties": {f"f{number}": {} for number in range(20)}}, 1, None),
    ],
)
def test_a_schema_is_drawn_in_one_line(schema: dict[str, Any], depth: int, drawn: str | None) -> None:
    line = outline(schema, depth)
    assert line == drawn if drawn is not None else line.endswith(", … 4 more}")


def test_a_schema_that_describes_the_world_is_still_one_short_line() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    names = [f"T{number}" for number in range(60)]
    wide = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in names]} for name in names}
    for schema in (deep, {"$ref": "#/$defs/T0", "$defs": wide}):
        spec = OperationSpec(
            name="x", input_schema={"type": "object", "properties": {"a": schema}}, output_schema=schema
        )
        assert len(signature(spec)) < 3_000
    assert msgspec.json.encode(Finder(registry()).describe("maps.geocode", None))


def test_an_index_closes_its_database_when_it_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def recorded(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    index = Index()
    del index
    gc.collect()
    [database] = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")
