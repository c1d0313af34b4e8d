"""Configuration files: an editor's file works unchanged, and every mistake is one message with its location."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

from enfold import CallError, OperationRegistry
from enfold.app.file import read_config
from enfold.app.reconciler import open_config

LITTLE = Path(__file__).parent / "sources/mcp/little_server.py"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("PYTHON", sys.executable).replace("LITTLE", str(LITTLE)))
    return str(path)


# --- an editor's file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        pytest.param(
            '{"mcpServers": {"a": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}}}}',
            {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}},
            id="a command",
        ),
        pytest.param(
            '{"globalShortcut": "", "mcpServers": {"a": {"command": "x", "alwaysAllow": ["y"], "disabled": false}}}',
            {"command": "x", "alwaysAllow": ["y"], "disabled": False},
            id="with an editor's own keys",
        ),
        pytest.param(
            '{\n  // what we use\n  "servers": {"a": {"type": "http", "url": "https://x/mcp", /* none */ "headers": {},},},\n}',
            {"url": "https://x/mcp", "headers": {}, "transport": "http"},
            id="with comments and trailing commas",
        ),
        pytest.param(
            '{"mcpServers": {"a": {"serverUrl": "https://x/sse", "type": "sse", "disabledTools": ["rm"]}}}',
            {"url": "https://x/sse", "transport": "sse", "disabledTools": ["rm"], "exclude": ["rm"]},
            id="a server URL, and tools left out",
        ),
        pytest.param(
            '{"mcpServers": {"a": {"httpUrl": "https://x/mcp", "timeout": 30000, "trust": true}}}',
            {"url": "https://x/mcp", "transport": "http", "timeout": 30, "trust": True},
            id="an HTTP URL, and milliseconds",
        ),
        pytest.param(
            '{"context_servers": {"a": {"command": {"path": "x", "args": ["y"]}, "settings": {}}}}',
            {"command": {"path": "x", "args": ["y"]}, "settings": {}},
            id="a command that is a table",
        ),
    ],
)
def test_an_editors_file_is_read_unchanged(tmp_path: Path, text: str, entry: dict[str, object]) -> None:
    (source,) = read_config(write(tmp_path, "mcp.json", text), {}).sources
    assert (source.name, source.kind, source.namespace, source.entry) == ("a", "mcp", "a", entry)


def test_a_server_that_is_turned_off_is_left_out(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "disabled": true}, "b c": {"command": "y"}}}'
    (source,) = read_config(write(tmp_path, "mcp.json", text), {}).sources
    assert (source.name, source.namespace) == ("b c", "b_c")


def test_relative_paths_start_from_the_project_where_an_editor_keeps_the_file_in_its_own_folder(tmp_path: Path) -> None:
    text = '{"mcpServers": {}}'
    assert read_config(write(tmp_path, ".vscode/mcp.json", text), {}).folder == str(tmp_path)
    assert read_config(write(tmp_path, "mcp.json", text), {}).folder == str(tmp_path)


# --- variables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Bearer ${TOKEN}", "Bearer s3cret"),
        ("${TOKEN:-none}", "s3cret"),
        ("${EMPTY:-none}", "none"),
        ("${EMPTY}", ""),
        ("${MISSING:-}", ""),
        ("${MISSING:-http://x:1}", "http://x:1"),
        ("${env:TOKEN}", "s3cret"),
        ("${input:my-token}", "from the input"),
        ("$${TOKEN}", "${TOKEN}"),
        ("${workspaceFolder}/x", "FOLDER/x"),
        ("${userHome}/x", "/home/ann/x"),
        ("${not a name}", "${not a name}"),
        ("$TOKEN", "$TOKEN"),
    ],
)
def test_a_variable_is_filled_in(tmp_path: Path, text: str, value: str) -> None:
    path = write(tmp_path, "mcp.json", '{"mcpServers": {"a": {"url": "x", "headers": {"K": "%s"}}}}' % text)
    environ = {"TOKEN": "s3cret", "EMPTY": "", "MY_TOKEN": "from the input", "HOME": "/home/ann"}
    (source,) = read_config(path, environ).sources
    assert source.entry["headers"] == {"K": value.replace("FOLDER", str(tmp_path))}


# --- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "mcp.json",
            '{\n"mcpServers": {\n"a": {\n"comand": "x"}}}',
            'line 4: "comand" is not known here: did you mean "command"?',
        ),
        ("mcp.json", '{\n"mcpServers": {\n"a": {}}}', 'line 3: "a" needs "command" or "url"'),
        ("mcp.json", '{\n"mcpServers": {\n"a": 5}}', 'line 3: "a" must be a table'),
        (
            "mcp.json",
            '{\n"mcpServer": {}}',
            'line 2: "mcpServer" is not known here: use "mcpServers", a table of servers',
        ),
        ("mcp.json", "{}", 'line 1: "mcpServers" is missing'),
        (
            "mcp.json",
            '{"mcpServers": {\n"a": {"command": "x",\n"env": 5}}}',
            'line 3: "env" must be a table of strings',
        ),
        (
            "mcp.json",
            '{"mcpServers": {"a": {"command": "x",\n"includ": "y"}}}',
            'line 2: "includ" is not known here: did you mean "include"?',
        ),
        (
            "mcp.json",
            '{"mcpServers": {"a": {"url": "x",\n"headers": {\n"K": "${NO_SUCH}"}}}}',
            "line 3: the environment variable NO_SUCH is not set",
        ),
        (
            "mcp.json",
            '{"mcpServers": {"a": {"command": "x",\n"args": ["one",\n"${NO_SUCH}"]}}}',
            "line 3: the environment variable NO_SUCH is not set",
        ),
        (
            "enfold.toml",
            "[limits]\nheader = 5",
            'line 2: "header" is not known here: did you mean "headers"?',
        ),
        (
            "enfold.toml",
            "[limits]\nheaders = 0.5",
            'line 2: "headers" must be a whole number above 0',
        ),
        (
            "enfold.toml",
            '[sources.a]\ncommand = "x"\nnamespac = "y"',
            'line 3: "namespac" is not known here: did you mean "namespace"?',
        ),
        (
            "enfold.toml",
            '[sources.a]\ncommand = "x"\ntimeout = "long"',
            'line 3: "timeout" must be a number of seconds',
        ),
        (
            "enfold.toml",
            '[sources.a]\ncommand = "x"\nnormalize = "fix"',
            'line 3: "normalize" must be repair, typebox or off',
        ),
        (
            "enfold.toml",
            '[sources.a]\nurl = "x"\nopenapi = "y"',
            "line 3: a source can only have one of url and openapi",
        ),
        ("enfold.toml", "[sources.a]\ntimeout = 3", 'line 1: "a" needs command, url, openapi, functions'),
        ("enfold.toml", "\n[source.a]", 'line 2: "source" is not known here: did you mean "sources"?'),
        ("enfold.toml", '[sources.a]\ncommand = "x"\naccess = {scopes = []}', 'line 3: "scopes" is not known here'),
        (
            "enfold.toml",
            '[sources.a]\ncommand = "x"\nnamespace = "a b"',
            'line 3: "namespace" must be a namespace',
        ),
        (
            "enfold.toml",
            '[sources.a]\ncommand = "x"\nrename = { one = "the first" }',
            'line 3: "rename" must be a table of names',
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_file_and_line(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(CallError) as caught:
        read_config(path, {})
    assert caught.value.code == "VALIDATION_ERROR"
    assert caught.value.message.startswith(f"{path}, {sentence}")


@pytest.mark.parametrize(
    ("name", "text"),
    [("mcp.json", '{\n"mcpServers": {\n"a": }}'), ("enfold.toml", "[sources.a]\n\ncommand = ")],
)
def test_a_file_that_cannot_be_parsed_is_reported_with_its_line(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(CallError) as caught:
        read_config(write(tmp_path, name, text), {})
    assert "line 3" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("mcp.json", '{"mcpServers":' * 100_000, "maximum recursion depth exceeded"),
        ("enfold.toml", "a = " + "[" * 3000, "maximum recursion depth exceeded"),
        ("enfold.toml", "a = " + "9" * 5000, "Exceeds the limit"),
    ],
    ids=["deep json", "deep toml", "long number"],
)
def test_a_file_that_no_parser_can_take_is_one_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(CallError) as caught:
        read_config(path, {})
    assert caught.value.message.startswith(f"{path}, line 1: {sentence}")


def test_a_file_that_is_not_there_is_reported() -> None:
    with pytest.raises(CallError, match=r"nowhere\.json cannot be read: No such file or directory"):
        read_config("nowhere.json", {})


def test_a_file_sets_limits_of_the_server_by_their_names(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "enfold.toml", "[limits]\nheaders = 50\nheader_seconds = 2.5"), {})
    assert config.limits == {"headers": 50, "header_seconds": 2.5}


# --- opening ------------------------------------------------------------------------------------------------------

EVERYTHING = """\
[policy]
normalize = "repair"

[sources.little]
command = ["PYTHON", "LITTLE"]
namespace = "pets"
include = ["add", "mis*", "told"]
rename = { add = "plus" }
timeout = 5
env = { COLOUR = "${COLOUR:-blue}" }
access = { required_scopes = ["pets:use"] }

[sources.shop]
functions = "shop.py:ops"
exclude = "secret"

[sources.gone]
command = "no-such-program"
"""
SHOP = """\
from enfold import OperationRegistry

ops = OperationRegistry("shop")

@ops.query(inline=True)
def price(name: str) -> int:
    return len(name)

@ops.query(inline=True)
def secret() -> int:
    return 1
"""


@pytest.fixture
async def everything(tmp_path: Path) -> AsyncIterator[OperationRegistry]:
    write(tmp_path, "shop.py", SHOP)
    async with open_config(write(tmp_path, "enfold.toml", EVERYTHING), {}) as registry:
        yield registry


async def test_sources_of_every_kind_come_to_one_registry(everything: OperationRegistry) -> None:
    assert {spec.id for spec in everything.list()} == {"pets.plus", "pets.misfit", "pets.told", "shop.price"}
    assert (await everything.execute("pets.plus", {"x": 1, "y": 2})).data == {"sum": 3}
    assert (await everything.execute("shop.price", {"name": "four"})).data == 4
    assert (await everything.execute("pets.told", {})).data["env"]["COLOUR"] == "blue"


async def test_policies_and_access_rules_of_a_file_are_in_the_specs(everything: OperationRegistry) -> None:
    spec = everything.get_spec("pets.plus")
    assert (spec.timeout, spec.access_control.required_scopes) == (5, ("pets:use",))


async def test_a_source_that_is_down_is_shown_and_does_not_stop_the_others(everything: OperationRegistry) -> None:
    states = {state.name: state for state in everything.services.sources}
    found = {name: (each.kind, each.state, each.operations, each.required) for name, each in states.items()}
    assert found["little"] == ("mcp", "up", 3, False)
    assert found["shop"] == ("functions", "up", 1, True)
    assert states["gone"].state == "down"
    assert states["gone"].why == "gone cannot be started: there is no command no-such-program"


async def test_a_source_that_was_down_appears_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = '{"mcpServers": {"late": {"command": "PYTHON", "args": ["late.py"]}}}'
    async with open_config(write(tmp_path, "mcp.json", text), {}) as registry:
        assert [state.state for state in registry.services.sources] == ["down"]
        changed = asyncio.Event()
        stop = registry.watch(changed.set)
        write(tmp_path, "late.py", LITTLE.read_text())
        await asyncio.wait_for(changed.wait(), PATIENCE)
        stop()
        assert (await registry.execute("late.add", {"x": 1, "y": 2})).data == {"sum": 3}
        assert [state.state for state in registry.services.sources] == ["up"]


async def test_a_source_that_recovers_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = '[sources.late]\nfunctions = "late.py"'
    async with open_config(write(tmp_path, "enfold.toml", text), {}) as registry:
        assert caplog.messages == ["late is down: There is no file late.py"]
        changed = asyncio.Event()
        registry.watch(changed.set)
        write(tmp_path, "late.py", "def one() -> int:\n    return 1\n")
        await asyncio.wait_for(changed.wait(), PATIENCE)
    assert caplog.messages[1:] == ["late is up: 1 operation"]


async def test_a_source_that_is_slow_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "enfold")
    text = '{"mcpServers": {"slow": {"command": "sleep", "args": ["600"]}}}'
    async with open_config(write(tmp_path, "mcp.json", text), {}, patience=0.1) as registry:
        assert [(each.name, each.state, each.kind) for each in registry.services.sources] == [
            ("slow", "starting", "mcp")
        ]
    assert caplog.messages == ["slow has not answered yet"]


async def test_filters_and_renames_that_match_nothing_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "shop.py", SHOP)
    text = """\
[sources.shop]
functions = "shop.py:ops"
include = ["pri*", "cost*"]
rename = { price = "amount", secret = "open" }
"""
    async with open_config(write(tmp_path, "enfold.toml", text), {}) as registry:
        assert [spec.id for spec in registry.list()] == ["shop.amount"]
    assert caplog.messages == [
        'shop: include "cost*" matches no operation',
        'shop: rename matches no operation "secret"',
    ]


async def test_a_filter_by_tag_counts_as_a_match(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = "from enfold import OperationRegistry\nops = OperationRegistry('shop')\n"
    write(tmp_path, "shop.py", program + "@ops.query(tags='front')\ndef price() -> int:\n    return 1\n")
    text = '[sources.shop]\nfunctions = "shop.py:ops"\ninclude = ["#front", "#back"]\n'
    async with open_config(write(tmp_path, "enfold.toml", text), {}) as registry:
        assert [spec.id for spec in registry.list()] == ["shop.price"]
    assert caplog.messages == ['shop: include "#back" matches no operation']


@pytest.mark.parametrize(
    ("operation", "opened"),
    [
        ("pets.plus", ["little", "shop"]),
        ("till.price", ["little", "shop", "gone"]),
        ("plus", ["little", "shop", "gone"]),
    ],
    ids=["a namespace of the file", "perhaps a program's own namespace", "a name alone"],
)
async def test_for_one_operation_only_the_sources_are_opened_that_may_have_it(
    tmp_path: Path, operation: str, opened: list[str]
) -> None:
    config = read_config(write(tmp_path, "enfold.toml", EVERYTHING), {})
    assert [source.name for source in config.with_only(operation).sources] == opened


@pytest.mark.parametrize("credential", ['"t"', '["ann", "secret"]', '{ client_id = "me", client_secret = "s" }'])
def test_a_credential_of_a_scheme_is_a_token_a_user_with_a_password_or_a_table(tmp_path: Path, credential: str) -> None:
    text = (
        f'[sources.shop]\nopenapi = "shop.yaml"\ncredentials = {{ login = {credential} }}\nallow_files = "../parts"\n'
    )
    (source,) = read_config(write(tmp_path, "enfold.toml", text), {}).sources
    assert list(source.entry["credentials"]) == ["login"]


def test_a_document_has_its_own_headers(tmp_path: Path) -> None:
    text = '[sources.shop]\nopenapi = "https://shop.test/openapi.json"\nheaders = { X-Key = "${KEY}" }\n'
    (source,) = read_config(write(tmp_path, "enfold.toml", text), {"KEY": "k"}).sources
    assert source.entry["headers"] == {"X-Key": "k"}
