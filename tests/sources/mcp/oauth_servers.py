"""An authorization server and a protected MCP server, both of few lines, with the habits that a test gives them."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any, TypeAlias
from urllib.parse import parse_qs, parse_qsl, urlencode

import jwt

Form: TypeAlias = dict[str, str]


class Authority:
    """Gives codes and tokens, counts what it was asked for, and has the habits a test gives it."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.metadata: dict[str, Any] = {}  # over the usual one; None takes a field away
        self.answer: Form = {}  # over the usual answer of the login page
        self.moved: dict[str, str] = {}  # paths that lead elsewhere
        self.raw: dict[str, bytes] = {}  # what stands there instead, by paths
        self.visits = 0
        self.life = 3600.0
        self.rotates = True
        self.complains = ""  # what it says instead of giving a token
        self.complains_without = ""  # only where a form has no such field
        self.forgets = ""  # a client it knows no more
        self.is_busy = False
        self.dawdles = 0.0  # seconds before it gives a token
        self.codes: dict[str, Form] = {}
        self.refreshes: dict[str, str] = {}  # tokens to scopes
        self.tokens: dict[str, str] = {}
        self.registered: list[dict[str, Any]] = []
        self.asked: list[Form] = []  # of the login page
        self.granted: list[Form] = []  # of the token endpoint, with the headers `authorization` and `dpop`

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.visits += 1
        body = (await receive()).get("body", b"")
        query = dict(parse_qsl(scope["query_string"].decode()))
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["path"] in self.moved:
            await reply(send, 307, {}, location=self.moved[scope["path"]])
        elif scope["path"] in self.raw:
            await write(send, 200, self.raw[scope["path"]])
        elif scope["path"] in ("/.well-known/oauth-authorization-server", "/elsewhere"):
            await reply(send, 200, self._described())
        elif scope["path"] == "/register":
            self.registered.append(json.loads(body))
            await reply(send, 201, {"client_id": f"client-{len(self.registered)}"})
        elif scope["path"] == "/authorize":
            await reply(send, 302, {}, location=self._back(query))
        elif scope["path"] == "/token":
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            form |= {"authorization": headers.get("authorization", ""), "dpop": headers.get("dpop", "")}
            await asyncio.sleep(self.dawdles)
            await reply(send, *self._grant(form))
        else:
            await reply(send, 404, {})

    def _described(self) -> dict[str, Any]:
        usual = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }
        return {name: value for name, value in (usual | self.metadata).items() if value is not None}

    def _back(self, query: Form) -> str:
        self.asked.append(query)
        code = f"code-{len(self.asked)}"
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.url} | self.answer
        return f"{query['redirect_uri']}?{urlencode({name: text for name, text in answer.items() if text})}"

    def _grant(self, form: Form) -> tuple[int, dict[str, Any]]:
        if self.is_busy:
            return 503, {}
        self.granted.append(form)
        if form.get("client_id") == self.forgets:
            return 401, {"error": "invalid_client"}
        if self.complains and (not self.complains_without or self.complains_without not in form):
            return 400, {"error": "invalid_client", "error_description": self.complains.format(**form)}
        if form["grant_type"] == "authorization_code":
            return self._redeem(form)
        if form["grant_type"] == "refresh_token":
            scope = self.refreshes.get(form["refresh_token"])
            if self.rotates:
                self.refreshes.pop(form["refresh_token"], None)
            return (400, {"error": "invalid_grant"}) if scope is None else (200, self._tokens(scope))
        return 200, {**self._tokens(form.get("scope", "")), "refresh_token": None}

    def _redeem(self, form: Form) -> tuple[int, dict[str, Any]]:
        asked = self.codes.pop(form["code"], {})
        proof = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        is_right = asked and asked["code_challenge"] == proof.decode() and asked["resource"] == form["resource"]
        is_right = is_right and asked["redirect_uri"] == form["redirect_uri"]
        return (200, self._tokens(asked.get("scope", ""))) if is_right else (400, {"error": "invalid_grant"})

    def _tokens(self, scope: str) -> dict[str, Any]:
        number = len(self.granted)
        kind = "DPoP" if self.granted[-1]["dpop"] else "bearer"
        given = {"access_token": f"access-{number}", "token_type": kind, "expires_in": self.life}
        self.tokens[f"access-{number}"] = scope
        if self.rotates or not self.refreshes:
            self.refreshes[f"refresh-{number}"] = scope
            given["refresh_token"] = f"refresh-{number}"
        return given


class Vault:
    """A protected MCP server of the older era; `write` needs a scope of its own."""

    def __init__(self, authority: Authority, url: str = "") -> None:
        self.authority = authority
        self.url = url
        self.resource = ""  # where it claims to be another
        self.servers: list[str] | None = None  # that it names instead of its authority
        self.wants: Iterator[str] | None = None  # a new scope each time
        self.echoes = "body"  # where it repeats the token
        self.seen: list[str] = []  # the token of each request that was let in
        self.refusals = 0
        self.dawdles = 0.0  # seconds before the next refusal
        self.nonce = ""  # that a proof must have; without one, tokens are not bound to a key
        self.proofs: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith("/.well-known/oauth-protected-resource"):
            usual = [self.authority.url] if self.authority.url else []
            servers = usual if self.servers is None else self.servers
            resource = self.resource or f"{self.url}/mcp"
            await reply(
                send, 200, {"resource": resource, "authorization_servers": servers, "scopes_supported": ["read"]}
            )
        elif scope["method"] == "GET":
            await reply(send, 405, {})
        elif scope["method"] == "DELETE":
            await reply(send, 401, {})
        else:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            await self._take(json.loads((await receive())["body"]), headers, send)

    async def _take(self, message: dict[str, Any], headers: dict[str, str], send: Any) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        scopes = self.authority.tokens.get(token) if scheme == ("DPoP" if self.nonce else "Bearer") else None
        called = message.get("params", {}).get("name")
        if scopes is None:
            self.refusals += 1
            delay, self.dawdles = self.dawdles, 0.0
            await asyncio.sleep(delay)
            wanted = "DPoP" if self.nonce else "Bearer"
            where = f'resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            await reply(send, 401, {}, **{"www-authenticate": f"{wanted} {where}"})
        elif self.nonce and not self._is_proved(headers["dpop"]):
            challenge = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": self.nonce}
            await reply(send, 401, {}, **challenge)
        elif called == "write" and "write" not in scopes.split():
            wanted = f'Bearer error="insufficient_scope", scope="{next(self.wants) if self.wants else "write"}"'
            await reply(send, 403, {}, **{"www-authenticate": wanted})
        elif called == "echo":
            await self._echo(message, token, send)
        else:
            self.seen.append(token)
            await reply(send, 200 if "id" in message else 202, answer(message), **{"mcp-session-id": "1"})

    async def _echo(self, message: dict[str, Any], token: str, send: Any) -> None:
        told: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if self.echoes == "body":
            await reply(send, 500, {"you sent": token})
        elif self.echoes == "kind of body":
            await reply(send, 500, {}, **{"content-type": f"text/{token}"})
        elif self.echoes == "error":
            await reply(send, 200, {**told, "error": {"code": -32000, "message": f"no {token}", "data": [token]}})
        elif self.echoes == "result":
            await reply(send, 200, {**told, "result": {"content": [{"type": "text", "text": token}]}})
        elif self.echoes in ("escapes", "some escapes", "escapes in a text"):
            escaped = "".join(f"\\u{ord(each):04X}" for each in token[: 1 if "some" in self.echoes else None])
            escaped += token[1:] if "some" in self.echoes else ""
            shown = json.dumps(f'{{"sent": "{escaped}"}}') if "text" in self.echoes else f'"{escaped}"'
            content = '{"content": [{"type": "text", "text": %s}]}' % shown
            whole = '{"jsonrpc": "2.0", "id": %d, "result": %s}' % (message["id"], content)
            await write(send, 200, whole.encode(), **{"content-type": "application/json"})
        else:
            result = {**told, "result": {"content": [{"type": "text", "text": token}]}}
            await write(send, 200, f"data: {json.dumps(result)}\n\n".encode(), **{"content-type": "text/event-stream"})

    def _is_proved(self, proof: str) -> bool:
        public: Any = jwt.PyJWK(jwt.get_unverified_header(proof)["jwk"]).key
        self.proofs.append(jwt.decode(proof, public, algorithms=["ES256"]))
        return self.proofs[-1].get("nonce") == self.nonce


def answer(message: dict[str, Any]) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write", "echo")]
    results: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "vault"}},
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    found = results.get(message["method"])
    rest = {"error": {"code": -32601, "message": "no such method"}} if found is None else {"result": found}
    return {"jsonrpc": "2.0", "id": message.get("id"), **rest}


async def reply(send: Any, status: int, value: Any, **headers: str) -> None:
    await write(send, status, json.dumps(value).encode(), **headers)


async def write(send: Any, status: int, body: bytes, **headers: str) -> None:
    named = {"content-type": "application/json", **headers}
    pairs = [(name.encode(), text.encode()) for name, text in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
