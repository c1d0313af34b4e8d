"""Start a durable task, answer its question, and find its result after a restart."""

import asyncio
import tempfile
from pathlib import Path

from enfold import Context, Identity, OperationRegistry
from enfold.tasks import Tasks
from enfold.tasks.sqlite import SQLiteTasks

ops = OperationRegistry("shop")
ann = Identity("ann")


@ops.mutation(durable=True, timeout=3600)
async def report(year: int, context: Context) -> str:
    """Write a report, and ask for the name of the accountant."""
    context.progress(1, 3, "collecting")
    name = await context.ask("Who signs?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"Report of {year}, signed by {name.content['name']}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tasks.db")
        async with Tasks(ops, SQLiteTasks(file)) as tasks:
            task = await tasks.start("shop.report", {"year": 2026}, identity=ann, idempotency_key="r1")
            async for state in task.watch():
                if state.questions:
                    break
            print(state.status, "|", state.message, "|", [each.params["message"] for each in state.questions.values()])

        # The process may end here. The next one to open the file continues; the same key returns the same task.
        async with Tasks(ops, SQLiteTasks(file)) as tasks:
            again = await tasks.start("shop.report", {"year": 2026}, identity=ann, idempotency_key="r1")
            await again.answer({key: {"action": "accept", "content": {"name": "Ann"}} for key in state.questions})
            print(again.id == task.id, "|", (await again.result()).data)


if __name__ == "__main__":
    asyncio.run(main())
