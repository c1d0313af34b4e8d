"""A lending library with ten operations, in Enfold: `uvicorn enfold_app:app`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated

from enfold import App, CallError, Context, Depends, Identity, OperationRegistry, Tokens

ops = OperationRegistry("library")


@dataclass
class Book:
    id: int
    title: str
    author: str
    lent_to: str | None = None


def get_database() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("create table books (id integer primary key, title text, author text, lent_to text)")
    yield database
    database.close()


def transaction(
    database: Annotated[sqlite3.Connection, Depends(get_database, scope="app")],
) -> Iterator[sqlite3.Connection]:
    with database:
        yield database


Database = Annotated[sqlite3.Connection, Depends(transaction)]
KEEPER = {"required_scopes": ["books:write"]}
LENT = {"code": "LENT", "description": "The book is not there", "http_status": 409}
MISSING = {"code": "MISSING", "description": "There is no such book", "http_status": 404}


@ops.query(http="GET /books")
def find_books(database: Database, q: str = "", author: list[str] | None = None, limit: int = 10) -> list[Book]:
    """Find books by words of their title, and by authors."""
    rows = database.execute("select * from books where title like ? order by id", (f"%{q}%",))
    return [book for book in (Book(*row) for row in rows) if not author or book.author in author][:limit]


@ops.query(http="GET /books/{id}", error_schemas=[MISSING])
def get_book(id: int, database: Database) -> Book:
    """One book."""
    row = database.execute("select * from books where id = ?", (id,)).fetchone()
    if row is None:
        raise CallError("MISSING", f"There is no book {id}")
    return Book(*row)


@ops.mutation(http="POST /books", access=KEEPER)
def add_book(title: str, author: str, database: Database) -> Book:
    """Add a book."""
    added = database.execute("insert into books (title, author) values (?, ?)", (title, author))
    return Book(added.lastrowid or 0, title, author)


@ops.mutation(http="PATCH /books/{id}", access=KEEPER, error_schemas=[MISSING])
def rename_book(id: int, title: str, database: Database) -> Book:
    """Correct the title of a book."""
    database.execute("update books set title = ? where id = ?", (title, id))
    return get_book(id, database)


@ops.mutation(http="DELETE /books/{id}", access=KEEPER, error_schemas=[MISSING])
def remove_book(id: int, database: Database) -> Book:
    """Remove a book."""
    book = get_book(id, database)
    database.execute("delete from books where id = ?", (id,))
    return book


@ops.mutation(http="POST /books/{id}/loan", error_schemas=[MISSING, LENT])
def lend_book(id: int, database: Database, context: Context) -> Book:
    """Borrow a book."""
    book, caller = get_book(id, database), name_of(context)
    if book.lent_to is not None:
        raise CallError("LENT", f"{book.title} is lent to {book.lent_to}")
    database.execute("update books set lent_to = ? where id = ?", (caller, id))
    return get_book(id, database)


@ops.mutation(http="DELETE /books/{id}/loan", error_schemas=[MISSING])
def return_book(id: int, database: Database) -> Book:
    """Bring a book back."""
    database.execute("update books set lent_to = null where id = ?", (id,))
    return get_book(id, database)


@ops.query(http="GET /loans")
def my_loans(database: Database, context: Context) -> list[Book]:
    """The books that the caller has."""
    rows = database.execute("select * from books where lent_to = ? order by id", (name_of(context),))
    return [Book(*row) for row in rows]


@ops.query(http="GET /statistics")
def statistics(database: Database) -> dict[str, int]:
    """How many books there are, and how many are lent."""
    books, lent = database.execute("select count(*), count(lent_to) from books").fetchone()
    return {"books": books, "lent": lent}


@ops.subscription(http="GET /countdown/{seconds}")
async def countdown(seconds: int) -> AsyncIterator[int]:
    """The seconds until the library closes."""
    for left in range(seconds, 0, -1):
        yield left
        await asyncio.sleep(0.01)


def name_of(context: Context) -> str:
    return context.identity.id if context.identity else ""


tokens = Tokens({"token-of-ann": Identity("ann", frozenset({"books:write"})), "token-of-bob": Identity("bob")})
app = App(ops, tokens=tokens).http()
