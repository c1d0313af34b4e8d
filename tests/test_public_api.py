import subprocess
import sys
from importlib.metadata import version

import enfold

PUBLIC = """
OperationRegistry OperationSpec OperationType AccessControl App Identity Context
ResponseEnvelope LocalResponseMeta HTTPResponseMeta MCPResponseMeta
local_envelope http_envelope mcp_envelope is_response_envelope unwrap to_wire from_wire
TextContent ImageContent AudioContent EmbeddedResource ResourceLink
RESPONSE_ENVELOPE_SCHEMA RESPONSE_META_SCHEMA LOCAL_RESPONSE_META_SCHEMA HTTP_RESPONSE_META_SCHEMA
MCP_RESPONSE_META_SCHEMA MCP_CONTENT_BLOCK_SCHEMA RESPONSE_SOURCES
CallError FormatError cast CastError repair build_env
Call Middleware Next Outcome NeedsInput Deferred Depends MediaType Tokens
""".split()  # noqa: SIM905  # as the contract lists them


def test_the_public_names_are_those_of_the_contract() -> None:
    assert sorted(enfold.__all__) == sorted(PUBLIC)
    assert all(hasattr(enfold, name) for name in PUBLIC)


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert enfold.__version__ == version("enfold")


def test_importing_enfold_loads_no_optional_or_slow_module() -> None:
    program = "import sys, enfold; assert {*enfold.__all__} <= {*dir(enfold)}; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    slow = {
        "asyncio",
        "pydantic",
        "mcp",
        "httpx2",
        "httptools",
        "uvicorn",
        "nats",
        "websockets",
        "logging",
        "dataclasses",
        "attr",
    }
    assert slow & set(done.stdout.split()) == set()


def test_a_module_is_there_without_being_imported_by_its_name() -> None:
    program = "import enfold; print(enfold.errors.CallError is enfold.CallError, hasattr(enfold, 'nothing'), hasattr(enfold, '__main__'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
