"""`python -m benchmarks.scale.soak [--seconds 1800]`: mixed load on a fleet while something fails every 20 seconds.

Three NATS nodes, two workers and two edges. Clients repeat what failed as a careful caller would, with an idempotency key
where an effect must not happen twice. Workers append each effect to a file. At the end the file and the answers are compared: every
call is accounted for as lost, doubled, stuck or wrong, or as right. Memory, file descriptors and subscriptions are sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import msgspec

from benchmarks.scale.fleet import Fleet, Process, fleet
from benchmarks.scale.operations import LEDGER

PATIENCE: Final = 90.0  # seconds in which every call must have a definite outcome
PAUSE: Final = 0.5  # seconds between two calls of one client: an identity may have 10,000 keys in an hour
DEFINITE: Final = frozenset({"OK", "OUTCOME_UNKNOWN"})
GROWTH: Final = 1.3  # how much more the last third of the samples may show than the first


class Sample(msgspec.Struct, frozen=True):
    memory: float  # MB of edges and workers together
    files: int  # open file descriptors of edges and workers
    subscriptions: int  # in the whole cluster


class Seen(msgspec.Struct):
    """What the clients and the sampler saw."""

    answers: Counter[str] = msgspec.field(default_factory=Counter)
    ended: dict[str, str] = msgspec.field(default_factory=dict)  # the definite code of each effect, by its name
    right: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = msgspec.field(default_factory=list)
    stuck: list[str] = msgspec.field(default_factory=list)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    samples: list[Sample] = msgspec.field(default_factory=list)


class Reply(msgspec.Struct, frozen=True):
    code: str
    body: Any = None


class Client:
    """Calls one edge, and the other one when that does not answer."""

    def __init__(self, ports: list[int], chance: random.Random, over: threading.Event, seen: Seen) -> None:
        self._ports = ports
        self._chance = chance
        self._over = over
        self._seen = seen

    def run(self, name: str) -> None:
        jobs: list[Callable[[str], None]] = [self._query, self._query, self._keyed, self._stream, self._task]
        number = 0
        while not self._over.wait(PAUSE):
            number += 1
            self._chance.choice(jobs)(f"{name}-{number}")

    def _query(self, name: str) -> None:
        self._check("query", name, self._repeat("scale.query", {"text": name}), name)

    def _keyed(self, name: str) -> None:
        reply = self._repeat("scale.effect", {"name": name}, {"Idempotency-Key": name})
        if reply is not None:
            self._seen.ended[name] = reply.code
        if reply is None or reply.code == "OK":
            self._check("keyed mutation", name, reply, name)

    def _stream(self, name: str) -> None:
        reply = self._repeat("scale.stream", {"text": name}, {"Accept": "application/x-ndjson"})
        self._check("stream", name, reply, [name] * 20)

    def _task(self, name: str) -> None:
        headers = {"Idempotency-Key": name, "Prefer": "respond-async, wait=30"}
        self._check("task", name, self._repeat("scale.task", {"text": name}, headers), name)

    def _check(self, kind: str, name: str, reply: Reply | None, expected: Any) -> None:
        if reply is None:
            self._seen.stuck.append(f"{kind} {name}")
        elif reply.code == "OK" and reply.body == expected:
            self._seen.right[kind] += 1
        else:
            self._seen.wrong.append(f"{kind} {name}: {reply}")

    def _repeat(self, operation: str, given: Any, headers: dict[str, str] | None = None) -> Reply | None:
        """Call until there is a definite outcome; None if there is none in time."""
        ends_at = time.monotonic() + PATIENCE
        while time.monotonic() < ends_at:
            reply = self._ask(operation, given, headers or {})
            self._seen.answers[reply.code] += 1
            if reply.code in DEFINITE:
                return reply
            time.sleep(0.2)
        return None

    def _ask(self, operation: str, given: Any, headers: dict[str, str]) -> Reply:
        port = self._chance.choice(self._ports)
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=40)) as connection:
                kind = {"Content-Type": "application/json"}
                connection.request("POST", f"/functions/{operation}", json.dumps(given), kind | headers)
                answer = connection.getresponse()
                status, code, body = answer.status, answer.headers.get("Enfold-Code"), answer.read()
        except (OSError, HTTPException):
            return Reply("no answer")
        if status == 202:  # the task still runs: ask for it again under the same key
            return Reply("still running")
        if status != 200 or code is not None:
            return Reply(code or str(status))
        if answer.headers.get_content_type() == "application/x-ndjson":
            return _stream_reply(body)
        return Reply("OK", json.loads(body)["result"])


def _stream_reply(body: bytes) -> Reply:
    """The items of a stream that came to its end."""
    lines = [json.loads(line) for line in body.splitlines() if line.strip()]
    if not lines or lines[-1].get("complete") is not True:
        return Reply("stream was cut")
    return Reply("OK", [line["result"] for line in lines[:-1]])


# --- faults -------------------------------------------------------------------------------------------------------


def kill(process: Process) -> None:
    process.kill()
    time.sleep(2)
    process.restart()


def freeze(process: Process) -> None:
    process.freeze()
    time.sleep(4)
    process.thaw()


def stop(process: Process) -> None:
    """End it as a deployment does, and start it again."""
    process.close()
    process.restart()


def faults(made: Fleet, chance: random.Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every kind of fault in turn, each at a random process of its part."""
    parts = {"worker": made.workers, "edge": made.edges, "NATS node": made.nodes}
    kinds = [(act, part) for act in (kill, freeze, stop) for part in parts]
    while True:
        chance.shuffle(kinds)
        for act, part in kinds:
            chosen = chance.choice(parts[part])
            yield f"{act.__name__} {part}", lambda act=act, chosen=chosen: act(chosen)  # type: ignore[misc]


# --- samples ------------------------------------------------------------------------------------------------------


def sample(made: Fleet) -> Sample:
    pids = [each.pid for each in (*made.edges, *made.workers)]
    return Sample(sum(map(_memory, pids)), sum(map(_files, pids)), _subscriptions(made))


def _memory(pid: int) -> float:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


def _files(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def _subscriptions(made: Fleet) -> int:
    total = 0
    for port in made.monitors:
        with suppress(OSError, ValueError), urlopen(f"http://127.0.0.1:{port}/subsz", timeout=5) as answer:
            total += json.load(answer)["num_subscriptions"]
    return total


def growth(values: list[float]) -> tuple[float, float]:
    """The largest value of the first third, and of the last."""
    third = max(1, len(values) // 3)
    return max(values[:third], default=0.0), max(values[-third:], default=0.0)


# --- the run ------------------------------------------------------------------------------------------------------


def run(seconds: float, every: float = 20.0, clients: int = 6, seed: int = 1) -> tuple[Seen, Counter[str]]:
    """What was seen, and how often each effect happened."""
    seen = Seen()
    with fleet(keep=3600) as made:
        ledger = made.folder / "ledger"
        os.environ[LEDGER] = str(ledger)
        for _ in range(2):
            made.add_worker()
        for _ in range(2):
            made.add_edge()
        ends_at, planned = time.monotonic() + seconds, faults(made, random.Random(seed))  # noqa: S311
        with calling(made.ports, clients, seen):
            while (left := ends_at - time.monotonic()) > 0:
                time.sleep(min(every, left))
                made.check()  # what a fault has ended is running again
                seen.samples.append(sample(made))
                what, act = next(planned)
                seen.faults[what] += 1
                act()
                print(f"{time.strftime('%H:%M:%S')} {what}; {sum(seen.right.values())} right", file=sys.stderr)
        happened = Counter(ledger.read_text().split()) if ledger.exists() else Counter[str]()
    return seen, happened


@contextmanager
def calling(ports: list[int], clients: int, seen: Seen) -> Iterator[None]:
    """Clients that call the edges until the block ends, and then finish what they began."""
    over = threading.Event()
    threads = [
        threading.Thread(target=Client(ports, random.Random(number), over, seen).run, args=(f"c{number}",))  # noqa: S311
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def verdict(seen: Seen, happened: Counter[str]) -> dict[str, list[str]]:
    """What must be empty: the names of calls that were lost, doubled, stuck or wrong."""
    return {
        "lost": [name for name, code in seen.ended.items() if code == "OK" and not happened[name]],
        "doubled": [name for name, count in happened.items() if count > 1],
        "stuck": seen.stuck,
        "wrong": seen.wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seen, happened = run(options.seconds, seed=options.seed)
    found = verdict(seen, happened)
    print(f"faults: {dict(seen.faults)}")
    print(f"right: {dict(seen.right)}; answers on the way: {dict(seen.answers)}")
    print(f"keyed mutations by outcome: {dict(Counter(seen.ended.values()))}")
    for what, names in found.items():
        print(f"{what}: {len(names)} {names[:5] if names else ''}")
    is_flat = True
    for field in Sample.__struct_fields__:
        early, late = growth([float(getattr(each, field)) for each in seen.samples])
        is_flat = is_flat and late <= early * GROWTH
        print(f"{field}: at most {early:.0f} in the first third, {late:.0f} in the last")
    return 0 if is_flat and not any(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
