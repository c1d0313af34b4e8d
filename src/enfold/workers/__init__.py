"""Several processes that serve one registry on one socket: started again when they die, and passing on what another holds."""

from enfold.workers.accepting import Accepting
from enfold.workers.passing import Passing, ask_siblings, listen_to_siblings, session_prefix, without_parent
from enfold.workers.processes import Worker, run_workers

__all__ = [
    "Accepting",
    "Passing",
    "Worker",
    "ask_siblings",
    "listen_to_siblings",
    "run_workers",
    "session_prefix",
    "without_parent",
]
