"""The contenders of the HTTP comparisons: each framework as its own documentation would have it, and a floor without any.

`OPEN` apps need no token; `GUARDED` ones require a bearer token with a scope, and return the request id.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter, create_model

from benchmarks import work

FLOOR: Final = "bare ASGI, msgspec"
ENFOLD: Final = "enfold"
STARLETTE: Final = "Starlette, no validation"
FASTAPI: Final = "FastAPI"
LITESTAR: Final = "Litestar"

TOKEN: Final = "a-token-of-the-benchmark"  # noqa: S105  # it opens nothing
SCOPE: Final = "math:add"
REQUEST_ID: Final = "benchmark-000001"
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}", "X-Request-Id": REQUEST_ID}

# What each server keeps of the token, as one would.
SCOPES: Final = {hashlib.sha256(TOKEN.encode()).digest(): frozenset({SCOPE})}

F = TypeVar("F", bound=Callable[..., Any])


# --- the work -----------------------------------------------------------------------------------------------------


@dataclass
class Row:
    id: int
    name: str
    price: float
    tags: list[str]


class RowModel(BaseModel):
    id: int
    name: str
    price: float
    tags: list[str]


class LimitStruct(msgspec.Struct):
    limit: int


PLAIN_ROWS: Final = [
    {"id": number, "name": "A thing of some name", "price": number + 0.25, "tags": ["new", "blue"]}
    for number in range(50)
]
ROWS: Final = msgspec.convert(PLAIN_ROWS, list[Row])
MODELS: Final = TypeAdapter(list[RowModel]).validate_python(PLAIN_ROWS)


async def rows(limit: int) -> list[Row]:
    return ROWS[:limit]


async def models(limit: int) -> list[RowModel]:
    return MODELS[:limit]


class Task(msgspec.Struct, frozen=True):
    """An operation in every form a contender needs."""

    handler: Callable[..., Any]
    arguments: dict[str, Any]
    answer: Any
    input_struct: type[msgspec.Struct]
    write: Callable[[Any], bytes]  # the floor's way from a result to the text of an answer


def _checked(type: Any) -> Callable[[Any], bytes]:
    encode, convert = msgspec.json.Encoder().encode, msgspec.convert
    return lambda result: encode({"result": convert(result, type)})


def _write_models(result: list[RowModel]) -> bytes:
    return b'{"result":' + _MODELS.dump_json(result) + b"}"


_MODELS: Final = TypeAdapter(list[RowModel])
_LIMIT: Final = {"limit": 50}

TASKS: Final = {
    "add": Task(work.add, work.ADD_INPUT, work.ADD_ANSWER, work.AddInputStruct, _checked(work.SumStruct)),
    "mid": Task(work.mid, work.MID_INPUT, work.MID_ANSWER, work.MidInputStruct, _checked(work.InvoicesStruct)),
    "add_sync": Task(work.add_sync, work.ADD_INPUT, work.ADD_ANSWER, work.AddInputStruct, _checked(work.SumStruct)),
    "rows": Task(rows, _LIMIT, PLAIN_ROWS, LimitStruct, lambda result: msgspec.json.encode({"result": result})),
    "models": Task(models, _LIMIT, PLAIN_ROWS, LimitStruct, _write_models),
}


# --- the floor ----------------------------------------------------------------------------------------------------


def _floor(*, guarded: bool = False) -> Any:
    """The least that keeps the promise: read, check the input, run, check the result, write."""
    calls = {f"/{name}": _floor_call(task) for name, task in TASKS.items()}

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        own = _admit(dict(scope["headers"])) if guarded else []
        answer = await calls[scope["path"]](await _body(receive))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode()), *own]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def _admit(headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Let a caller with the right scope in; the request's id, to be sent back."""
    if not _may_add(headers[b"authorization"].decode()):
        raise PermissionError
    return [(b"x-request-id", headers[b"x-request-id"])]


def _may_add(authorization: str) -> bool:
    token = authorization.partition(" ")[2]
    return SCOPE in SCOPES.get(hashlib.sha256(token.encode()).digest(), ())


async def _body(receive: Any) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    return body


def _floor_call(task: Task) -> Callable[[bytes], Awaitable[bytes]]:
    handler, write = task.handler, task.write
    read, as_dict = msgspec.json.Decoder(task.input_struct).decode, msgspec.structs.asdict

    async def call(body: bytes) -> bytes:
        return write(await handler(**as_dict(read(body))))

    async def call_in_thread(body: bytes) -> bytes:
        arguments = as_dict(read(body))
        return write(await asyncio.get_running_loop().run_in_executor(None, lambda: handler(**arguments)))

    return call if inspect.iscoroutinefunction(handler) else call_in_thread


async def _lifespan(receive: Any, send: Any) -> None:
    for _ in range(2):
        await send({"type": f"{(await receive())['type']}.complete"})


# --- frameworks ---------------------------------------------------------------------------------------------------


def _enfold() -> Any:
    from enfold import OperationRegistry
    from enfold.surfaces.http import to_http

    ops = OperationRegistry()
    for name, task in TASKS.items():
        ops.query(name=name)(task.handler)
    return to_http(ops)


def _enfold_guarded() -> Any:
    from enfold import Identity, OperationRegistry
    from enfold.auth.tokens import Tokens
    from enfold.surfaces.http import to_http

    ops = OperationRegistry()
    ops.query(access={"required_scopes": [SCOPE]})(work.add)
    return to_http(ops, tokens=Tokens({TOKEN: Identity("ann", frozenset({SCOPE}))}))


def _starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def endpoint(handler: Callable[..., Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> JSONResponse:
            return JSONResponse(await handler(**await request.json()))

        return answer

    return Starlette(routes=[Route(f"/{name}", endpoint(TASKS[name].handler), methods=["POST"]) for name in _ANY])


_ANY: Final = ("add", "mid")  # what can be written without knowing its type


# By name, here and below: the type checker works in the project's own environment, where these packages are not.


def _fastapi() -> Any:
    app = import_module("fastapi").FastAPI()
    for name, task in TASKS.items():
        endpoint = _endpoint(task.handler)
        app.post(f"/{name}")(_typed(endpoint, body=_body_model(task), **{"return": _returned(task)}))
    return app


def _endpoint(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def wait(body: Any) -> Any:
        return await handler(**body.__dict__)

    def run(body: Any) -> Any:
        return handler(**body.__dict__)

    return wait if inspect.iscoroutinefunction(handler) else run


def _body_model(task: Task) -> Any:
    fields: dict[str, Any] = {
        name: (each.annotation, ... if each.default is each.empty else each.default)
        for name, each in inspect.signature(task.handler, eval_str=True).parameters.items()
    }
    return create_model("Body", **fields)


def _returned(task: Task) -> Any:
    return inspect.signature(task.handler, eval_str=True).return_annotation


def _typed(function: F, **types: Any) -> F:
    """The function with types that are known only here, where the frameworks look for them."""
    function.__annotations__ = types
    return function


def _fastapi_guarded() -> Any:
    fastapi: Any = import_module("fastapi")
    security: Any = import_module("fastapi.security")

    async def admit(wanted: Any, given: Any) -> None:
        if not _may_add(f"Bearer {given.credentials}") or SCOPE not in wanted.scopes:
            raise fastapi.HTTPException(403)

    bearer: Any = security.HTTPAuthorizationCredentials
    _typed(admit, wanted=security.SecurityScopes, given=Annotated[bearer, fastapi.Depends(security.HTTPBearer())])

    async def endpoint(body: Any, response: Any, x_request_id: Any, caller: Any) -> Any:
        del caller
        response.headers["X-Request-Id"] = x_request_id
        return await work.add(body.x, body.y)

    app = fastapi.FastAPI()
    types = {
        "body": _body_model(TASKS["add"]),
        "response": fastapi.Response,
        "x_request_id": Annotated[str, fastapi.Header()],
        "caller": Annotated[None, fastapi.Security(admit, scopes=[SCOPE])],
        "return": work.Sum,
    }
    app.post("/add")(_typed(endpoint, **types))
    return app


def _litestar() -> Any:
    litestar = import_module("litestar")

    def route(name: str, task: Task) -> Any:
        endpoint = _typed(_data_endpoint(task.handler), data=task.input_struct, **{"return": _returned(task)})
        is_sync = not inspect.iscoroutinefunction(task.handler)
        return litestar.post(f"/{name}", status_code=200, **({"sync_to_thread": True} if is_sync else {}))(endpoint)

    return litestar.Litestar([route(name, task) for name, task in TASKS.items()])


def _data_endpoint(handler: Callable[..., Any]) -> Callable[..., Any]:
    as_dict = msgspec.structs.asdict

    async def wait(data: Any) -> Any:
        return await handler(**as_dict(data))

    def run(data: Any) -> Any:
        return handler(**as_dict(data))

    return wait if inspect.iscoroutinefunction(handler) else run


def _litestar_guarded() -> Any:
    litestar: Any = import_module("litestar")
    middleware: Any = import_module("litestar.middleware")
    parameters: Any = import_module("litestar.params")
    base: Any = middleware.AbstractAuthenticationMiddleware

    class Authentication(base):  # type: ignore[misc]  # known by name only
        async def authenticate_request(self, connection: Any) -> Any:
            is_right = _may_add(connection.headers["Authorization"])
            return middleware.AuthenticationResult(user="ann", auth={SCOPE} if is_right else set())

    def guard(connection: Any, handler: Any) -> None:
        del handler
        if SCOPE not in connection.auth:
            raise PermissionError

    async def endpoint(data: Any, request_id: Any) -> Any:
        return litestar.Response(await work.add(data.x, data.y), headers={"X-Request-Id": request_id})

    types = {
        "data": work.AddInputStruct,
        "request_id": Annotated[str, parameters.Parameter(header="X-Request-Id")],
        "return": litestar.Response[work.Sum],
    }
    route = litestar.post("/add", status_code=200, guards=[guard])(_typed(endpoint, **types))
    return litestar.Litestar([route], middleware=[Authentication])


OPEN: Final[dict[str, Callable[[], Any]]] = {
    FLOOR: _floor,
    ENFOLD: _enfold,
    STARLETTE: _starlette,
    FASTAPI: _fastapi,
    LITESTAR: _litestar,
}
GUARDED: Final[dict[str, Callable[[], Any]]] = {
    FLOOR: lambda: _floor(guarded=True),
    ENFOLD: _enfold_guarded,
    FASTAPI: _fastapi_guarded,
    LITESTAR: _litestar_guarded,
}
