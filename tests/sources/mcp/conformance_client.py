"""The client that the MCP conformance suite drives: one scenario for each run, named by the environment.

`node …/conformance/dist/index.js client --command "python tests/sources/mcp/conformance_client.py" --scenario tools_call`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from enfold import Context, OperationRegistry, OperationSpec
from enfold.sources.mcp import Connection, from_mcp
from enfold.sources.mcp.oauth import AssertionLogin, Auth, ClientCredentials, EnterpriseLogin, UserLogin

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
# What each tool of the fixed scenarios is called with.
ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


async def main(url: str) -> None:
    protocol = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "auto")
    answers = {"elicitation/create": accept, "sampling/createMessage": sample, "roots/list": roots}
    async with from_mcp(url, connection=Connection(answers=answers, protocol=protocol), auth=login()) as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        await PLAYS.get(SCENARIO, call_everything)(ops)


def login() -> Auth:
    """The credentials that the scenario gives its client; otherwise a user whose browser follows every redirect."""
    client = {name: CONTEXT[name] for name in ("client_id", "client_secret", "issuer") if name in CONTEXT}
    if "private_key_pem" in CONTEXT:
        key, algorithm = CONTEXT["private_key_pem"], CONTEXT["signing_algorithm"]
        return ClientCredentials(**client, private_key=key, algorithm=algorithm)
    if "client-credentials" in SCENARIO:
        return ClientCredentials(**client)
    if "valid_jwt" in CONTEXT:
        return AssertionLogin(**client, assertion=CONTEXT["valid_jwt"])
    if "idp_id_token" in CONTEXT:
        return EnterpriseLogin(
            **client,
            identity_token=CONTEXT["idp_id_token"],
            provider_token_url=CONTEXT["idp_token_endpoint"],
            provider_client_id=CONTEXT["idp_client_id"],
        )
    document = "https://conformance-test.local/client-metadata.json"
    return UserLogin(**client, client_metadata_url=document, open_url=follow)


async def follow(url: str) -> None:
    """Go where the login page leads, which is back to us."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        await browser.get(url)


async def accept(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"action": "accept", "content": {"confirmed": True} if "defaults" not in SCENARIO else {}}


async def sample(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"role": "assistant", "content": {"type": "text", "text": "Yes."}, "model": "none", "stopReason": "endTurn"}


async def roots(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"roots": []}


async def call_everything(ops: OperationRegistry) -> None:
    for spec in ops.list():
        if spec.meta["mcp"]["kind"] != "completion":
            await ops.execute(spec.id, ARGUMENTS.get(spec.name) or arguments(spec))


async def only_list(ops: OperationRegistry) -> None:
    assert [spec.input_schema for spec in ops.list()]


async def replay(ops: OperationRegistry) -> None:
    for call in CONTEXT.get("toolCalls", []):
        if call["name"] in ops:
            given = {name: value for name, value in call["arguments"].items() if value is not None}
            await ops.execute(call["name"], given)


async def echo_schema(ops: OperationRegistry) -> None:
    schema = ops.get_spec("json_schema_2020_12_tool").input_schema
    await ops.execute("json_schema_echo", {"schema": schema})


def arguments(spec: OperationSpec) -> dict[str, Any]:
    """Something of the right type for every argument that has a plain one."""
    parts = spec.input_schema.get("properties", {}).items()
    return {name: VALUES[part.get("type")] for name, part in parts if part.get("type") in VALUES}


VALUES: dict[Any, Any] = {"string": "value", "integer": 1, "number": 1.5, "boolean": True}

PLAYS: dict[str, Callable[[OperationRegistry], Awaitable[None]]] = {
    "http-custom-headers": replay,
    "json-schema-ref-no-deref": only_list,
    "json-schema-2020-12-preservation": echo_schema,
}

if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
