"""The command `enfold tasks`: show the tasks of a store, wait for one, answer its questions, cancel it. It runs no tasks."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.commands.shared.callers import LOCAL
from enfold.commands.shared.options import add_number, parse_options
from enfold.commands.shared.output import print_json
from enfold.commands.shared.stores import DEFAULT_STORE, TaskSettings, opened_tasks, task_settings
from enfold.commands.shared.targets import opened, read_target
from enfold.envelope import error_of
from enfold.errors import CallError, printable, printable_json
from enfold.formats import DEFAULT_FORMAT, find_format
from enfold.observability.log import silence
from enfold.runtime.registry import OperationRegistry, Registry
from enfold.surfaces.command_line.arguments import seconds, wrong
from enfold.surfaces.command_line.terminal import ProgressLine, TerminalPeer, is_terminal
from enfold.surfaces.responses import encode_result
from enfold.surfaces.tasks import shown_task
from enfold.tasks import Task, TaskHandle, Tasks
from enfold.tasks.model import Status
from enfold.tasks.tasks import MAX_LIST
from enfold.tasks.upstream import HANDLE_PREFIX

VERBS: Final = {
    "get": "show a task, with its result once it has finished",
    "wait": "wait for a task to finish and print its result; at a terminal, answer its questions",
    "answer": "answer questions: KEY=JSON for each, or interactively at a terminal",
    "cancel": "request the cancellation of a task",
    "list": "list tasks, newest first",
    "clean": "end tasks past their deadline, and delete expired ones",
}


def run(words: list[str], registry: Registry | None) -> int:
    """Run one subcommand on the store; access to the file gives access to all tasks."""
    del registry
    silence("enfold.tasks")  # one sentence for the user
    options = parse_options(_parser(), words)
    _check_words(options)
    return asyncio.run(_run(options))


def _check_words(options: Namespace) -> None:
    """Refuse an id that is missing, and words that would be ignored."""
    takes_id = options.verb not in ("list", "clean")
    if takes_id and options.id is None:
        raise wrong(f"{options.verb} needs the id of a task, as printed by `enfold call --detach`")
    more = options.answers if takes_id else [*filter(None, [options.id]), *options.answers]
    if more and options.verb != "answer":
        told = "takes one task at a time" if takes_id else "applies to all tasks"
        raise wrong(f"{options.verb} {told}: leave out {' '.join(more)[:200]}")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("enfold tasks", description="Show and manage tasks.", allow_abbrev=False)
    verbs = "; ".join(f"{name}: {text}" for name, text in VERBS.items())
    parser.add_argument("verb", choices=list(VERBS), metavar=f"{{{','.join(VERBS)}}}", help=verbs)
    parser.add_argument("id", nargs="?", help="the id of a task")
    parser.add_argument(
        "answers", nargs="*", default=[], metavar="KEY=JSON", help="for answer: the content of each form, as JSON"
    )
    parser.add_argument("--tasks", metavar="STORE", help=f"a file, or nats://… (default {DEFAULT_STORE})")
    parser.add_argument(
        "--target", help="the program or configuration whose tasks to use; required for ids that start with s."
    )
    parser.add_argument("--format", default=DEFAULT_FORMAT, help="the format of results")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="for wait: maximum time in seconds")
    most = f"for list: maximum number, up to {MAX_LIST}"
    add_number(parser, "--limit", 1, MAX_LIST, default=100, metavar="NUMBER", help=most)
    return parser


async def _run(options: Namespace) -> int:
    settings, is_elsewhere = _settings(options), (options.id or "").startswith(HANDLE_PREFIX)
    registry: AbstractAsyncContextManager[Registry] = nullcontext(OperationRegistry())
    if is_elsewhere:  # a server behind a gateway has it: the gateway's sources say where that is
        if options.target is None:
            message = (
                "This task runs on an upstream server: pass --target CONFIGURATION of the gateway that returned the id"
            )
            raise wrong(message)
        registry = opened(read_target(options.target))
    elif not settings.is_remote and not settings.path.exists():
        message = f"No tasks found at {settings.path}: pass --tasks FILE or --target TARGET, or change to their folder"
        raise wrong(message)
    async with registry as found, opened_tasks(found, settings, at_once=0) as tasks:
        if tasks is None:  # the target has no server that could run it
            raise CallError("TASK_NOT_FOUND", "Task not found, or expired")
        try:
            return await _verb(tasks, options)
        except CallError as error:
            raise _with_cause(error, settings) from None


def _settings(options: Namespace) -> TaskSettings:
    """Return the location of the tasks: from the options, else below the folder of the target or user."""
    if options.target is not None:
        target = read_target(options.target)
        file = Path(target.text.partition(":")[0])
        if target.kind == "program" and file.suffix == ".py" and not file.exists():
            raise wrong(f"There is no file {file}")  # its tasks would be looked for in some folder
        found = task_settings(target, options.tasks)
    else:
        found = TaskSettings(Path.cwd(), options.tasks)
    is_named = found.store is not None or (options.id or "").startswith(HANDLE_PREFIX)
    return found if is_named else msgspec.structs.replace(found, store=str(DEFAULT_STORE))


def _with_cause(error: CallError, settings: TaskSettings) -> CallError:
    """Add the reason why the store cannot be used to an error."""
    if error.details.get("reason") != "store" or error.__cause__ is None:
        return error
    return CallError("UNAVAILABLE", f"{settings.store or settings.path} cannot be used: {error.__cause__}")


async def _verb(tasks: Tasks, options: Namespace) -> int:
    if options.verb == "clean":
        await tasks.store.expire()
        return 0
    if options.verb == "list":
        for task in await tasks.list(identity=LOCAL, limit=options.limit):
            print(f"{task.id}\t{task.status.value}\t{task.operation}\t{printable(task.message or '')}".rstrip())
        return 0
    handle = await tasks.get(options.id, identity=LOCAL)
    if options.verb == "wait":
        return await _wait(handle, options)
    task = await handle.state()
    if options.verb == "cancel":
        task = await handle.cancel()
    elif options.verb == "answer":
        task = await handle.answer(_answers(task, options.answers))
    print_json(shown_task(tasks, task, find_format(options.format)))
    return 0


# --- waiting ------------------------------------------------------------------------------------------------------


async def _wait(handle: TaskHandle, options: Namespace) -> int:
    """Show the progress of a task until it has ended, then print what the call would have printed."""
    line = ProgressLine(sys.stderr)
    try:
        async with asyncio.timeout(options.timeout):
            task = await _wait_for_end(handle, line)
    except TimeoutError:
        raise CallError("TIMEOUT", f"The task {handle.id} is still running") from None
    finally:
        line.clear()
    envelope = handle.outcome(task)
    text = encode_result(find_format(options.format).write, envelope).decode()
    print(printable_json(text) if sys.stdout.isatty() else text)
    return error_of(envelope).row.exit_code if envelope.is_error else 0


async def _wait_for_end(handle: TaskHandle, line: ProgressLine) -> Task:
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
            await handle.answer(_ask_person(task))
    raise CallError("TASK_NOT_FOUND", "The task has expired")


# --- answering ----------------------------------------------------------------------------------------------------


def _answers(task: Task, words: list[str]) -> dict[str, Any]:
    """Read the answers by key from words; at a terminal without words, ask each question."""
    if not words:
        if task.questions and is_terminal(sys.stdin, sys.stderr):
            return _ask_person(task)
        raise wrong(f"answer needs KEY=JSON for: {', '.join(task.questions) or 'nothing now'}")
    given = dict(_answer(word) for word in words)
    if unknown := ", ".join(key for key in given if key not in task.questions):
        raise wrong(f"The task has no question {unknown}: answer {', '.join(task.questions) or 'nothing now'}")
    return given


def _answer(word: str) -> tuple[str, dict[str, Any]]:
    key, equals, text = word.partition("=")
    try:
        content = msgspec.json.decode(text) if equals else None
    except msgspec.DecodeError:
        content = None
    if not isinstance(content, dict):
        raise wrong(f'{word[:100]} must be KEY=JSON, as in name-1a2b={{"name":"Ann"}}')
    return key, content if "action" in content else {"action": "accept", "content": content}


def _ask_person(task: Task) -> dict[str, Any]:
    person = TerminalPeer(sys.stdin, sys.stderr)
    return {key: person.answer(each.method, each.params) for key, each in task.questions.items()}
