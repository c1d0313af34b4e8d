"""The client of the command line: words in, lines on stdout and stderr, an exit code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

import msgspec

from enfold.errors import CallError
from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.command_line import run_command_line
from enfold.testing.replies import CallRequest, Envelopes, Reply, SurfaceClient


@asynccontextmanager
async def command_line(registry: Registry, **options: Any) -> AsyncIterator[ShellClient]:
    """The command line; `options` are those of `run_command_line`. The status of a reply is its exit code."""
    yield ShellClient(registry, options)


class ShellClient(SurfaceClient):
    """Gives words to the command line, and reads what it prints."""

    def __init__(self, registry: Registry, options: dict[str, Any]) -> None:
        self._registry = registry
        self._options = options

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        status, lines, messages = await self._printed(request, chosen.name)
        if not lines:
            return Reply(None, _error_in(messages), status)
        try:
            return Reply(chosen.read(lines[-1]), None, status, wire=lines[-1])
        except CallError as error:
            return Reply(None, _with_code(error, messages), status, wire=lines[-1])

    async def _subscribe(self, request: CallRequest) -> Envelopes:
        chosen = request.chosen_format
        status, lines, messages = await self._printed(request, chosen.name)
        try:
            for line in lines:
                yield chosen.read(line)
        except CallError as error:
            raise _with_code(error, messages) from None
        if status and not lines:
            raise _error_in(messages)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        """As `enfold list` prints them, which is a command beside this surface."""
        return [spec.id for spec in self._registry.visible(identity)]

    async def _printed(self, request: CallRequest, format: str) -> tuple[int, Sequence[Any], str]:
        """The exit code, the lines on stdout as JSON, and the text on stderr."""
        words, given = (request.operation, "@-", "--format", format), msgspec.json.encode(request.input).decode()
        status, out, messages = await self.run(*words, stdin=given, identity=request.identity)
        return status, [json.loads(line) for line in out.split("\n") if line], messages

    async def run(self, *words: str, stdin: str = "", identity: Identity | None = None) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of any words."""
        out, messages = StringIO(), StringIO()
        status = await run_command_line(
            self._registry,
            words,
            identity=identity,
            stdin=StringIO(stdin),
            stdout=out,
            stderr=messages,
            **self._options,
        )
        return status, out.getvalue(), messages.getvalue()


def _error_in(messages: str) -> CallError:
    code, _, message = messages.rstrip("\n").rpartition("\n")[2].partition(": ")
    return CallError(code, message)


def _with_code(error: CallError, messages: str) -> CallError:
    """The error as the format has it, with the code on stderr, which not every format has a place for."""
    return CallError(_error_in(messages).code, error.message, error.details, error.retryable)
