"""A program with everything that the console has to show: forms, streams, warnings, pictures, hostile names, many operations."""

import asyncio
import base64
import struct
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

import msgspec

from enfold import Context, ImageContent, OperationRegistry, OperationSpec, TextContent
from enfold.operations import AccessControl, Operation

ops = OperationRegistry("shop", title="Corner Shop")

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "</textarea><script>alert(1)</script>",
    "<a href='javascript:alert(1)'>click</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<style>*{display:none}</style>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><input name=x>",
    "<!--",
    "]]>",
    "\u202emoc.live//:ptth",
    "&lt;b&gt;&amp;",
    "__proto__",
    "<math><mtext></table><img src=x onerror=alert(1)>",
    "'; alert(1); //",
]


SCRIPTED_PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="alert(1)"><script>alert(1)</script>'
    '<image href="http://evil.example/x.png"/><rect width="9" height="9"/></svg>'
)


@dataclass
class Line:
    """A line of an order."""

    item: str
    quantity: Annotated[int, msgspec.Meta(ge=1, le=99)] = 1


@dataclass
class Address:
    """Where it goes."""

    street: str
    city: str


@ops.query
def items() -> list[dict[str, Any]]:
    """List what is on the shelves, with prices."""
    goods = [("tea", 3.5), ("coffee", 6.25), ("قهوة عربية", 7.0), ("bread", 2.1)]
    return [{"name": name, "price": price, "left": 10 * place} for place, (name, price) in enumerate(goods)]


@ops.mutation(access=AccessControl())
async def order(
    lines: list[Line],
    delivery: Literal["counter", "bicycle", "post"],
    day: date | None = None,
    at: datetime | None = None,
    address: Address | None = None,
    gift: bool = False,
    pay: int | str = 0,
    note: str = "",
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Order something.

    It is put aside until the day that you choose.

    Args:
        lines: What you want, and how much of it.
        delivery: How it reaches you.
        day: The day on which you come.
        note: Anything that we should know.
    """
    return {
        "number": 4711,
        "lines": [[line.item, line.quantity] for line in lines],
        "delivery": delivery,
        "note": note,
        "day": day,
        "gift": gift,
    }


@ops.query
def add(x: Annotated[int, msgspec.Meta(ge=0, le=100)], y: int = 1) -> int:
    """Add two numbers."""
    return x + y


@ops.subscription
async def ticks(every: float = 0.05, to: int = 1000) -> AsyncIterator[dict[str, Any]]:
    """Count upwards, slowly."""
    for number in range(to):
        yield {"tick": number}
        await asyncio.sleep(every)


@ops.subscription(resumable=True)
async def news(context: Context) -> AsyncIterator[str]:
    """Tell the news, from where one left off."""
    start = int(context.last_event_id or 0)
    for number in range(start + 1, 100_000):
        context.event_id = str(number)
        yield f"news {number}"
        await asyncio.sleep(0.05)


class Shelf(msgspec.Struct):
    name: str
    count: int


@ops.query
def untidy() -> list[Shelf]:
    """Give a result that has to be repaired in fifty places."""
    return [{"name": f"shelf {place}", "count": str(place), f"dust{place}": 1} for place in range(50)]  # type: ignore[misc]


@ops.query
def strange() -> dict[str, Any]:
    """Return hostile text."""
    return {"texts": HOSTILE, "keys": {text: text for text in HOSTILE}, "rows": [{"name": text} for text in HOSTILE]}


@ops.query
def picture() -> list[ImageContent | TextContent]:
    """Paint a picture."""
    return [ImageContent(base64.b64encode(png(160, 90)).decode(), "image/png"), TextContent("a sunrise")]


@ops.query
def exact(number: int, limit: Annotated[int, msgspec.Meta(le=2**63 - 1)] = 2**62 + 1) -> dict[str, Any]:
    """Give back a number, and what is near it."""
    near = [{"place": place, "number": number + place} for place in range(3)]
    return {"number": number, "limit": limit, "near": near, "tiny": 0.1, "text": str(number)}


@ops.query
def nasty() -> dict[str, Any]:
    """Give back what breaks pages: links, pictures with scripts, names of prototypes, and many levels."""
    deep: Any = "bottom"
    for _ in range(100):
        deep = {"deeper": [deep]}
    script = base64.b64encode(SCRIPTED_PICTURE.encode()).decode()
    return {
        "links": ["javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "//evil.example/x.png"],
        "pictures": [
            {"type": "image", "mimeType": "image/svg+xml", "data": script},
            {"type": "image", "mimeType": "text/html", "data": script},
            {"type": "image", "mimeType": "image/png", "data": "https://evil.example/x.png"},
            {"type": "image", "mimeType": 'image/png" onerror="alert(1)', "data": script},
        ],
        "prototypes": [{"__proto__": {"polluted": 1}, "constructor": 2}, {"toString": "x", "hasOwnProperty": "y"}],
        "deep": deep,
        "huge": [10**400, -(10**400), 1e308],
    }


@ops.query
def prototypes() -> list[dict[str, Any]]:
    """Give rows whose columns have the names of what every object has."""
    return [{"__proto__": "own", "n": 2**60 + 1}, {"constructor": "mine", "n": 1}]


@ops.subscription
async def flood(number: int = 100_000) -> AsyncIterator[dict[str, Any]]:
    """Give more items than anybody reads."""
    for place in range(number):
        yield {"place": place, "text": "x" * 50}


@ops.query
def large() -> dict[str, Any]:
    """Give two megabytes."""
    return {"numbers": list(range(150_000)), "text": "long " * 200_000, "rows": [{"id": n} for n in range(5_000)]}


@ops.query
async def receipt(number: int, context: Context) -> dict[str, Any]:
    """Write a receipt, which asks for the items."""
    found = await context.env.shop.items()
    return {"number": number, "items": len(found.data)}


def hostile() -> OperationRegistry:
    """Operations whose every text is hostile."""
    made = OperationRegistry()
    for place, text in enumerate(HOSTILE):
        schema = {
            "type": "object",
            "properties": {text: {"type": "string", "description": text, "title": text}},
            "required": [text],
        }
        spec = OperationSpec(
            name=f"tool{place}", namespace="strange", title=text, description=text, tags=[text], input_schema=schema
        )
        made.register(Operation(spec, _echo))
    return made


def _echo(input: dict[str, Any], context: Context) -> dict[str, Any]:
    del context
    return input


def many(number: int) -> OperationRegistry:
    """As many operations as a large service has."""
    made = OperationRegistry()
    for place in range(number):
        area = ("orders", "customers", "invoices", "stock", "reports")[place % 5]
        spec = OperationSpec(
            name=f"{('get', 'list', 'create', 'update')[place % 4]}_{area}_{place}",
            namespace=f"big.{area}",
            description=f"{('Get', 'List', 'Create', 'Update')[place % 4]} {area} number {place} of the large service.",
            tags=[area],
            type="query" if place % 4 < 2 else "mutation",
        )
        made.register(Operation(spec, _echo))
    return made


def wav() -> bytes:
    """A tenth of a second of silence."""
    data = bytes(800)
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", len(data)
    )
    return head + data


def png(width: int, height: int) -> bytes:
    rows = b"".join(
        b"\0" + bytes(c // 24 * 24 for x in range(width) for c in (200 - y, 120 + x // 3, 90 + y))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


ops.register_all(hostile())
