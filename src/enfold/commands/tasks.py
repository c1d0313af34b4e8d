"""The command `enfold tasks`: look at the tasks of a store, wait for one, answer what it asks, end it. It runs none."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from enfold.commands.callers import LOCAL
from enfold.commands.command_options import parsed
from enfold.commands.printing import print_json
from enfold.commands.task_store import DEFAULT_STORE, TaskSettings, open_store
from enfold.envelope import error_of
from enfold.errors import CallError
from enfold.formats import find_format
from enfold.registry import OperationRegistry, Registry
from enfold.surfaces.command_line.terminal import ProgressLine, TerminalPeer, is_terminal
from enfold.surfaces.task_wire import flat_task, input_requests
from enfold.surfaces.writing import encode_result
from enfold.tasks import Task, TaskHandle, Tasks
from enfold.tasks.task import Status

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["run"]

VERBS: Final = {
    "get": "show a task, with its result once it has ended",
    "wait": "wait for the end of a task and print its result; at a terminal, answer what it asks",
    "answer": "answer questions: KEY=JSON for each, or at a terminal without any",
    "cancel": "ask for the end of a task",
    "list": "list the tasks, the newest first",
    "clean": "end what is over its deadline, and forget what was kept long enough",
}


def run(words: list[str], registry: Registry | None) -> int:
    """Run one verb on the store; whoever can open the file sees all of it."""
    del registry
    options = parsed(_parser(), words)
    if options.verb not in ("list", "clean") and options.id is None:
        raise CallError("VALIDATION_ERROR", f"{options.verb} needs the id of a task, which `call --detach` prints")
    return asyncio.run(_run(options))


def _parser() -> ArgumentParser:
    from argparse import ArgumentParser

    parser = ArgumentParser("enfold tasks", description="Look at durable calls, and steer them.", allow_abbrev=False)
    verbs = "; ".join(f"{name}: {text}" for name, text in VERBS.items())
    parser.add_argument("verb", choices=list(VERBS), help=verbs)
    parser.add_argument("id", nargs="?", help="the id of a task")
    parser.add_argument("answers", nargs="*", metavar="KEY=JSON", help="for answer: the content of each form")
    parser.add_argument("--tasks", metavar="FILE", help=f"the store (default {DEFAULT_STORE})")
    parser.add_argument("--format", default="result", help="the format of results")
    parser.add_argument("--timeout", type=float, help="for wait: how many seconds at most")
    parser.add_argument("--limit", type=int, default=100, help="for list: how many")
    return parser


async def _run(options: Namespace) -> int:
    settings = TaskSettings(Path.cwd(), options.tasks)
    path = settings.folder / (settings.store or DEFAULT_STORE)
    if not path.exists():
        raise CallError("VALIDATION_ERROR", f"There are no tasks at {path}: say --tasks FILE, or go to their folder")
    tasks = Tasks(OperationRegistry(), open_store(settings), at_once=0)
    try:
        return await _verb(tasks, options)
    finally:
        await tasks.close()


async def _verb(tasks: Tasks, options: Namespace) -> int:
    if options.verb == "clean":
        await tasks.store.expire()
        return 0
    if options.verb == "list":
        for task in await tasks.list(identity=LOCAL, limit=options.limit):
            print(f"{task.id}\t{task.status.value}\t{task.operation}\t{task.message or ''}".rstrip())
        return 0
    handle = await tasks.get(options.id, identity=LOCAL)
    if options.verb == "wait":
        return await _wait(handle, options)
    if options.verb == "cancel":
        print_json(_shown(handle, await handle.cancel(), options.format))
        return 0
    if options.verb == "answer":
        task = await handle.state()
        print_json(_shown(handle, await handle.answer(_answers(task, options.answers)), options.format))
        return 0
    print_json(_shown(handle, await handle.state(), options.format))
    return 0


# --- waiting ------------------------------------------------------------------------------------------------------


async def _wait(handle: TaskHandle, options: Namespace) -> int:
    """Show how far it is until it has ended, then what the call would have printed."""
    line = ProgressLine(sys.stderr)
    try:
        async with asyncio.timeout(options.timeout):
            task = await _ended(handle, line)
    except TimeoutError:
        raise CallError("TIMEOUT", f"The task {handle.id} has not ended yet, and goes on") from None
    finally:
        line.clear()
    envelope = handle.outcome(task)
    print(encode_result(find_format(options.format).write(envelope)).decode())
    return error_of(envelope).row.exit_code if envelope.is_error else 0


async def _ended(handle: TaskHandle, line: ProgressLine) -> Task:
    async for task in handle.watch():
        if task.is_ended:
            return task
        if task.progress is not None:
            line.show(task.progress)
        if task.status is Status.INPUT_REQUIRED:
            line.clear()
            if not is_terminal(sys.stdin, sys.stderr):
                keys = ", ".join(task.questions)
                raise CallError("UNAVAILABLE", f"The task asks for {keys}: enfold tasks answer {task.id} KEY=JSON")
            await handle.answer(_asked(task))
    raise CallError("TASK_NOT_FOUND", "The task is not kept any more")


# --- answering ----------------------------------------------------------------------------------------------------


def _answers(task: Task, words: list[str]) -> dict[str, Any]:
    """The answers that words give, by their keys; at a terminal without any each question is asked."""
    if not words:
        if task.questions and is_terminal(sys.stdin, sys.stderr):
            return _asked(task)
        raise CallError("VALIDATION_ERROR", f"answer needs KEY=JSON for: {', '.join(task.questions) or 'nothing now'}")
    return dict(_answer(word) for word in words)


def _answer(word: str) -> tuple[str, dict[str, Any]]:
    import msgspec

    key, equals, text = word.partition("=")
    try:
        content = msgspec.json.decode(text) if equals else None
    except msgspec.DecodeError:
        content = None
    if not isinstance(content, dict):
        raise CallError("VALIDATION_ERROR", f'{word[:100]} must be KEY=JSON, as in name-1a2b={{"name":"Ann"}}')
    return key, content if "action" in content else {"action": "accept", "content": content}


def _asked(task: Task) -> dict[str, Any]:
    person = TerminalPeer(sys.stdin, sys.stderr)
    return {key: person.answer(each.method, each.params) for key, each in task.questions.items()}


def _shown(handle: TaskHandle, task: Task, format: str) -> dict[str, Any]:
    told = {**flat_task(task), "operation": task.operation}
    if task.questions:
        told["inputRequests"] = input_requests(task)
    if not task.is_ended:
        return told
    chosen = find_format(format)
    try:
        return {**told, "result": chosen.write(handle.outcome(task))}
    except CallError as error:
        return {**told, "error": chosen.write_error(error, task.operation)}
