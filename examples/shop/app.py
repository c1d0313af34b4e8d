"""A small shop: queries, mutations, a resumable subscription, and access rules. `make demo` serves it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta

from enfold import CallError, Context, OperationRegistry

ops = OperationRegistry("shop")

Quantity = Annotated[int, Meta(ge=1, le=100)]


@dataclass
class Item:
    """Something the shop sells."""

    id: str
    name: str
    price: float
    stock: int
    tags: list[str] = field(default_factory=list)


@dataclass
class Order:
    """An order."""

    id: int
    item: str
    quantity: int
    total: float
    placed: datetime
    by: str


@dataclass
class Event:
    """Something that happened in the shop."""

    number: int
    kind: Literal["ordered", "restocked"]
    item: str
    quantity: int


class Shop:
    """The state of the shop, kept in memory."""

    def __init__(self) -> None:
        self.items = {
            item.id: item
            for item in (
                Item("tea", "Green tea", 3.5, 40, ["drink", "hot"]),
                Item("cake", "Plum cake", 4.0, 12, ["food"]),
                Item("mug", "Blue mug", 9.9, 7),
            )
        }
        self.orders: list[Order] = []
        self.events: list[Event] = []
        self.happened = asyncio.Event()

    def tell(self, kind: Literal["ordered", "restocked"], item: str, quantity: int) -> None:
        self.events.append(Event(len(self.events) + 1, kind, item, quantity))
        # Wake everyone who is waiting; later subscribers wait for the next event.
        self.happened.set()
        self.happened = asyncio.Event()

    def find(self, item: str) -> Item:
        if item not in self.items:
            raise CallError("NO_SUCH_ITEM", f"The shop has no {item}", {"item": item})
        return self.items[item]


shop = Shop()

NO_SUCH_ITEM = {"code": "NO_SUCH_ITEM", "description": "The shop does not sell it", "http_status": 404}
SOLD_OUT = {"code": "SOLD_OUT", "description": "There are not enough left", "http_status": 409}


@ops.query(access={"public": True})
async def items(tag: str | None = None) -> list[Item]:
    """List what the shop sells.

    Args:
        tag: Only items with this tag.
    """
    return [item for item in shop.items.values() if tag is None or tag in item.tags]


@ops.query(access={"public": True}, error_schemas=[NO_SUCH_ITEM])
async def price(item: str, quantity: Quantity = 1) -> float:
    """Calculate the price of a number of items.

    Args:
        item: The id of an item.
        quantity: How many.
    """
    return shop.find(item).price * quantity


@ops.query(access={"public": True})
def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: First addend.
        y: Second addend.
    """
    return x + y


@ops.mutation(access={"required_scopes": ["shop:order"]}, error_schemas=[NO_SUCH_ITEM, SOLD_OUT])
async def order(item: str, context: Context, quantity: Quantity = 1) -> Order:
    """Order something.

    Args:
        item: The id of an item.
        quantity: How many.
    """
    wanted = shop.find(item)
    if wanted.stock < quantity:
        raise CallError("SOLD_OUT", f"There are {wanted.stock} of {item} left", {"left": wanted.stock})
    total = (await context.env.shop.price({"item": item, "quantity": quantity})).data
    wanted.stock -= quantity
    by = context.identity.id if context.identity else "anonymous"
    placed = Order(len(shop.orders) + 1, item, quantity, total, datetime.now(UTC), by)
    shop.orders.append(placed)
    shop.tell("ordered", item, quantity)
    return placed


@ops.mutation(access={"required_scopes": ["shop:admin"]}, idempotent=False, error_schemas=[NO_SUCH_ITEM])
async def restock(item: str, quantity: Quantity) -> Item:
    """Add to the stock of an item.

    Args:
        item: The id of an item.
        quantity: How many.
    """
    found = shop.find(item)
    found.stock += quantity
    shop.tell("restocked", item, quantity)
    return found


@ops.query(access={"required_scopes_any": ["shop:order", "shop:admin"]})
async def orders() -> list[Order]:
    """List the orders."""
    return shop.orders


@ops.subscription(access={"public": True}, resumable=True)
async def events(context: Context, limit: Annotated[int, Meta(ge=1, le=1000)] | None = None) -> AsyncIterator[Event]:
    """Follow the events of the shop, from the first one or after the last one received.

    Args:
        limit: Stop after this many events. By default the stream does not end.
    """
    given = context.last_event_id or "0"
    seen = int(given) if given.isdecimal() else 0
    sent = 0
    while limit is None or sent < limit:
        happened = shop.happened
        while seen < len(shop.events) and (limit is None or sent < limit):
            event = shop.events[seen]
            seen, sent = seen + 1, sent + 1
            context.event_id = str(event.number)
            yield event
        if limit is None or sent < limit:
            await happened.wait()


if __name__ == "__main__":
    ops.run()
