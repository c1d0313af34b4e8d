"""A program for the tests: starts writers of a store one after another and kills each, at a moment by chance.

Prints the ids of all runs whose `put` had returned.
"""

from __future__ import annotations

import os
import random
import signal
import sys

from enfold.provenance import RecordStore, build_record
from enfold.provenance.records import Tool


def main(path: str, rounds: int) -> None:
    chance = random.Random(7)  # noqa: S311  # not for secrets
    for number in range(rounds):
        for run_id in acknowledged(path, number, chance):
            sys.stdout.write(run_id + "\n")


def acknowledged(path: str, number: int, chance: random.Random) -> list[str]:
    """Run one writer until some of its records are acknowledged, kill it, and give all that were."""
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(reading)
        write_forever(path, number, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = [pipe.readline() for _ in range(chance.randint(0, 6))]
        for _ in range(chance.randint(0, 3000)):
            pass  # so that the kill comes at any point of the next transaction, not only at its beginning
        os.kill(writer, signal.SIGKILL)
        told += pipe.readlines()
    os.waitpid(writer, 0)
    return [line.strip() for line in told if line.endswith("\n")]


def write_forever(path: str, number: int, pipe: int) -> None:
    store = RecordStore(path)
    for count in range(1_000_000):
        run_id = f"run-{number}-{count}"
        parents = (f"run-{number}-{count - 1}",) if count else ()
        store.put(build_record(run_id, Tool("shop.add", "1"), parents=parents).to_wire())
        os.write(pipe, f"{run_id}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
