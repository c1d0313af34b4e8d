"""The same lending library in FastAPI and FastMCP: `uvicorn fastapi_app:app`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from fastmcp.server.providers.openapi import MCPType, RouteMap
from httpx2 import ASGITransport, AsyncClient
from httpx2 import Request as ClientRequest
from pydantic import BaseModel


class Book(BaseModel):
    id: int
    title: str
    author: str
    lent_to: str | None = None


class NewBook(BaseModel):
    title: str
    author: str


class NewTitle(BaseModel):
    title: str


class User(BaseModel):
    name: str
    scopes: list[str]


class Error(BaseModel):
    detail: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("create table books (id integer primary key, title text, author text, lent_to text)")
    app.state.database = database
    async with mcp_app.lifespan(app):
        yield
    database.close()


def transaction(request: Request) -> Iterator[sqlite3.Connection]:
    database: sqlite3.Connection = request.app.state.database
    with database:
        yield database


USERS = {
    "token-of-ann": User(name="ann", scopes=["books:write"]),
    "token-of-bob": User(name="bob", scopes=[]),
}
bearer = HTTPBearer()


def current_user(needed: SecurityScopes, credentials: Annotated[HTTPAuthorizationCredentials, Depends(bearer)]) -> User:
    user = USERS.get(credentials.credentials)
    if user is None:
        raise HTTPException(401, "The token is not valid", {"WWW-Authenticate": "Bearer"})
    if not set(needed.scopes) <= set(user.scopes):
        raise HTTPException(403, f"{user.name} may not do this")
    return user


Database = Annotated[sqlite3.Connection, Depends(transaction)]
Caller = Annotated[User, Security(current_user)]
KEEPER = [Security(current_user, scopes=["books:write"])]
LENT: dict[int | str, Any] = {409: {"model": Error, "description": "The book is not there"}}
MISSING: dict[int | str, Any] = {404: {"model": Error, "description": "There is no such book"}}

app = FastAPI(title="library", lifespan=lifespan, dependencies=[Security(current_user)])


@app.get("/books", operation_id="find_books")
def find_books(
    database: Database, q: str = "", author: Annotated[list[str] | None, Query()] = None, limit: int = 10
) -> list[Book]:
    """Find books by words of their title, and by authors."""
    rows = database.execute("select * from books where title like ? order by id", (f"%{q}%",))
    return [book for book in map(read_book, rows) if not author or book.author in author][:limit]


@app.get("/books/{id}", operation_id="get_book", responses=MISSING)
def get_book(id: int, database: Database) -> Book:
    """One book."""
    row = database.execute("select * from books where id = ?", (id,)).fetchone()
    if row is None:
        raise HTTPException(404, f"There is no book {id}")
    return read_book(row)


@app.post("/books", operation_id="add_book", dependencies=KEEPER)
def add_book(new: NewBook, database: Database) -> Book:
    """Add a book."""
    added = database.execute("insert into books (title, author) values (?, ?)", (new.title, new.author))
    return Book(id=added.lastrowid or 0, title=new.title, author=new.author)


@app.patch("/books/{id}", operation_id="rename_book", dependencies=KEEPER, responses=MISSING)
def rename_book(id: int, new: NewTitle, database: Database) -> Book:
    """Correct the title of a book."""
    database.execute("update books set title = ? where id = ?", (new.title, id))
    return get_book(id, database)


@app.delete("/books/{id}", operation_id="remove_book", dependencies=KEEPER, responses=MISSING)
def remove_book(id: int, database: Database) -> Book:
    """Remove a book."""
    book = get_book(id, database)
    database.execute("delete from books where id = ?", (id,))
    return book


@app.post("/books/{id}/loan", operation_id="lend_book", responses=MISSING | LENT)
def lend_book(id: int, database: Database, caller: Caller) -> Book:
    """Borrow a book."""
    book = get_book(id, database)
    if book.lent_to is not None:
        raise HTTPException(409, f"{book.title} is lent to {book.lent_to}")
    database.execute("update books set lent_to = ? where id = ?", (caller.name, id))
    return get_book(id, database)


@app.delete("/books/{id}/loan", operation_id="return_book", responses=MISSING)
def return_book(id: int, database: Database) -> Book:
    """Bring a book back."""
    database.execute("update books set lent_to = null where id = ?", (id,))
    return get_book(id, database)


@app.get("/loans", operation_id="my_loans")
def my_loans(database: Database, caller: Caller) -> list[Book]:
    """The books that the caller has."""
    rows = database.execute("select * from books where lent_to = ? order by id", (caller.name,))
    return [read_book(row) for row in rows]


@app.get("/statistics", operation_id="statistics")
def statistics(database: Database) -> dict[str, int]:
    """How many books there are, and how many are lent."""
    books, lent = database.execute("select count(*), count(lent_to) from books").fetchone()
    return {"books": books, "lent": lent}


@app.get("/countdown/{seconds}", operation_id="countdown")
async def countdown(seconds: int) -> StreamingResponse:
    """The seconds until the library closes."""

    async def events() -> AsyncIterator[str]:
        for left in range(seconds, 0, -1):
            yield f"data: {left}\n\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(events(), media_type="text/event-stream")


def read_book(row: tuple[int, str, str, str | None]) -> Book:
    return Book(id=row[0], title=row[1], author=row[2], lent_to=row[3])


async def pass_token_on(request: ClientRequest) -> None:
    """Call the API as the caller of the tool; without this, tools would call it without a token."""
    token = get_http_headers(include_all=True).get("authorization")
    if token is not None:
        request.headers["authorization"] = token


mcp = FastMCP.from_openapi(
    app.openapi(),
    AsyncClient(transport=ASGITransport(app=app), base_url="http://app", event_hooks={"request": [pass_token_on]}),
    name="library",
    route_maps=[RouteMap(pattern=r"^/countdown/", mcp_type=MCPType.EXCLUDE)],
)
mcp_app = mcp.http_app(path="/")
app.mount("/mcp", mcp_app)
