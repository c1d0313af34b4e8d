"""Ten operations as an application has them: models that several of them share, lists, pages, and a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Literal, TypeAlias, TypedDict

from pydantic import BaseModel

from enfold import OperationRegistry

ops = OperationRegistry("desk")

State: TypeAlias = Literal["open", "paid", "sent"]


@dataclass
class Customer:
    id: int
    name: str
    email: str | None = None


class Page(TypedDict):
    items: list[Customer]
    next: str | None


class Line(BaseModel):
    sku: str
    amount: int = 1


class Order(BaseModel):
    id: int
    customer: int
    lines: list[Line]
    state: State = "open"


@ops.query
def find_customers(text: str, limit: int = 10) -> list[Customer]:
    """Find customers by a part of their name."""
    return [Customer(1, text)][:limit]


@ops.query
def customer(id: int) -> Customer:
    return Customer(id, "Ann")


@ops.query
def customers(cursor: str | None = None) -> Page:
    return {"items": [Customer(1, "Ann")], "next": cursor}


@ops.mutation
def add_customer(customer: Customer) -> Customer:
    return customer


@ops.query
def order(id: int) -> Order:
    return Order(id=id, customer=1, lines=[])


@ops.query
def orders(state: State = "open", since: date | None = None) -> list[Order]:
    return [Order(id=1, customer=1 if since is None else 2, lines=[], state=state)]


@ops.mutation
def place_order(customer: int, lines: list[Line]) -> Order:
    return Order(id=1, customer=customer, lines=lines)


@ops.mutation
def pay(order: int, amount: float) -> bool:
    return order > 0 and amount > 0


@ops.query
def count() -> int:
    return 1


@ops.subscription
async def changes(since: int = 0) -> AsyncIterator[Order]:
    yield Order(id=since, customer=1, lines=[])
