"""Make the pictures of docs/console.md anew: `python -m tests.surfaces.console.pictures`. Look at each before it goes in."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import Page, sync_playwright
from tests.conftest import ROOT
from tests.surfaces.console.app import many, ops
from tests.surfaces.console.test_console import FLAGS, served

from enfold import Context, Identity, OperationRegistry
from enfold.identities.tokens import Tokens
from enfold.introspection import keep_calls
from enfold.mcp.asking import elicit
from enfold.operation import Operation, Origin
from enfold.provenance import Recorder, RecordStore
from enfold.source_states import Problem
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

PLACE = ROOT / "docs/pictures"
TOKENS = {"ann": Identity("ann", frozenset({"*"})), "ben": Identity("ben")}


def shop() -> OperationRegistry:
    """A shop among three sources, of which one is down."""
    made = OperationRegistry("shop", title="Corner Shop")
    made.register_all(each for each in ops if each.spec.namespace == "shop" and each.spec.name != "strange")
    made.register_all(_of("billing", each) for each in many(140))

    @made.mutation(durable=True)
    async def stocktaking(context: Context) -> int:
        """Count everything, which takes the night."""
        context.progress(37, 120, "shelf 37")
        await asyncio.sleep(3600)
        return 120

    @made.mutation(durable=True)
    async def refund(context: Context) -> str:
        """Give money back, once somebody has agreed."""
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

    made.sources.enter("shop", "functions", "up", operations=12)
    skipped = [Problem("POST /uploads", "its body is multipart/related, which no client here can write")]
    made.sources.enter("billing", "openapi", "up", operations=140, skipped=skipped)
    made.sources.enter("warehouse", "mcp", "down", why="Connection refused: http://warehouse.local:9000/mcp")
    return made


def _of(source: str, operation: Operation) -> Operation:
    spec = operation.spec.replace(namespace=operation.spec.namespace.replace("big", source))
    return Operation(spec, operation.handler, origin=Origin("openapi", source))


@contextmanager
def used(folder: Path) -> Iterator[tuple[str, str]]:
    """The shop after a busy hour: its address, and a run that was recorded."""
    registry, recorder = shop(), Recorder(store=RecordStore(folder / "runs.db"))
    keep_calls(registry)
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
        post("add", "ben", x=400)
        yield address, run


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, used(Path(folder)) as (address, run), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport={"width": 1180, "height": 760})
            page = context.new_page()
            page.add_init_script("sessionStorage.setItem('enfold-token', 'ann')")
            _draw(page, address, run, scheme)
        browser.close()


def _draw(page: Page, address: str, run: str, scheme: str) -> None:
    def draw(name: str, place: str, ready: str) -> None:
        page.goto(f"{address}#/{place}")
        page.locator(f'main[data-at="#/{place}"]').wait_for()
        if name == "operation":
            _order(page)
        page.locator(ready).first.wait_for()
        page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
        page.screenshot(path=PLACE / f"console-{name}{'-dark' if scheme == 'dark' else ''}.png")

    draw("operations", "operations", ".rows li")
    if scheme == "light":
        draw("operation", "operations/shop.order", ".answer .tree")
        draw("sources", "sources", ".card")
        draw("calls", "calls", "tbody button")
        draw("run", f"runs/{run}", ".graph")
        draw("tasks", "tasks", ".card progress")


def _order(page: Page) -> None:
    page.get_by_role("button", name="Add an item").click()
    page.get_by_label("item required").fill("coffee")
    page.get_by_label("quantity").fill("2")
    page.get_by_label("delivery").select_option(label="bicycle")
    page.get_by_label("note").fill("قبل الظهر من فضلك")
    page.get_by_label("Record this run").check()
    page.keyboard.press("Control+Enter")


if __name__ == "__main__":
    main()
