"""The work of the comparisons: two operations and one object, with their types and schemas for every contender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from typing_extensions import TypedDict

# --- operations ---------------------------------------------------------------------------------------------------

ADD_INPUT: Final = {"x": 20, "y": 22}
ADD_ANSWER: Final = {"sum": 42}

MID_INPUT: Final = {
    "customer_id": 918_273,
    "query": "open invoices",
    "region": "eu-west",
    "limit": 50,
    "offset": 0,
    "min_amount": 12.5,
    "include_closed": False,
    "tags": ["a", "b", "c"],
    "sort": "asc",
    "cursor": None,
}


class Sum(TypedDict):
    sum: int


class Invoice(TypedDict):
    id: int
    name: str
    email: str
    active: bool
    score: float
    created: str
    tags: list[str]
    status: Literal["new", "open", "closed"]
    parent: int | None
    ratio: float
    notes: str
    city: str


class Invoices(TypedDict):
    items: list[Invoice]


async def add(x: int, y: int) -> Sum:
    return {"sum": x + y}


def add_sync(x: int, y: int) -> Sum:
    return {"sum": x + y}


async def mid(
    customer_id: int,
    query: str,
    region: str,
    limit: int,
    offset: int,
    min_amount: float,
    include_closed: bool,
    tags: list[str],
    sort: Literal["asc", "desc"],
    cursor: str | None = None,
) -> Invoices:
    return {"items": _invoices(customer_id, region, tags)}


def mid_sync(
    customer_id: int,
    query: str,
    region: str,
    limit: int,
    offset: int,
    min_amount: float,
    include_closed: bool,
    tags: list[str],
    sort: Literal["asc", "desc"],
    cursor: str | None = None,
) -> Invoices:
    return {"items": _invoices(customer_id, region, tags)}


def _invoices(first: int, city: str, tags: list[str]) -> list[Invoice]:
    return [
        {
            "id": number,
            "name": "Customer name",
            "email": "someone@example.org",
            "active": True,
            "score": 12.25,
            "created": "2026-11-15T10:00:00Z",
            "tags": tags,
            "status": "open",
            "parent": None,
            "ratio": 0.5,
            "notes": "a line of free text of middling length",
            "city": city,
        }
        for number in range(first, first + 50)
    ]


MID_ANSWER: Final = {"items": _invoices(918_273, "eu-west", ["a", "b", "c"])}


# --- the same as msgspec structs, for the floor -------------------------------------------------------------------


class AddInputStruct(msgspec.Struct):
    x: int
    y: int


class SumStruct(msgspec.Struct):
    sum: int


class MidInputStruct(msgspec.Struct):
    customer_id: int
    query: str
    region: str
    limit: int
    offset: int
    min_amount: float
    include_closed: bool
    tags: list[str]
    sort: Literal["asc", "desc"]
    cursor: str | None = None


class InvoiceStruct(msgspec.Struct):
    id: int
    name: str
    email: str
    active: bool
    score: float
    created: str
    tags: list[str]
    status: Literal["new", "open", "closed"]
    parent: int | None
    ratio: float
    notes: str
    city: str


class InvoicesStruct(msgspec.Struct):
    items: list[InvoiceStruct]


# --- rows of four fields, as classes that users write --------------------------------------------------------------


@dataclass
class Row:
    id: int
    name: str
    price: float
    tags: list[str]


class RowStruct(msgspec.Struct):
    id: int
    name: str
    price: float
    tags: list[str]


def rows(make: Callable[..., Any], count: int) -> list[Any]:
    """Rows of a class, or dicts."""
    return [make(id=number, name=f"row {number}", price=number * 1.5, tags=["a", "b"]) for number in range(count)]


# --- the object: about 30 fields and 20 lines of 8, 2.7 kB of JSON ------------------------------------------------


class Customer(TypedDict):
    id: int
    name: str
    email: str
    vip: bool
    since: str


class Address(TypedDict):
    street: str
    city: str
    zip: str
    country: str
    latitude: float
    longitude: float


class Line(TypedDict):
    id: int
    sku: str
    title: str
    quantity: int
    price: float
    tax: float
    gift: bool
    unit: Literal["piece", "kilo", "metre"]


class Order(TypedDict):
    id: int
    number: str
    status: Literal["new", "open", "closed"]
    created: str
    updated: str
    currency: str
    total: float
    tax: float
    paid: bool
    priority: int
    note: str | None
    channel: str
    locale: str
    weight: float
    tags: list[str]
    ratings: list[int]
    customer: Customer
    address: Address
    lines: list[Line]


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_BOOLEAN: Final = {"type": "boolean"}

ORDER_SCHEMA: Final = _object(
    id=_INTEGER,
    number=_STRING,
    status={"enum": ["new", "open", "closed"]},
    created=_STRING,
    updated=_STRING,
    currency=_STRING,
    total=_NUMBER,
    tax=_NUMBER,
    paid=_BOOLEAN,
    priority=_INTEGER,
    note={"type": ["string", "null"]},
    channel=_STRING,
    locale=_STRING,
    weight=_NUMBER,
    tags={"type": "array", "items": _STRING},
    ratings={"type": "array", "items": _INTEGER},
    customer=_object(id=_INTEGER, name=_STRING, email=_STRING, vip=_BOOLEAN, since=_STRING),
    address=_object(street=_STRING, city=_STRING, zip=_STRING, country=_STRING, latitude=_NUMBER, longitude=_NUMBER),
    lines={
        "type": "array",
        "items": _object(
            id=_INTEGER,
            sku=_STRING,
            title=_STRING,
            quantity=_INTEGER,
            price=_NUMBER,
            tax=_NUMBER,
            gift=_BOOLEAN,
            unit={"enum": ["piece", "kilo", "metre"]},
        ),
    },
)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, in which no object may have a property it does not name."""
    changed = {**schema}
    if "properties" in schema:
        changed["properties"] = {name: closed(part) for name, part in schema["properties"].items()}
        changed["additionalProperties"] = False
    if "items" in schema:
        changed["items"] = closed(schema["items"])
    return changed


def order() -> dict[str, Any]:
    """A valid order."""
    return {
        "id": 40_711,
        "number": "2026-40711",
        "status": "open",
        "created": "2026-11-15T10:00:00Z",
        "updated": "2026-11-15T10:05:00Z",
        "currency": "EUR",
        "total": 1234.5,
        "tax": 197.1,
        "paid": False,
        "priority": 3,
        "note": None,
        "channel": "web",
        "locale": "de-DE",
        "weight": 12.75,
        "tags": ["winter", "gift", "repeat"],
        "ratings": [5, 4, 5, 3],
        "customer": {"id": 918_273, "name": "A. Person", "email": "a@example.org", "vip": True, "since": "2019-04-01"},
        "address": {
            "street": "Long Street 12",
            "city": "Old Town",
            "zip": "01067",
            "country": "DE",
            "latitude": 51.05,
            "longitude": 13.74,
        },
        "lines": [_line(number) for number in range(1, 21)],
    }


def _line(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "sku": f"A-{1000 + number}",
        "title": "Wool scarf",
        "quantity": 2,
        "price": 19.95,
        "tax": 0.19,
        "gift": False,
        "unit": "piece",
    }


def order_with_extras() -> dict[str, Any]:
    """An order with 22 properties its schema does not know: one in each line, one at the top, one for the customer."""
    made = order()
    made["trace"] = "a1b2"
    made["customer"]["segment"] = "north"
    for line in made["lines"]:
        line["warehouse"] = "W7"
    return made


def order_with_bad_leaves() -> dict[str, Any]:
    """An order with two leaves of a wrong type, of which one is text that stands for its number, and one missing."""
    made = order()
    made["total"] = "1234.5"
    made["lines"][7]["gift"] = "perhaps"
    del made["address"]["city"]
    return made


def order_repaired() -> dict[str, Any]:
    """The repaired leaves: what converts without loss is converted, the rest is kept with a warning."""
    made = order_with_bad_leaves()
    made["total"] = 1234.5
    return made


def order_cast() -> dict[str, Any]:
    """What `Value.Cast` makes of the bad leaves: each becomes the zero of its type."""
    made = order()
    made["total"] = 0
    made["lines"][7]["gift"] = False
    made["address"]["city"] = ""
    return made
