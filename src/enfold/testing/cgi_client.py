"""The client of `to_cgi`: each call has an environment, a stdin and a stdout of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from io import BytesIO
from typing import Any

import msgspec

from enfold.operation import Identity
from enfold.registry import Registry
from enfold.surfaces.cgi import to_cgi
from enfold.testing.asgi_client import ids_in
from enfold.testing.replies import CallRequest, Reply, SurfaceClient, read_answer


@asynccontextmanager
async def cgi(registry: Registry, **options: Any) -> AsyncIterator[CGIClient]:
    """The CGI program, run in a thread with a loop of its own; `options` are those of `to_cgi`."""
    yield CGIClient(registry, options)


class CGIClient(SurfaceClient):
    """Runs a CGI program once for each call."""

    def __init__(self, registry: Registry, options: dict[str, Any]) -> None:
        self._registry = registry
        self._options = options

    async def _call(self, request: CallRequest) -> Reply:
        chosen = request.chosen_format
        variables = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "HTTP_ENFOLD_FORMAT": chosen.name}
        answer = await self.request(
            f"/functions/{request.operation}",
            msgspec.json.encode(request.input),
            identity=request.identity,
            **variables,
        )
        return read_answer(*answer, chosen)

    async def list(self, *, identity: Identity | None = None) -> Sequence[str]:
        _, _, document = await self.request("/openapi.json", identity=identity, REQUEST_METHOD="GET")
        return ids_in(document)

    async def request(
        self, path: str, body: bytes = b"", *, identity: Identity | None = None, **variables: str
    ) -> tuple[int, dict[str, str], Any]:
        """The status, the headers and the JSON of any request; `variables` are those of its environment."""
        environ = {"PATH_INFO": path, "CONTENT_LENGTH": str(len(body)), **variables}
        if identity is not None:
            environ["REMOTE_USER"] = identity.id
        return _read(await self.run(environ, body, identity))

    async def run(self, environ: dict[str, str], body: bytes, identity: Identity | None, /) -> bytes:
        """What the program writes to stdout."""
        out = BytesIO()
        program = partial(to_cgi, environ=environ, stdin=BytesIO(body), stdout=out, **self._options)
        await asyncio.to_thread(program, self._registry, identify=lambda _: identity)
        return out.getvalue()


def _read(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, text = answer.partition(b"\r\n\r\n")
    lines = [line.partition(": ") for line in head.decode("latin-1").split("\r\n")]
    headers = {name.lower(): value for name, _, value in lines}
    return int(headers["status"].split()[0]), headers, json.loads(text)
