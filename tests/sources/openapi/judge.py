"""Prism as a judge of our requests: `python -m tests.sources.openapi.judge [--most N] [documents…]`.

Prism stands as a proxy between us and a server of our own, which answers everything alike; so nothing hangs on what
Prism could make up as an answer. A request counts as right when it has reached that server and Prism, in the header
`sl-violations`, reports no violation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote_plus

import httpx2
import msgspec
from tests.sources.openapi.arguments import NoValueError, make_arguments
from tests.sources.openapi.documents import documents

from enfold import CallError, OperationRegistry, OperationType
from enfold.operations import Operation
from enfold.sources.openapi import ImportedOperations, OpenAPILimits, Service, from_openapi
from enfold.sources.openapi.document import read_document

ROOT: Final = Path(__file__).parents[3]
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
REACHED: Final = b"HTTP/1.1 200 OK\r\nx-reached: yes\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Verdict(msgspec.Struct):
    """What became of the requests of one document."""

    document: str
    operations: int = 0
    right: int = 0
    violations: list[str] = []
    left_out: list[str] = []

    @property
    def requests(self) -> int:
        """How many were judged."""
        return self.right + len(self.violations)

    def __str__(self) -> str:
        head = f"{self.document}: {self.operations} operations judged, {self.right} requests right"
        told = [f"  VIOLATION {each}" for each in self.violations] + [f"  left out: {each}" for each in self.left_out]
        return "\n".join([f"{head}, {len(self.violations)} wrong, {len(self.left_out)} left out", *told])


class Reply(msgspec.Struct, frozen=True):
    """What Prism said of a request, and the body it was sent with."""

    findings: list[dict[str, Any]]
    body: bytes
    body_type: str

    @property
    def form(self) -> bytes:
        return self.body if self.body_type.startswith(FORMS) else b""

    @property
    def excuse(self) -> str | None:
        """Why Prism could not judge the request as a whole."""
        said = json.dumps(self.findings)
        if "PROXY_UNSUPPORTED_REQUEST_BODY" in said:
            return "Prism passes on no GET with a body"
        if self.form and "No supported content types" in said:
            return "the document has a form and no media type for it, which Prism takes for no body"
        if "json" not in self.body_type and not self.form and "Request body must be " in said:
            return f"Prism reads no {self.body_type}, only JSON and forms"
        return None


async def judge(node: str, prism: str, document: Path, most: int, imported: Path | None = None) -> Verdict:
    """Send up to `most` operations of a document through Prism, each with the least and with all arguments.

    With `imported` our side reads that document instead, so that there is something to find.
    """
    verdict = Verdict(document.name)
    async with _upstream() as upstream, _Prism(node, prism, document, upstream) as judging:
        if not judging.is_up:
            verdict.left_out.append("the document: Prism cannot load it")
            return verdict
        async with httpx2.AsyncClient(timeout=30) as client:
            ours = _imported(imported or document, judging.url, client)
            await _Case(judging, client, ours, verdict).run(most)
    return verdict


def _imported(document: Path, url: str, client: httpx2.AsyncClient) -> ImportedOperations:
    root = read_document(document.read_bytes())
    schemes = {
        **(root.get("securityDefinitions") or {}),
        **((root.get("components") or {}).get("securitySchemes") or {}),
    }
    credentials = dict.fromkeys(schemes, "user:secret")
    service = Service(client=client, limits=OpenAPILimits(retries=0))
    return from_openapi(document, base_url=url, credentials=credentials, service=service)


class _Case:
    """The operations of one document before their judge."""

    def __init__(
        self, judging: _Prism, client: httpx2.AsyncClient, imported: ImportedOperations, verdict: Verdict
    ) -> None:
        self._judging = judging
        self._operations = list(imported)
        self._verdict = verdict
        self._registry = OperationRegistry(normalize="off")
        self._registry.register_all(imported)
        self._reply: Reply | None = None
        client.event_hooks = {"response": [self._listen]}

    async def run(self, most: int) -> None:
        random.Random(1).shuffle(self._operations)  # noqa: S311  # the same choice at every run, and no secret
        for operation in self._operations[:most]:
            before = self._verdict.requests
            for full in (False, True):
                await self._judge(operation, full=full)
            self._verdict.operations += self._verdict.requests > before

    async def _judge(self, operation: Operation, *, full: bool) -> None:
        schema = operation.spec.input_schema
        title = f"{operation.spec.meta['method']} {operation.spec.meta['path']} ({'all' if full else 'least'})"
        reason = _unreachable(operation)
        try:
            arguments = make_arguments(schema, full=full)
        except NoValueError:
            reason = reason or "no arguments were found that its schema allows"
        if reason is not None:
            self._verdict.left_out.append(f"{title}: {reason}")
            return
        told = await self._send(operation, arguments)
        unread = _unread(self._reply, arguments)
        if unread:
            self._verdict.left_out.append(f"{title}: Prism cannot read {', '.join(sorted(unread))} in a form")
            if unread & set(schema.get("required", [])):
                return
            told = await self._send(operation, {name: arguments[name] for name in arguments if name not in unread})
        await self._enter(title, told, arguments)

    async def _enter(self, title: str, told: str, arguments: dict[str, Any]) -> None:
        if self._reply is None:
            self._verdict.left_out.append(f"{title}: {told}")
            await self._judging.revive()
        elif self._reply.excuse is not None:
            self._verdict.left_out.append(f"{title}: {self._reply.excuse}")
        elif self._reply.findings:
            said = json.dumps(self._reply.findings)[:400]
            self._verdict.violations.append(f"{title}: {said} for {json.dumps(arguments)[:400]}")
        else:
            self._verdict.right += 1

    async def _send(self, operation: Operation, arguments: Mapping[str, Any]) -> str:
        """Call the operation; what it makes of the judge's answer does not matter here."""
        self._reply = None
        try:
            if operation.spec.type is OperationType.SUBSCRIPTION:
                async with contextlib.aclosing(self._registry.subscribe(operation.spec.id, arguments)) as events:
                    await anext(events, None)
            else:
                await self._registry.execute(operation.spec.id, arguments)
        except CallError as error:
            return str(error)
        return "no answer"

    async def _listen(self, response: httpx2.Response) -> None:
        request = response.request
        self._reply = Reply(_findings(response), request.content, request.headers.get("content-type", ""))
        if "x-reached" not in response.headers:
            told = (await response.aread()).decode(errors="replace")[:300]
            self._reply.findings.append({"message": told})


def _unreachable(operation: Operation) -> str | None:
    """Why Prism finds no route to an operation, whatever is sent."""
    method, path = operation.spec.meta["method"], operation.spec.meta["path"]
    if method not in METHODS:
        return "Prism does not know the method"
    if "#" in path or "?" in path:
        return "Prism finds no path with a # or ?"
    return "Prism cannot read the path" if path.count("{") != path.count("}") else None


def _unread(reply: Reply | None, arguments: Mapping[str, Any]) -> set[str]:
    """The arguments that are in a form and that Prism does not see there.

    It reads lists and objects only where the document gives them an encoding, and drops every field that a schema
    requires without describing it.
    """
    blamed = {_blamed(each): each.get("code") for each in reply.findings} if reply is not None and reply.form else {}
    return {
        name
        for name, code in blamed.items()
        if isinstance(arguments.get(name), list | dict) or (code == "required" and _is_sent(reply, name))
    }


def _is_sent(reply: Reply | None, name: str) -> bool:
    written = (f"{quote_plus(name)}=", f'name="{name}"')
    return reply is not None and any(each.encode() in reply.form for each in written)


def _blamed(finding: dict[str, Any]) -> str:
    """The field of the body that a finding is about."""
    location = finding.get("location", [])
    if location[:2] != ["request", "body"]:
        return ""
    return str(location[2]) if len(location) > 2 else finding["message"].rpartition("property ")[2].strip("'")


def _findings(response: httpx2.Response) -> list[dict[str, Any]]:
    """What is said against the request; that our server's answer is not the declared one does not count."""
    told = response.headers.get("sl-violations", "[]")
    if not told.startswith("["):  # too many to be told in whole, those of the request first
        return [{"message": told[:300]}] if '"location":["request' in told[:100] else []
    found = [each for each in json.loads(told) if each["location"][0] == "request"]
    return [each for each in found if each["severity"] == "Error" or "route not found" in each["message"]]


# --- servers ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    """The server behind the judge: it lets everybody know that they have come through."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REACHED)
            writer.write_eof()
            await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class _Prism:
    """Prism as a process of its own, started again after it has broken down."""

    def __init__(self, node: str, prism: str, document: Path, upstream: str) -> None:
        self._port = _free_port()
        options = ("--host", "127.0.0.1", "--port", str(self._port), "--verboseLevel", "info")
        self._command = (node, prism, "proxy", str(document), upstream, *options)
        self.url = f"http://127.0.0.1:{self._port}"
        self.is_up = False

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def revive(self) -> None:
        """Start it again, if it has broken down: some parameter styles are too much for it."""
        if not await self._answers():
            await self._stop()
            await self._start()

    async def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.close()
            return True
        return False

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        # In a session of its own: node may be a program that starts another, and both have to end.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=pipe, stderr=asyncio.subprocess.STDOUT, start_new_session=True
        )
        self.is_up = await self._comes_up()
        self._drain = asyncio.create_task(self._swallow())

    async def _comes_up(self) -> bool:
        output = self._process.stdout
        assert output is not None
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(60):
                while line := await output.readline():
                    if b"Prism is listening" in line:
                        return True
        return False

    async def _swallow(self) -> None:
        output = self._process.stdout
        assert output is not None
        while await output.read(1 << 16):
            pass

    async def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._drain
        await self._process.wait()


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


# --- the program --------------------------------------------------------------------------------------------------


def main() -> int:
    """Judge the given documents, or all documents of the tests."""
    parser = argparse.ArgumentParser(description="Prism as a judge of the requests we send.")
    parser.add_argument("documents", nargs="*", type=Path)
    parser.add_argument("--most", type=int, default=20, help="operations of each document (%(default)s)")
    chosen = parser.parse_args()
    logging.disable()  # empty answers are no news here
    verdicts = list(_judged(chosen.documents or [each.path for each in documents()], chosen.most))
    judged = [each for each in verdicts if each.right]
    wrong = sum(len(each.violations) for each in verdicts)
    operations, right = sum(each.operations for each in judged), sum(each.right for each in judged)
    left_out = sum(len(each.left_out) for each in verdicts)
    counted = f"{right} requests right, {wrong} wrong, {left_out} left out"
    sys.stdout.write(f"{len(judged)} documents, {operations} operations: {counted}\n")
    return 1 if wrong else 0


def _judged(documents: list[Path], most: int) -> Iterator[Verdict]:
    search = os.pathsep.join([str(ROOT / ".venv/bin"), str(ROOT / ".parts/node_modules/.bin"), os.environ["PATH"]])
    node, prism = shutil.which("node", path=search), shutil.which("prism", path=search)
    if node is None or prism is None:
        sys.exit("Prism is not there: npm install @stoplight/prism-cli, and put it into PATH")
    for document in documents:
        verdict = asyncio.run(judge(node, prism, document, most))
        sys.stdout.write(f"{verdict}\n")
        sys.stdout.flush()
        yield verdict


if __name__ == "__main__":
    sys.exit(main())
