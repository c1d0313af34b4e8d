"""Commands and options of FastAPI, FastMCP, mcpo and uvicorn work, or get a hint with the right command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.served import serving

import mcp
from mcp import StdioServerParameters

APP = """
from enfold import OperationRegistry

ops = OperationRegistry("shop")

@ops.tool
def add(x: int, y: int) -> int:
    return x + y

@ops.tool(name="minus", destructive=True)
def subtract(x: int, y: int) -> int:
    return x - y

@ops.resource("shop://fruit/{name}")
def fruit(name: str) -> str:
    return f"one {name}"

@ops.prompt
def recipe(name: str) -> str:
    return f"Write a recipe for {name}."

@ops.prompt(title="Menu")
def menu() -> str:
    return "Write a menu."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "enfold.toml").write_text('[sources.shop]\nfunctions = "app.py:ops"\n')
    return tmp_path


def enfold(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "enfold", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
    )


async def test_tools_resources_and_prompts_are_registered_as_elsewhere(folder: Path) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "enfold", "mcp", str(folder / "app.py")])
    async with mcp.Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        added = await client.call_tool("shop_add", {"x": 1, "y": 2})
        (contents,) = (await client.read_resource("shop://fruit/apple")).contents
        prompt = await client.get_prompt("shop_recipe", {"name": "cake"})
        prompts = {prompt.name: prompt.title for prompt in (await client.list_prompts()).prompts}
    assert set(tools) == {"shop_add", "shop_minus"}
    assert added.structured_content == {"result": 3}
    assert (contents.uri, getattr(contents, "text", None)) == ("shop://fruit/apple", "one apple")
    assert getattr(prompt.messages[0].content, "text", None) == "Write a recipe for cake."
    assert prompts == {"shop_recipe": None, "shop_menu": "Menu"}


def test_a_tool_is_a_mutation(folder: Path) -> None:
    assert enfold(folder, "list", "app.py").stdout.splitlines()[0].split() == ["shop.add", "mutation"]


ADVICE = {
    "run": (["run", "app.py"], "Unknown command 'run': enfold serve app.py serves HTTP"),
    "run with a transport": (["run", "app.py:ops", "--transport", "http"], "enfold serve app.py:ops serves HTTP"),
    "dev": (["dev", "app.py"], "Unknown command 'dev': enfold serve app.py --reload"),
    "install": (["install", "claude-desktop", "app.py"], "enfold mcp app.py --install-json"),
    "no target": (["dev"], "enfold serve app.py --reload"),
    "a target alone": (["app.py"], "Unknown command 'app.py': put the command first: enfold serve app.py"),
    "options alone": (["--config", "enfold.toml", "--port", "0"], "put the command first: enfold serve enfold.toml"),
    "serve --transport": (["serve", "app.py", "--transport", "stdio"], "enfold mcp app.py serves MCP"),
    "mcp --transport": (["mcp", "app.py", "--transport=http"], "enfold serve app.py serves HTTP"),
    "mcp --transport alone": (["mcp", "--transport", "http"], "enfold serve app.py serves HTTP"),
    "serve --config": (
        ["serve", "--config", "enfold.toml"],
        "pass the configuration as the target: enfold serve enfold.toml",
    ),
    "mcp --config": (["mcp", "--config=enfold.toml"], "pass the configuration as the target: enfold mcp enfold.toml"),
    "list --config": (
        ["list", "--config", "enfold.toml"],
        "pass the configuration as the target: enfold list enfold.toml",
    ),
    "call --config": (
        ["call", "--config", "enfold.toml", "shop.add"],
        "pass the configuration as the target: enfold call enfold.toml",
    ),
    "work --config": (
        ["work", "--config", "enfold.toml"],
        "pass the configuration as the target: enfold work enfold.toml",
    ),
    "openapi --config": (
        ["openapi", "--config", "enfold.toml"],
        "pass the configuration as the target: enfold openapi enfold.toml",
    ),
    "serve --api-key": (["serve", "app.py", "--api-key", "secret"], "has no option --api-key: use --token"),
    "serve --ssl-keyfile": (["serve", "app.py", "--ssl-keyfile", "key.pem"], "use --tls-key"),
}


@pytest.mark.parametrize(("words", "advice"), ADVICE.values(), ids=ADVICE)
def test_commands_and_options_of_other_tools_name_the_right_one(folder: Path, words: list[str], advice: str) -> None:
    done = enfold(folder, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("VALIDATION_ERROR: ")
    assert advice in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("target", ["app", "app:ops"])
def test_a_module_that_is_a_file_of_the_folder_names_the_file(folder: Path, target: str) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "enfold",
        "list",
        target,
    ]  # as the script `enfold`, without the folder on its path
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=folder)
    assert (done.returncode, done.stderr) == (
        2,
        "VALIDATION_ERROR: There is no module app: did you mean the file app.py?\n",
    )


# --- the address from the environment -----------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_serve_listens_where_the_environment_says(folder: Path) -> None:
    port = free_port()
    with serving("app.py", cwd=folder, env={"PORT": str(port), "ENFOLD_HOST": "localhost"}) as served:
        assert served.base == f"http://localhost:{port}"
        assert served.get("/healthz") == {"status": "ok"}


def test_options_win_over_the_environment(folder: Path) -> None:
    words = ("app.py", "--port", "0", "--host", "127.0.0.1")
    with serving(*words, cwd=folder, env={"PORT": "1", "ENFOLD_HOST": "192.0.2.1"}) as served:
        assert served.base.startswith("http://127.0.0.1:")


def test_a_host_from_the_environment_needs_tokens_as_one_from_an_option_does(folder: Path) -> None:
    by_option = enfold(folder, "serve", "app.py", "--host", "0.0.0.0", "--port", "0")  # it is refused
    by_variable = enfold(folder, "serve", "app.py", "--port", "0", ENFOLD_HOST="0.0.0.0")  # it is refused
    assert "Serving on 0.0.0.0 without tokens" in by_option.stderr
    assert (by_variable.returncode, by_variable.stderr) == (by_option.returncode, by_option.stderr)


@pytest.mark.parametrize("port", ["http", "-1", "65536", "80.5"])
def test_a_wrong_port_in_the_environment_is_refused_with_its_name(folder: Path, port: str) -> None:
    done = enfold(folder, "serve", "app.py", PORT=port)
    assert done.stderr == f"VALIDATION_ERROR: PORT must be a number from 0 to 65535, not {port}\n"


def test_an_empty_port_in_the_environment_is_none(folder: Path) -> None:
    done = enfold(folder, "serve", "app.py", "--host", "192.0.2.1", "--insecure", PORT="")
    assert "Port 8000 on 192.0.2.1 cannot be used" in done.stderr
