"""The program that the processes of these tests serve: each effect is a line in the file that EFFECTS names."""

from __future__ import annotations

import asyncio
import os

from enfold import OperationRegistry

ops = OperationRegistry("shop")


def _note(word: str) -> None:
    """Append a line, which is there even if we are killed in the next moment."""
    file = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{word}\n".encode())
    os.close(file)


async def pay(id: str, seconds: float = 0.0) -> str:
    """An effect, and then the time until its outcome is known."""
    _note(id)
    await asyncio.sleep(seconds)
    return id


ops.mutation(pay)
ops.mutation(name="pay_again", on_crash="retry")(pay)
ops.mutation(name="pay_as_task", durable=True)(pay)


@ops.mutation
def pay_in_thread(id: str) -> str:
    _note(id)
    return id


if __name__ == "__main__":
    ops.run()
