"""The keys of a configuration: what their JSON Schema says is what `enfold` does."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from enfold import CallError
from enfold.app import keys as config_keys
from enfold.app.file import read_config
from enfold.auth.issuers import ClaimPlaces, Issuer
from enfold.commands.main import main
from enfold.operations import AccessControl
from enfold.sources.options import MCPLimits

DOCS = Path(__file__).parent.parent / "docs"
SCHEMA = config_keys.schema()
EDITOR = jsonschema_rs.validator_for(SCHEMA)

# Values of every shape, and the words that some key takes.
VALUES: list[Any] = [
    *("", "text", "id,name", "a.b", "a b", "read", "https://x.test/"),
    *("repair", "strip", "all", "instances", "retry", "search", "auto", "short", "result", "normal", "mutations"),
    *(0, -1, 1, 7, 1.5, 70_000, True, False),
    *([], ["a"], ["a", "b"], ["a", "b", "c"], [1], ["tool"], [[]]),
    *({}, {"a": "b"}, {"a": 1}, {"a": ["u", "p"]}, {"a": "required"}, {"a": "both"}, {"a b": "x.y"}, {"a": {}}),
    *({"required_scopes": ["a"]}, {"required_scope": ["a"]}, {"list_items": 5}, {"list_items": 0}, {"list_item": 5}),
    *({"client_id": "me"}, {"client": "me"}, {"grant": "jwt_bearer"}, {"grant": "password"}, {"redirect_port": 70_000}),
]
SOURCES = {"mcp": {"url": "https://x.test/mcp"}, "openapi": {"openapi": "x.json"}, "functions": {"functions": "x.py"}}


def documents() -> dict[str, dict[str, Any]]:
    """A file for each key and value, by a name that says which."""
    made: dict[str, dict[str, Any]] = {}
    for value in VALUES:
        for kind, base in SOURCES.items():
            common = config_keys.COMMON if kind == "functions" else {}
            for key in [*common, *config_keys.BY_KIND[kind], "timeot"]:  # type: ignore[index]
                entry = {key: value} if key == "command" else {**base, key: value}
                made[f"{kind}.{key} = {value}"] = {"sources": {"x": entry}}
        for table in ("policy", "app", "agents", "tasks", "idempotency", "limits"):
            keys = SCHEMA["properties"][table]["properties"]
            made.update({f"{table}.{key} = {value}": {table: {key: value}} for key in keys})
        made[f"record = {value}"] = {"record": value}
        made[f"other = {value}"] = {"other": value}
    return made


def written(value: Any) -> str:
    """A value in TOML; a document as one inline table for each key."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {written(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return json.dumps(value)


def is_read(folder: Path, document: dict[str, Any]) -> bool:
    file = folder / "enfold.toml"
    file.write_text("\n".join(f"{key} = {written(value)}" for key, value in document.items()))
    try:
        read_config(file, {})
    except CallError:
        return False
    return True


def test_an_editor_marks_what_the_reader_refuses(tmp_path: Path) -> None:
    made = documents()
    differing = [name for name, each in made.items() if is_read(tmp_path, each) != EDITOR.is_valid(each)]
    # The grammar of a selection, and rules of access that need each other, no schema tells.
    assert [name for name in differing if not re.match(r"\w+\.select = |\w+\.access = ", name)] == []
    assert len(made) > 1_500


@pytest.mark.parametrize(
    "auth",
    [
        {"issuer": "https://x.test", "audiences": "a"},
        {"issuer": "https://x.test", "audiences": ["a"], "claims": {"scopes": "scp", "id": "oid"}, "leeway": 5},
        {"issuers": [{"issuer": "https://x.test", "audiences": ["a"], "algorithms": ["RS256"]}]},
        [{"issuer": "https://x.test", "audiences": ["a"], "prefix": "x:"}],
        {"issuer": "https://x.test"},
        {"issuer": "https://x.test", "audiences": ["a"], "audience": "b"},
        {"issuer": "https://x.test", "audiences": ["a"], "leeway": 301},
    ],
    ids=str,
)
def test_issuers_are_the_same_to_both(tmp_path: Path, auth: Any) -> None:
    assert is_read(tmp_path, {"auth": auth}) == EDITOR.is_valid({"auth": auth})


def test_every_table_has_the_names_of_the_values_it_becomes() -> None:
    issuer = config_keys.issuer_keys()
    assert tuple(config_keys.COMMON["access"].keys or ()) == AccessControl.__struct_fields__
    assert tuple(config_keys.BY_KIND["mcp"]["limits"].keys or ()) == MCPLimits.__struct_fields__
    assert tuple(issuer) == Issuer.__struct_fields__
    assert tuple(issuer["claims"].keys or ()) == ClaimPlaces.__struct_fields__


def test_the_command_prints_what_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == (DOCS / "enfold.schema.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[sources.a]\nurl = "https://x"\nlimits = {list_item = 5}', '"list_item" is not known here: did you mean "list_items"?'),
        ('[sources.a]\nurl = "https://x"\nlimits = {list_items = 0}', '"list_items" must be a number of items'),
        ('[sources.a]\nurl = "https://x"\nselect = "a("', '"select" must be fields such as id,name'),
        ('[sources.a]\nurl = "https://x"\nkinds = ["tools"]', '"kinds" must be a list of tool, resource and prompt'),
    ],
)  # fmt: skip
def test_a_mistake_below_a_key_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "enfold.toml").write_text(text)
    with pytest.raises(CallError, match=re.escape(f"line 3: {message}")):
        read_config(tmp_path / "enfold.toml", {})


PAGES = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
BLOCK = re.compile(r"^```toml[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page.name, block["text"]) for page in PAGES for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(BLOCKS)])
def test_a_configuration_on_a_page_is_right(tmp_path: Path, page: str, text: str) -> None:
    (tmp_path / "enfold.toml").write_text(text, encoding="utf-8")
    read_config(tmp_path / "enfold.toml", dict.fromkeys(re.findall(r"\$\{(\w+)", text), "set"))
    assert EDITOR.is_valid(tomllib.loads(text)), page
