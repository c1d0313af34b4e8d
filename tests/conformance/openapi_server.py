"""Serves the operations of an OpenAPI document over stdio: what the TypeScript clients list."""

from __future__ import annotations

import sys

from enfold import OperationRegistry
from enfold.sources.openapi import from_openapi
from enfold.surfaces.mcp import serve_stdio

if __name__ == "__main__":
    ops = OperationRegistry()
    ops.register_all(from_openapi(sys.argv[1], base_url="http://127.0.0.1:9"))
    serve_stdio(ops)
