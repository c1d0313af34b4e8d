"""Arguments of `enfold call` in the spellings that people type: name=value, --name value, and fields by their path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

APP = '''
from typing import Annotated, Any, Literal
from dataclasses import dataclass, field
from pydantic import BaseModel, Field
from enfold import OperationRegistry

ops = OperationRegistry()

@dataclass
class Address:
    town: str
    lines: list[str] = field(default_factory=list)

@dataclass
class Person:
    name: str
    age: int | None = None
    address: Address | None = None

class Dotted(BaseModel):
    version: Annotated[str, Field(alias="app.version")] = ""

@ops.query
def show(
    person: Person | None = None, people: list[Person] = [], x: int = 0, tags: list[str] = [], dry_run: bool = False,
    format: str = "", labels: dict[str, str] = {}, dotted: Dotted | None = None, text: str = "",
) -> Any:
    """Show what was given."""
    given = locals()
    return {name: value for name, value in given.items() if value}

@ops.query
def late(person: Any = None) -> Any:
    return person
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("call") / "app.py"
    path.write_text(APP)
    return path


def call(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", "call", str(app), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)


GIVEN = {
    "an option and its value": (["--x", "1"], {"x": 1}),
    "an option with its value": (["--x=1"], {"x": 1}),
    "a negative number": (["--x", "-1"], {"x": -1}),
    "beside x=1": (["--x", "1", "text=a"], {"x": 1, "text": "a"}),
    "JSON": (['--tags:=["a"]'], {"tags": ["a"]}),
    "an option several times": (["--tags", "a", "--tags", "b"], {"tags": ["a", "b"]}),
    "an option once for an array": (["--tags", "a"], {"tags": ["a"]}),
    "a value with an equals sign": (["--text", "a=b"], {"text": "a=b"}),
    "a flag": (["--dry-run"], {"dry_run": True}),
    "a flag before an argument": (["--dry-run", "x=1"], {"dry_run": True, "x": 1}),
    "a flag before an option": (["--dry_run", "--x", "1"], {"dry_run": True, "x": 1}),
    "a flag with a value": (["--dry-run", "true", "--x=1"], {"dry_run": True, "x": 1}),
    "a flag that is off": (["--no-dry-run", "--x=1"], {"x": 1}),
    "our own option wins": (["--format", "result", "format=csv"], {"format": "csv"}),
    "a field": (["person.name=Bo"], {"person": {"name": "Bo", "age": None, "address": None}}),
    "fields as options": (
        ["--person.name", "Bo", "--person.age=3"],
        {"person": {"name": "Bo", "age": 3, "address": None}},
    ),
    "a field of a field": (
        ["person.name=Bo", "person.address.town=Ulm"],
        {"person": {"name": "Bo", "age": None, "address": {"town": "Ulm", "lines": []}}},
    ),
    "an array below": (
        ["person.name=Bo", "person.address.town=Ulm", "person.address.lines=a", "person.address.lines=b"],
        {"person": {"name": "Bo", "age": None, "address": {"town": "Ulm", "lines": ["a", "b"]}}},
    ),
    "one item of an array below": (
        ["person.name=Bo", "person.address.town=Ulm", "person.address.lines=a"],
        {"person": {"name": "Bo", "age": None, "address": {"town": "Ulm", "lines": ["a"]}}},
    ),
    "items by their number": (["tags.0=a", "tags.1=b"], {"tags": ["a", "b"]}),
    "objects by their number": (
        ["people.0.name=Bo", "people.0.age=3", "people.1.name=Al"],
        {"people": [{"name": "Bo", "age": 3, "address": None}, {"name": "Al", "age": None, "address": None}]},
    ),
    "JSON below": (["person.name=Bo", "person.age:=3"], {"person": {"name": "Bo", "age": 3, "address": None}}),
    "fields of what is given whole": (
        ["person.age=3", 'person:={"name": "Bo"}'],
        {"person": {"name": "Bo", "age": 3, "address": None}},
    ),
    "fields of a JSON object": (
        ["--json", '{"person": {"name": "Bo", "age": 4}, "x": 1}', "person.age=3"],
        {"person": {"name": "Bo", "age": 3, "address": None}, "x": 1},
    ),
    "keys of a map": (["labels.en=apple", "labels.0=zero"], {"labels": {"en": "apple", "0": "zero"}}),
    "a name with a dot": (["dotted.app.version=2"], {"dotted": {"app.version": "2"}}),
}


@pytest.mark.parametrize(("words", "expected"), GIVEN.values(), ids=GIVEN)
def test_arguments_can_be_given_as(app: Path, words: list[str], expected: object) -> None:
    done = call(app, "show", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == expected


WRONG = {
    "a value and a field": (["person=1", "person.name=Bo"], "person is given both as a whole and by person.name"),
    "a field and a value": (["person.name=Bo", "person=1"], "person is given both as a whole and by person.name"),
    "a field and what is below it": (
        ["person.name.first=Bo", "person.name=Bo"],
        "person.name is given both as a whole and by person.name.first",
    ),
    "an item out of order": (["tags.1=b"], "tags.1: give the items of an array in order, from 0"),
    "an item that is no number": (["tags.0=a", "tags.²=b"], "tags is given both as a whole and by tags.²"),
    "an item far away": (["tags.0=a", f"tags.{'1' * 5_000}=b"], "tags is given both as a whole and by tags.1"),
    "an option without a value": (["--x"], "--x needs a value"),
    "an unknown option": (["--persn", "1"], 'Unknown argument "persn": did you mean "person"?'),
    "nearly an option of ours": (["--fromat", "x"], "Unknown option --fromat: did you mean --format?"),
    "an empty part": (["person..name=Bo"], "'person..name=Bo' is not an argument: write name=value"),
    "a wrong value below": (["person.name=Bo", "person.age=old"], "person"),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_with_a_sentence(app: Path, words: list[str], sentence: str) -> None:
    done = call(app, "show", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("VALIDATION_ERROR: ")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_fields_of_an_argument_without_a_schema_make_an_object(app: Path) -> None:
    done = call(app, "late", "person.name=Bo")
    assert json.loads(done.stdout)["result"] == {"name": "Bo"}


def test_an_operation_may_follow_the_options(app: Path) -> None:
    done = call(app, "--x", "1", "show")
    assert json.loads(done.stdout)["result"] == {"x": 1}


def test_the_help_of_an_operation_shows_options_and_fields(app: Path) -> None:
    said = call(app, "show", "--help").stdout
    assert "Write an argument as person=… or --person …; a field of an object as person.name=….\n" in said
