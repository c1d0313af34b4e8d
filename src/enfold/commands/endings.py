"""How signals end a command: SIGTERM as SIGINT does, so that calls finish, sources close and child processes end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from signal import SIGINT, SIGTERM, Signals
from typing import Any, Final, TypeVar

__all__ = ["HANGUP", "ended_by_signals", "handling", "run_in_loop"]

T = TypeVar("T")

# Asks to read what can be read again; not every system has it.
HANGUP: Final = tuple(number for number in Signals if number.name == "SIGHUP")


def run_in_loop(work: Coroutine[Any, Any, T], loop_factory: Callable[[], Any] | None = None) -> T | None:
    """What the work gives; None where a signal ended it, after all that it had opened was closed."""

    async def until_ended() -> T | None:
        task = asyncio.ensure_future(work)
        with ended_by_signals(task.cancel):
            await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(until_ended())


def ended_by_signals(end: Callable[[], object]) -> AbstractContextManager[None]:
    """Call `end` at every SIGTERM and SIGINT while the block runs."""
    return handling({SIGTERM: end, SIGINT: end})


@contextmanager
def handling(handlers: Mapping[Signals, Callable[[], object]]) -> Iterator[None]:
    """Have the running loop call these on signals; what handled them outside of the block does so again after it."""
    before = dict(_handlers)
    _install({**before, **handlers})
    try:
        yield
    finally:
        _install(before)


_handlers: Final[dict[Signals, Callable[[], object]]] = {}  # as they are now


def _install(wanted: Mapping[Signals, Callable[[], object]]) -> None:
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # where signals are not the loop's, Python's own way is left
        for number in _handlers.keys() - wanted.keys():
            loop.remove_signal_handler(number)
        for number, handle in wanted.items():
            loop.add_signal_handler(number, handle)
    _handlers.clear()
    _handlers.update(wanted)
