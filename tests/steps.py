"""Work as a number: the steps of the interpreter that a function takes, which are the same on a slow machine and a fast one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps_of(work: Callable[[], object]) -> int:
    """How many instructions of Python's a function runs, with all that it calls."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()  # Python 3.13 begins to count instructions in the course of the first run,
        sys.settrace(trace)  # and Python 3.12 when it is asked to after a frame has asked for them
        count = 0
        work()
    finally:
        sys.settrace(before)
    return count
