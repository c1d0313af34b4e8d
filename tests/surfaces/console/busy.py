"""A shop among three sources after a busy hour: calls, recorded runs, tasks, and a source that is down."""

import asyncio
import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
import msgspec
from tests.surfaces.console.app import many, ops, png, wav
from tests.surfaces.console.visiting import served

from enfold import (
    AudioContent,
    Context,
    EmbeddedResource,
    Identity,
    ImageContent,
    OperationRegistry,
    TextContent,
    http_envelope,
)
from enfold.auth.tokens import Tokens
from enfold.mcp import elicit
from enfold.operations import Operation, Origin, Policy
from enfold.provenance import Recorder, RecordStore
from enfold.runtime.source_states import DefinitionChange, Problem
from enfold.surfaces.http import to_http
from enfold.surfaces.introspection import keep_calls
from enfold.surfaces.introspection.calls import Payloads
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

UNSIGHTLY = ("strange", "nasty", "prototypes", "flood", "exact")  # which are there to break a page
TOKENS = {"ann": Identity("ann", frozenset({"*"})), "ben": Identity("ben")}


class Article(msgspec.Struct):
    """One thing on a shelf."""

    article: str
    price: float
    left: int


def shop() -> OperationRegistry:
    """A shop among three sources, of which one is down."""
    made = OperationRegistry("shop", title="Corner Shop")
    made.register_all(each for each in ops if each.spec.namespace == "shop" and each.spec.name not in UNSIGHTLY)
    made.register_all(_of("billing", each) for each in many(140))

    @made.query
    def stock(
        shelf: Literal["drinks", "bakery", "all"],
        at_most: Annotated[int, msgspec.Meta(ge=1, le=50)] = 20,
        since: date | None = None,
    ) -> list[Article]:
        """Tell what is left of everything on a shelf, as the warehouse knows it.

        Args:
            shelf: Which one.
            at_most: How many articles.
            since: Only what was counted on this day or later.
        """
        del shelf, since
        goods = (("tea", 3.5, "412"), ("coffee", 6.25, "96"), ("قهوة عربية", 7.0, "18"), ("bread", 2.1, "60"))
        rows = [{"article": name, "price": price, "left": left} for name, price, left in goods[:at_most]]
        rows[1]["legacy_code"] = "K-77"  # as an old system writes it: one has to be repaired
        return http_envelope(rows, content_type="application/json")  # type: ignore[return-value]

    @made.mutation(
        access={"required_scopes": ["buy"]},
        error_schemas=[
            {"code": "OUT_OF_STOCK", "description": "The article is sold out", "http_status": 409},
            {"code": "TOO_FAR", "description": "We do not deliver there", "http_status": 422},
        ],
    )
    async def deliver(
        context: Context,
        article: Annotated[str, msgspec.Meta(title="What to deliver", examples=["coffee"])],
        address: Annotated[str, msgspec.Meta(description="Street and town.", examples=["12 Mill Lane, Bath"])],
        day: date | None = None,
    ) -> dict[str, Any]:
        """Deliver an article, after a question about where to leave it.

        Args:
            article: Its name on the shelf.
        """
        del day
        context.progress(1, 3, "packing")
        context.log(f"{article} is on the scales", data={"grams": 250})
        form = {
            "type": "object",
            "properties": {
                "place": {
                    "type": "string",
                    "title": "Where to leave it",
                    "description": "If no one is at home.",
                    "enum": ["by the gate", "with a neighbour", "nowhere"],
                },
                "call": {"type": "string", "title": "Telephone", "description": "For the driver."},
            },
            "required": ["place"],
        }
        answer = await context.ask(f"Where should we leave it at {address}?", form)
        context.progress(3, 3, "on its way")
        context.log("the driver has left", "notice")
        return {"article": article, "left": answer.content.get("place", "nowhere"), "driver": "Kim"}

    @made.query
    def leaflet() -> list[TextContent | ImageContent | AudioContent | EmbeddedResource]:
        """Give the leaflet of the week: words, a picture, a jingle, and a page to print."""
        page = base64.b64encode(b"%PDF-1.4\n%%EOF\n").decode()
        return [
            TextContent("This week: everything for tea."),
            ImageContent(base64.b64encode(png(320, 90)).decode(), "image/png"),
            TextContent("And how it sounds:"),
            AudioContent(base64.b64encode(wav()).decode(), "audio/wav"),
            EmbeddedResource({"uri": "shop://leaflet/47.pdf", "mimeType": "application/pdf", "blob": page}),
        ]

    @made.mutation(durable=True, timeout=7200)
    async def stocktaking(context: Context) -> int:
        """Count everything, which takes the night."""
        context.progress(37, 120, "shelf 37")
        await asyncio.sleep(3600)
        return 120

    @made.mutation(durable=True)
    async def refund(context: Context) -> str:
        """Refund money after a confirmation."""
        form = {
            "type": "object",
            "properties": {"agreed": {"type": "boolean"}, "reason": {"type": "string"}},
            "required": ["agreed"],
        }
        return str(await elicit(context, "May order 4711 be refunded? It is 18.40 €.", form))

    @made.query
    async def audit(context: Context, depth: int = 3) -> int:
        """Go through the books, level by level."""
        await context.env.shop.items()
        return 0 if not depth else (await context.env.shop.audit(depth=depth - 1)).data + 1

    made.services.sources.enter("shop", "functions", "up", operations=15)
    skipped = (Problem("POST /uploads", "its body is multipart/related, which no client here can write"),)
    wording = ("Get orders.", "Get orders of all customers.")
    change = DefinitionChange("billing.orders.get_orders_0", "wording", round(time.time() * 1000), *wording)
    made.services.sources.enter(
        "billing", "openapi", "up", operations=140, skipped=skipped, changed=(change,), changes=1
    )
    made.services.sources.enter("warehouse", "mcp", "down", why="Connection refused: http://warehouse.local:9000/mcp")
    return made


def _of(source: str, operation: Operation) -> Operation:
    spec = operation.spec.replace(namespace=operation.spec.namespace.replace("big", source))
    return Operation(spec, operation.handler, origin=Origin("openapi", source))


@contextmanager
def used(folder: Path) -> Iterator[tuple[str, str]]:
    """The shop after a busy hour: its address, and a run that was recorded."""
    recorder, payloads = Recorder(store=RecordStore(folder / "runs.db")), Payloads()
    registry = shop().with_policy(Policy(payloads=payloads))
    keep_calls(registry, payloads)
    tasks = Tasks(registry, MemoryTasks())
    mounts = {"/mcp": to_mcp(registry, recorder=recorder)}
    app = to_http(registry, tokens=Tokens(TOKENS), recorder=recorder, mounts=mounts, tasks=tasks)
    with served(app) as address, httpx2.Client(base_url=address) as client:

        def post(name: str, caller: str = "ann", **arguments: Any) -> Any:
            headers = {"authorization": f"Bearer {caller}", "enfold-capture-provenance": "full"}
            if name in ("stocktaking", "refund"):
                headers["prefer"] = "respond-async"
            return client.post(f"functions/shop.{name}", json=arguments, headers=headers)

        for caller in ("ann", "ben", "ann", "ben"):
            for name in ("items", "untidy", "picture"):
                post(name, caller)
            post("add", caller, x=4)
            post("add", caller, x=400)
        run = post("audit").headers["enfold-run-id"]
        post("stocktaking")
        post("refund")
        post("untidy", "ben")
        post("order", "ben", lines=[{"item": "coffee", "quantity": 2}], delivery="bicycle", note="قبل الظهر من فضلك")
        post("add", "ben", x=400)
        yield address, run
