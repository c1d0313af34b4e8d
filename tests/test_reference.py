"""The pages of the reference name what the code has: no option, rule, header, code, limit or variable is missing or invented."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import enfold
from enfold import OperationRegistry
from enfold.commands.main import COMMANDS, main
from enfold.errors import CODES, ERROR_KEY
from enfold.operations.spec import OperationOptions
from enfold.sources.options import MCPLimits
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.introspection import introduce
from enfold.surfaces.limits import Limits
from enfold.tasks import TaskLimits, Tasks
from enfold.tasks.memory import MemoryTasks

SOURCE = Path(enfold.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """What stands on a page below a heading, down to the next."""
    return page(name).partition(f"## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """The words in backquotes that begin the rows of tables."""
    return [word for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for word in re.findall(r"`([^`]+)`", row)]


def constants(kind: type, *folders: str) -> Iterator[Any]:
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, kind):
                    yield node.value


TASK_LIMITS = ("limit", "kept_bytes_per_identity", "kept_bytes")


def test_every_option_of_an_operation_is_on_the_page() -> None:
    assert sorted(first_cells(section("operations.md", "Options"))) == sorted(get_type_hints(OperationOptions))


def test_every_code_is_on_the_page_with_its_status_and_exit() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| [^|]* \| (\d+) \| (\d+) \|$", page("errors.md"), re.MULTILINE)
    assert rows == [(code.name, str(code.http_status), str(code.exit_code)) for code in CODES.values()]


def test_every_limit_is_on_the_page_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+|none) \|", page("limits.md"), re.MULTILINE)
    shown = {name: None if number == "none" else float(number.replace(",", "")) for name, number in rows}
    of_tasks = {name: getattr(TaskLimits(), name) for name in TASK_LIMITS}
    assert shown == {**msgspec.structs.asdict(Limits()), **of_tasks}


def test_every_limit_of_an_mcp_server_is_on_its_page() -> None:
    assert sorted(first_cells(section("mcp-client.md", "Limits"))) == sorted(MCPLimits.__struct_fields__)


def test_every_command_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", page("command.md"), re.MULTILINE)
    assert sorted(name for name in rows if name in COMMANDS) == sorted(COMMANDS)


OPTION = re.compile(r"--[a-z]+(?:-[a-z]+)*")


def test_every_option_of_every_command_is_on_the_page() -> None:
    shown = {word.partition(" ")[0] for word in first_cells(page("command-options.md"))}
    written = {each for each in constants(str, "commands", "surfaces/command_line") if OPTION.fullmatch(each)}
    assert "`enfold --version`" in page("command-options.md")
    assert written - shown == {"--for", "--version"}  # by the first, the script of a shell asks
    assert shown - written == {"--no-access-log"}  # which argparse makes


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_the_options_that_the_help_names(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    named = re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    rows = re.search(rf"^## `enfold {command}.*?(?=^## |\Z)", page("command-options.md"), re.MULTILINE | re.DOTALL)
    assert set(named) - {"--help"} <= set(OPTION.findall(rows[0] if rows else ""))


def test_every_extension_in_the_openapi_document_is_documented() -> None:
    written = {each for each in constants(str, "surfaces") if re.fullmatch(r"x-(?:enfold|mcp|short)-[a-z]+", each)}
    shown = first_cells(section("openapi-document.md", "Extensions"))
    assert {name for name in shown if name.startswith("x-")} == written


def test_every_operation_of_the_namespace_enfold_is_on_the_page() -> None:
    registry = OperationRegistry()
    introduce(registry, {}, tasks=Tasks(registry, MemoryTasks()))
    names = first_cells(section("console.md", "Introspection"))
    shown = {name if not name.startswith(".") else f"enfold.tasks{name}" for name in names}
    assert {spec.id for spec in registry.list(namespace="enfold")} <= shown


# What every server of HTTP sends or reads, and what belongs to the console, to MCP and to browsers alone.
ORDINARY = re.compile(
    r"content-(length|encoding|transfer-encoding)|host|connection|transfer-encoding|forwarded|access-control-.*|origin|vary|etag|if-none-match|"
    r"x-accel-buffering|x-content-type-options|x-frame-options|content-security-policy|referrer-policy|mcp-.*"
)
HEADER = re.compile(r"(?:enfold|x|www|retry|last|cache|preference|idempotency|content|if|access|mcp)(?:-[a-z]+)+|accept|allow|authorization|etag|host|location|origin|prefer|vary")  # fmt: skip


def test_every_header_is_on_the_page() -> None:
    text = section("http.md", "Headers")
    shown = {name.partition(":")[0].lower() for name in first_cells(text)}
    found = {each.decode() for each in constants(bytes, "surfaces") if HEADER.fullmatch(each.decode("latin-1"))}
    found |= {
        each for each in constants(str, "surfaces") if re.fullmatch(r"(?i)enfold-[a-z-]+", each) and each.islower()
    }
    headers = {name for name in found - {"enfold-stdin"} if not ORDINARY.fullmatch(name)}
    assert shown == headers


def test_a_page_of_an_allowed_origin_may_send_and_read_every_header_of_ours() -> None:
    taken, _, given = section("http.md", "Headers").partition("Response headers:")
    hosts = Hosts(origins=["https://page.test"])
    asked = {b"host": b"localhost", b"origin": b"https://page.test", b"access-control-request-method": b"POST"}
    answered = dict([*hosts.preflight_headers(asked, ["POST"]), *hosts.check({}, asked)])
    allowed = set(answered[b"access-control-allow-headers"].decode().lower().replace(" ", "").split(","))
    exposed = set(answered[b"access-control-expose-headers"].decode().lower().replace(" ", "").split(","))
    ours = re.compile(r"enfold-|x-request|idempotency|prefer")
    assert {name.partition(":")[0].lower() for name in first_cells(taken)} <= allowed
    assert {name.partition(":")[0].lower() for name in first_cells(given) if ours.match(name.lower())} <= exposed


def test_every_variable_of_the_environment_is_on_the_page() -> None:
    shown = {name for name in first_cells(page("environment.md")) if "<" not in name}
    own = {each for each in constants(str, ".") if re.fullmatch(r"ENFOLD_[A-Z_]+", each)}
    read = {name for name in _read_variables() if not name.startswith(CGI)}
    assert shown == own | {name.upper() for name in read}


CGI = ("REQUEST_", "GATEWAY_", "REMOTE_", "CONTENT_", "SERVER_", "HTTP_ENFOLD", "PATH_INFO", "QUERY_")
LOOK_UPS = ("os.environ.get", "environ.get", "_variable")


def _read_variables() -> Iterator[str]:
    """Names that are looked up in an environment, by a constant: `environ.get("X")`, `_variable("x", variables)`."""
    yield from ("HTTP_PROXY", "HTTPS_PROXY")  # made of the scheme
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in LOOK_UPS
                and isinstance(node.args[0], ast.Constant)
            ):
                yield str(node.args[0].value)


@pytest.mark.parametrize("name", sorted({each for each in constants(str, "mcp", "surfaces/mcp") if re.fullmatch(r"enfold/[a-zA-Z]+", each)} - {"enfold/relay"} | {ERROR_KEY}))  # fmt: skip
def test_every_enfold_name_in_meta_is_documented(name: str) -> None:
    assert f"`{name}`" in section("mcp-server.md", "Names in `_meta`")
