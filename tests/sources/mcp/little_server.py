"""A little MCP server on the standard streams, with every bad habit a real one may have; the options choose them."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--era", choices=("legacy", "stateless", "both"), default="legacy")
parser.add_argument("--page", type=int, default=0, help="tools on one page of the list")
parser.add_argument("--slow", type=float, default=0, help="seconds before it reads anything")
parser.add_argument("--probe", choices=("refuse", "ignore", "quit"), default="refuse", help="what an older one does")
parser.add_argument("--marks", default="", help="a file that gets a line for each run of `mark`")
parser.add_argument("--deaf-once", default="", help="closes its input after the list, unless this file is there")
parser.add_argument("--banner", action="store_true", help="greets before it speaks the protocol, not even in UTF-8")
parser.add_argument("--notes", action="store_true", help="has a resource that can be followed")
parser.add_argument("--stays", action="store_true", help="does not end when its input does")
options = parser.parse_args()

STATELESS = "2026-07-28"
ANY = {"type": "object"}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
Result = dict[str, Any]


class Refused(Exception):  # noqa: N818  # named after what it means here
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


# --- tools --------------------------------------------------------------------------------------------------------


def text(words: str, **more: Any) -> Result:
    return {"content": [{"type": "text", "text": words}], **more}


def add(arguments: Result, _: Result) -> Result:
    total = {"sum": arguments["x"] + arguments["y"]}
    return text(json.dumps(total), structuredContent=total)


def revision(_: Result, params: Result) -> Result:
    return text(params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion", "handshake"))


def mark(arguments: Result, _: Result) -> Result:
    with open(options.marks, "a") as file:  # noqa: PTH123  # a server of few lines
        file.write("ran\n")
    return text("marked")


def mark_and_die(arguments: Result, params: Result) -> Result:
    mark(arguments, params)
    return die(arguments, params)


def die(arguments: Result, _: Result) -> Result:
    sys.stderr.write("first words\nI cannot go on\n")
    sys.exit(3)


def hang(arguments: Result, _: Result) -> None:
    return None


def freeze(arguments: Result, _: Result) -> None:
    """Suspend: it neither reads nor writes, and does not even end when it is asked to."""
    os.kill(os.getpid(), signal.SIGSTOP)


def mute(arguments: Result, _: Result) -> None:
    """Close its output, and go on running."""
    os.close(1)
    time.sleep(60)


def die_hard(arguments: Result, _: Result) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def junk(arguments: Result, _: Result) -> Result:
    say("Loading the model...\n{not json\n")
    return text("good")


def not_json(arguments: Result, params: Result) -> None:
    say('{"jsonrpc": "2.0", "id": %d, "result": {"content": [}}' % params["request"])


def not_a_number(arguments: Result, _: Result) -> Result:
    return {"content": [], "structuredContent": {"mean": float("nan"), "count": 0}}


def no_object(arguments: Result, params: Result) -> None:
    write({"jsonrpc": "2.0", "id": params["request"], "result": "words"})


def big(arguments: Result, _: Result) -> Result:
    return text("x" * arguments["size"])


def strange(arguments: Result, _: Result) -> Result:
    return {"content": [{"type": "hologram", "voxels": [1, 2]}, {"type": "text", "text": "and text"}]}


def misfit(arguments: Result, _: Result) -> Result:
    wrong = {"sum": "42", "note": "not in the schema"}
    return text(json.dumps(wrong), structuredContent=wrong)


def only_text(arguments: Result, _: Result) -> Result:
    return text('{"sum": "42"}')


def failed(arguments: Result, _: Result) -> Result:
    return text("It is raining", isError=True)


def steps(arguments: Result, params: Result) -> Result:
    token = params.get("_meta", {}).get("progressToken")
    for step in (1, 2):
        note(
            "notifications/progress", {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
        )
    note("notifications/message", {"level": "warning", "logger": "little", "data": {"low": "disk"}})
    return text("done")


def touch(arguments: Result, _: Result) -> Result:
    """Report a change of a note, and of a part of it, if it is followed."""
    for uri in sorted(FOLLOWED):
        note("notifications/resources/updated", {"uri": uri})
        note("notifications/resources/updated", {"uri": f"{uri}/margin"})
    return {"content": [], "structuredContent": {"followed": sorted(FOLLOWED)}}


def mutter(arguments: Result, _: Result) -> Result:
    for level in LEVELS[LEVELS.index(LOUDNESS[-1]) :]:
        note("notifications/message", {"level": level, "logger": "little", "data": f"a {level}"})
    return text("muttered")


def grow(arguments: Result, _: Result) -> Result:
    TOOLS[arguments["name"]] = (add, ANY, None)
    TOOLS.pop("hang", None)
    note("notifications/tools/list_changed", {})
    return text("grown")


def ask(arguments: Result, _: Result) -> Result:
    form = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "polite": {"type": "boolean", "default": True}},
    }
    answer = request("elicitation/create", {"message": "Who are you?", "requestedSchema": form})
    return text(json.dumps(answer))


def mark_and_ask(arguments: Result, params: Result) -> Result:
    mark(arguments, params)
    return ask(arguments, params)


def told(arguments: Result, _: Result) -> Result:
    return {"content": [], "structuredContent": {"cancelled": CANCELLED, "env": dict(os.environ), "pid": os.getpid()}}


Tool = Callable[[Result, Result], Result | None]
TOOLS: dict[str, tuple[Tool, Result, Result | None]] = {
    "add": (add, {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}, SUM),
    "revision": (revision, ANY, None),
    "misfit": (misfit, ANY, SUM),
    "only_text": (only_text, ANY, SUM),
    **{
        tool.__name__: (tool, ANY, None)
        for tool in (
            freeze,
            mute,
            die_hard,
            mark,
            mark_and_die,
            die,
            hang,
            junk,
            not_json,
            not_a_number,
            no_object,
            big,
            strange,
            failed,
        )
    },
    **{tool.__name__: (tool, ANY, None) for tool in (steps, grow, ask, mark_and_ask, told, touch, mutter)},
}
CANCELLED: list[Any] = []
FOLLOWED: set[str] = set()
LEVELS = ("debug", "warning")
LOUDNESS = ["warning"]


# --- the protocol -------------------------------------------------------------------------------------------------


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def write(message: Result) -> None:
    say(json.dumps({"jsonrpc": "2.0", **message}))


def note(method: str, params: Result) -> None:
    write({"method": method, "params": params})


def request(method: str, params: Result) -> Result:
    """Ask the client; what else it says meanwhile is passed over."""
    write({"id": "question", "method": method, "params": params})
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == "question":
            return dict(message.get("result") or {"error": message["error"]})
    sys.exit(0)


def answer(method: str, params: Result) -> Result | None:
    if method == "server/discover" and options.era != "legacy":
        return {"supportedVersions": [STATELESS], "capabilities": capabilities(), "resultType": "complete"}
    if method == "initialize" and options.era != "stateless":
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities(), "serverInfo": {"name": "little"}}
    if method == "tools/list":
        return page(list(TOOLS), int(params.get("cursor") or 0))
    if method == "tools/call":
        return call(params)
    if method == "ping":
        return {}
    if method == "logging/setLevel":
        LOUDNESS.append("debug" if params["level"] == "debug" else "warning")
        return {}
    if options.notes and method.startswith("resources/"):
        return notes(method, params)
    raise Refused(-32601, f"There is no {method}")


def capabilities() -> Result:
    offered: Result = {"tools": {"listChanged": True}, "logging": {}}
    return {**offered, "resources": {"subscribe": True}} if options.notes else offered


def notes(method: str, params: Result) -> Result:
    if method == "resources/list":
        return {"resources": [{"uri": "memo://old", "name": "memo", "description": "A memo"}]}
    if method == "resources/subscribe":
        FOLLOWED.add(params["uri"])
    if method == "resources/unsubscribe":
        FOLLOWED.discard(params["uri"])
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": "words"}]}
    return {"resourceTemplates": []} if "templates" in method else {}


def page(names: list[str], start: int) -> Result:
    size = options.page or len(names)
    listed: Result = {
        "tools": [entry(name) for name in names[start : start + size]],
        "ttlMs": 0,
        "cacheScope": "private",
    }
    return {**listed, "nextCursor": str(start + size)} if start + size < len(names) else listed


def entry(name: str) -> Result:
    _, schema, output = TOOLS[name]
    listed = {"name": name, "description": name, "inputSchema": schema}
    return {**listed, "outputSchema": output} if output else listed


def call(params: Result) -> Result | None:
    tool = TOOLS.get(params["name"])
    if tool is None:
        raise Refused(-32602, f"Unknown tool: {params['name']}")
    return tool[0](params.get("arguments") or {}, params)


def take(message: Result) -> None:
    method, params = message.get("method", ""), message.get("params") or {}
    if method == "notifications/cancelled":
        CANCELLED.append(params["requestId"])
    if "id" not in message or not method:
        return
    if method == "server/discover" and options.era == "legacy" and options.probe != "refuse":
        if options.probe == "quit":
            sys.exit(1)
        return
    try:
        result = answer(method, {**params, "request": message["id"]})
    except Refused as error:
        write({"id": message["id"], "error": {"code": error.code, "message": str(error)}})
    else:
        if result is not None:
            write({"id": message["id"], "result": result})
    if options.deaf_once and method == "tools/list" and not os.path.exists(options.deaf_once):  # noqa: PTH110
        with open(options.deaf_once, "w"):  # noqa: PTH123
            os.close(0)
            time.sleep(60)


if options.banner:
    sys.stdout.buffer.write(b"\x1b[1mWelcome\xff to {the server\n\n[1, 2]\n")
    sys.stdout.flush()
time.sleep(options.slow)
for received in sys.stdin:
    take(json.loads(received))
while options.stays:
    time.sleep(60)
