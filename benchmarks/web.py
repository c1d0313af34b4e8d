"""Requests to a server beside us, by our HTTP client and by httpx2: an OpenAPI call, kept connections, and first ones.

`python -m benchmarks.web ROUNDS` runs the comparisons; `... serve CERTIFICATE` is the server that is called.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from benchmarks import harness, report
from benchmarks.environments import ROOT
from benchmarks.harness import Comparison, Contender, Goal, Outcome, WrongAnswerError, of_coroutine
from enfold import OperationRegistry
from enfold.http_client import Request, open_client
from enfold.sources.openapi import from_openapi

HTTPX2: Final = "httpx2"
EXECUTE: Final = "execute"
OURS: Final = "our client"
LIMIT: Final = 1_000_000
THING: Final = {"id": 7, "name": "a thing", "tags": ["a", "b"], "price": 12.5, "in_stock": True}
REPLY: Final = json.dumps(THING).encode()


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "certificate.pem"
        certificate.write_bytes(_certificate())
        os.environ["SSL_CERT_FILE"] = str(certificate)
        with _server(certificate) as (plain, encrypted):
            try:
                outcomes = asyncio.run(_comparison_all(plain, encrypted, rounds))
            except WrongAnswerError as error:
                print(f"web: {error}", file=sys.stderr)
                return 1
    report.save("web", outcomes)
    return 0


async def _comparison_all(plain: str, encrypted: str, rounds: int) -> list[Outcome]:
    not_slower = (Goal(OURS, HTTPX2, "at most", 1),)
    async with httpx2.AsyncClient() as peer, from_openapi(_shop(), base_url=plain) as imported:
        ours = open_client()
        comparisons = [
            Comparison("an OpenAPI call", (_execute(imported), _get(peer, plain)), (HTTPX2,), _goal(EXECUTE, 0.35)),
            Comparison(
                "a request over a kept connection", (_send(ours, plain), _get(peer, plain)), (HTTPX2,), not_slower
            ),
            Comparison(
                "an encrypted request over one", (_send(ours, encrypted), _get(peer, encrypted)), (HTTPX2,), not_slower
            ),
            Comparison("a first request", (_first(plain), _first_of_httpx2(plain)), (HTTPX2,), not_slower),
            Comparison(
                "a first encrypted request", (_first(encrypted), _first_of_httpx2(encrypted)), (HTTPX2,), not_slower
            ),
        ]
        outcomes = []
        for comparison in comparisons:
            outcome = await harness.run(comparison, rounds)
            report.show(outcome)
            outcomes.append(outcome)
        await ours.aclose()
    return outcomes


def _goal(name: str, limit: float) -> tuple[Goal, ...]:
    return (Goal(name, HTTPX2, "at most", limit),)


# --- contenders ---------------------------------------------------------------------------------------------------


def _execute(imported: Any) -> Contender:
    registry = OperationRegistry()
    registry.register_all(imported)

    async def call() -> Any:
        return (await registry.execute("getThing", {"id": 7, "fields": "name"})).data

    return of_coroutine(EXECUTE, call, THING)


def _get(peer: httpx2.AsyncClient, url: str) -> Contender:
    async def call() -> Any:
        return (await peer.get(f"{url}/things/7", params={"fields": "name"})).json()

    return of_coroutine(HTTPX2, call, THING)


def _send(ours: Any, url: str) -> Contender:
    async def call() -> Any:
        return await _fetched(ours, url)

    return of_coroutine(OURS, call, THING)


async def _fetched(client: Any, url: str) -> Any:
    response = await client.send(Request("GET", url, "/things/7?fields=name"))
    try:
        return msgspec.json.decode(await response.body(LIMIT))
    finally:
        await response.close()


def _first(url: str) -> Contender:
    """A client made, connected, used and closed."""

    async def call() -> Any:
        client = open_client()
        try:
            return await _fetched(client, url)
        finally:
            await client.aclose()

    return of_coroutine(OURS, call, THING)


def _first_of_httpx2(url: str) -> Contender:
    async def call() -> Any:
        async with httpx2.AsyncClient() as client:
            return (await client.get(f"{url}/things/7", params={"fields": "name"})).json()

    return of_coroutine(HTTPX2, call, THING)


# --- the server ---------------------------------------------------------------------------------------------------


def _shop() -> dict[str, Any]:
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "fields", "in": "query", "schema": {"type": "string"}},
    ]
    properties = {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "price": {"type": "number"},
        "in_stock": {"type": "boolean"},
    }
    thing = {"type": "object", "required": ["id"], "properties": properties}
    responses = {"200": {"description": "", "content": {"application/json": {"schema": thing}}}}
    operation = {"operationId": "getThing", "parameters": parameters, "responses": responses}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "paths": {"/things/{id}": {"get": operation}},
    }


@contextmanager
def _server(certificate: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a server in a process of its own, whose work is not ours: plain, and encrypted."""
    command = [sys.executable, "-m", "benchmarks.web", "serve", str(certificate)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        plain, encrypted = process.stdout.readline().decode().split()
        yield plain, encrypted
    finally:
        process.kill()
        process.wait()


async def _serve(certificate: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY)
        while True:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, OSError):
                break
            writer.write(head + REPLY)
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    plain = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    encrypted = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET, ssl=context)
    ports = [server.sockets[0].getsockname()[1] for server in (plain, encrypted)]
    print(f"http://127.0.0.1:{ports[0]} https://127.0.0.1:{ports[1]}", flush=True)
    await asyncio.gather(plain.serve_forever(), encrypted.serve_forever())


def _certificate() -> bytes:
    """A certificate for this machine that vouches for itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).add_extension(here, critical=False)
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + secret


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(Path(sys.argv[2])))
    else:
        sys.exit(main(int(sys.argv[1])))
