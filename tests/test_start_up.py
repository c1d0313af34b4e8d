"""What is loaded by the time of a program's first answer: what these lists name of ours, and nothing else.

A start grows by one import at a time, and nobody notices. Whoever makes it grow is told by name here: load it late, where
it is first needed, or add it to a list if nearly every start needs it. What is not loaded any more may be taken out.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

APP = '''
from enfold import OperationRegistry

ops = OperationRegistry()


@ops.query
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y
'''

# Writes down what is loaded at the very end, and runs a command as its own program would.
COMMAND = """
import atexit, sys
atexit.register(lambda: open(loaded, "w").write("\\n".join(sys.modules)))
loaded = sys.argv.pop(1)
if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    from enfold.commands.main import main
    sys.exit(main())
"""

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"x": 1, "y": 2}}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CGI = (("GATEWAY_INTERFACE", "CGI/1.1"), ("PATH_INFO", "/add"), ("SERVER_PROTOCOL", "HTTP/1.1"))


def _modules(names: str) -> set[str]:
    return {f"enfold.{name}" for name in names.split()}


IMPORTED = {"enfold"}
REGISTRY = IMPORTED | _modules(
    """
    access errors operation operation.context operation.identity operation.names operation.operation
    operation.policy operation.spec registry reserved
    """
)
PROGRAM = REGISTRY | _modules(
    """
    envelope lifetime observing observing.observers runtime schema schema.signature schema.types
    schema.types.annotations schema.types.callables schema.types.decoding schema.types.docstring
    schema.types.engine_msgspec schema.types.engines schema.types.function_parameters schema.types.record_classes
    schema.types.shapes schema.types.value_limits
    """
)
HELP = IMPORTED | _modules(
    """
    commands commands.main
    """
)
# What every command loads with its program.
COMMAND_ON_PROGRAM = (
    HELP
    | PROGRAM
    | _modules(
        """
    commands.shared commands.shared.targets introspection log sources sources.functions
    """
    )
)
LISTED = COMMAND_ON_PROGRAM | _modules(
    """
    commands.shared.callers commands.shared.command_options commands.list commands.shared.printing
    """
)
# What runs a call, checks what it gives and writes that.
RUN = COMMAND_ON_PROGRAM | _modules(
    """
    content formats formats.result json_pointer observing.call_record pipeline schema.check schema.checks
    schema.checks.clean schema.checks.evaluated schema.checks.generate schema.checks.python_text schema.keywords
    schema.nodes schema.nodes.budget schema.nodes.compare schema.nodes.graph schema.nodes.node schema.nodes.copies
    schema.nodes.reference schema.nodes.traits schema.nodes.variants schema.plain schema.repairs
    schema.repairs.bundle schema.repairs.choose schema.repairs.conversions schema.repairs.fix
    schema.repairs.repair_report schema.structs schema.types.describe surfaces surfaces.writing
    """
)
# What reads numbers that came as text.
READ_FROM_TEXT = _modules(
    """
    nearest schema.arguments schema.inputs schema.inputs.coercion schema.inputs.faults schema.wording
    """
)
CALLED = (
    RUN
    | READ_FROM_TEXT
    | _modules(
        """
    commands.call commands.shared.callers commands.shared.recorder_options observing.watching surfaces.command_line
    surfaces.command_line.call_words surfaces.command_line.shell
    """
    )
)
ANSWERED = RUN | _modules(
    """
    commands.cgi commands.shared.recorder_options identities identities.challenges observing.conventions source_states
    surfaces.asgi surfaces.asgi.hosts surfaces.asgi.messages surfaces.cgi surfaces.failures surfaces.functions
    surfaces.functions.request surfaces.functions.routes surfaces.functions.service surfaces.query_string
    surfaces.reading
    """
)
INITIALIZED_OVER_MCP = COMMAND_ON_PROGRAM | _modules(
    """
    commands.shared.callers commands.mcp content formats formats.result json_pointer mcp mcp.json_rpc mcp.levels
    mcp.offers mcp.revisions mcp.task_extension mcp.tool_names mcp.uri_template observing.call_record
    observing.watching operation.asking operation.handing_over schema.checks schema.checks.python_text
    schema.keywords schema.nodes schema.nodes.graph schema.nodes.node schema.nodes.reference schema.nodes.traits
    schema.plain schema.structs surfaces surfaces.bounds surfaces.mcp surfaces.mcp.catalog surfaces.mcp.changes
    surfaces.mcp.client_exchange surfaces.mcp.clients surfaces.mcp.exposure surfaces.mcp.following
    surfaces.mcp.mcp_service surfaces.mcp.prompts surfaces.mcp.resource_uris
    surfaces.mcp.resources surfaces.mcp.server surfaces.mcp.standard_streams surfaces.mcp.stdio
    surfaces.mcp.tool_results surfaces.mcp.tools surfaces.writing
    """
)
CALLED_OVER_MCP = (
    INITIALIZED_OVER_MCP
    | RUN
    | _modules(
        """
    observing.conventions threads timekeeping
    """
    )
)

# Of the standard library, what takes its time to load, and no start needs; `asyncio` comes with the first call over MCP.
SLOW = {
    "asyncio",
    "argparse",
    "base64",
    "dataclasses",
    "hashlib",
    "http",
    "logging",
    "pathlib",
    "sqlite3",
    "ssl",
    "urllib",
}


class Start(NamedTuple):
    """The words of one start, what it is given, what it answers, and what it may load."""

    words: list[str]
    answer: str
    own: set[str]
    slow: frozenset[str] = frozenset()
    lines: tuple[object, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


STARTS = {
    "import enfold": Start(
        ["-c", "before = {*sys.modules}; import enfold; print({*sys.modules} - before - {'__future__'})"],
        "{'enfold'}",
        IMPORTED,
    ),
    "from enfold import OperationRegistry": Start(["-c", "from enfold import OperationRegistry"], "", REGISTRY),
    "a program": Start(["-c", "import app; print(len(app.ops))"], "1", PROGRAM),
    "enfold --help": Start(["--help"], "usage: enfold COMMAND", HELP),
    "enfold list": Start(["list", "app.py"], "add\tquery", LISTED, frozenset({"argparse"})),
    "enfold call": Start(["call", "app.py", "add", "x=1", "y=2"], '{"result":3}', CALLED),
    "enfold cgi, posted": Start(
        ["cgi", "app.py"],
        '{"result":3}',
        ANSWERED,
        frozenset(),
        ({"x": 1, "y": 2},),
        (*CGI, ("REQUEST_METHOD", "POST"), ("CONTENT_TYPE", "application/json")),
    ),
    "enfold cgi, got": Start(
        ["cgi", "app.py"],
        '{"result":3}',
        ANSWERED | READ_FROM_TEXT,
        frozenset({"urllib"}),
        (),
        (*CGI, ("REQUEST_METHOD", "GET"), ("QUERY_STRING", "x=1&y=2")),
    ),
    "enfold mcp, initialize": Start(
        ["mcp", "app.py"], '"protocolVersion":"2025-06-18"', INITIALIZED_OVER_MCP, lines=(INITIALIZE,)
    ),
    "enfold mcp, the first call": Start(
        ["mcp", "app.py"],
        '"structuredContent":{"result":3}',
        CALLED_OVER_MCP,
        frozenset({"asyncio", "base64", "logging", "ssl"}),  # all for asyncio's sake
        (INITIALIZE, INITIALIZED, CALL),
    ),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_start_loads_what_is_listed_and_no_more(start: Start, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "loaded", *start.words],
        cwd=tmp_path,
        env=os.environ | dict(start.variables),
        input="".join(f"{json.dumps(line)}\n" for line in start.lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert start.answer in done.stdout
    loaded = (tmp_path / "loaded").read_text().split()
    own = {name for name in loaded if name.partition(".")[0] == "enfold"}
    assert own - start.own == set(), "load it late, or list it above"
    assert SLOW.intersection(loaded) - start.slow == set()
