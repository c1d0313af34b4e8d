"""An application with the types that users really write, for client generators; it is never called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
from pydantic import BaseModel, Field

from enfold import OperationRegistry

ops = OperationRegistry("library")

Item = TypeVar("Item")


class Kind(Enum):
    paper = "paper"
    ebook = "ebook"


@dataclass
class Author:
    name: str
    born: datetime | None = None


@dataclass
class Book:
    id: UUID
    title: str
    author: Author
    kind: Kind = Kind.paper
    tags: list[str] = field(default_factory=list)


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next: str | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


class Owner(BaseModel):
    name: str
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Movie(TypedDict):
    title: str
    year: int


@ops.query
def book(id: UUID) -> Book: ...  # type: ignore[empty-body]


@ops.query
def books(author: str | None = None, kind: Kind | None = None) -> list[Book]: ...  # type: ignore[empty-body]


@ops.query
def author(name: str) -> Author: ...  # type: ignore[empty-body]


@ops.mutation
def add_author(author: Author) -> Author: ...  # type: ignore[empty-body]


@ops.query
def page(number: int) -> Page[int]: ...  # type: ignore[empty-body]


@ops.query
def owners() -> Page[Owner]: ...  # type: ignore[empty-body]


@ops.mutation
def put_owner(owner: Owner, tag: str = "") -> Owner | None: ...


@ops.query
def either(x: int) -> int | str: ...  # type: ignore[empty-body]


@ops.query
def pet(name: str) -> Cat | Dog: ...  # type: ignore[empty-body]


@ops.query
def point(near: Point) -> tuple[Point, int]: ...  # type: ignore[empty-body]


@ops.query
def tree() -> Node: ...  # type: ignore[empty-body]


@ops.query
def movies() -> dict[str, Movie]: ...  # type: ignore[empty-body]


@ops.mutation
def nothing() -> None: ...


@ops.mutation
def raw(data: bytes) -> bytes: ...  # type: ignore[empty-body]


@ops.subscription
async def points(number: int) -> AsyncIterator[Point]:
    for x in range(number):
        yield Point(x)


def _another_author() -> None:
    @dataclass
    class Author:
        """Of the same name, and not the same."""

        initials: str

    def writer(name: str) -> Author: ...  # type: ignore[empty-body]

    writer.__annotations__ = {"name": str, "return": Author}
    ops.query(writer)


_another_author()
