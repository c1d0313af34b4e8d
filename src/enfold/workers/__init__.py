"""Several processes that serve one registry on one socket: started again when they die, and passing on what another holds."""

from enfold.workers.accepting import Accepting
from enfold.workers.passing import Passing, listen_to_siblings, session_prefix, without_parent
from enfold.workers.processes import Worker, run_workers
from enfold.workers.siblings import SelfReport, Siblings

__all__ = [
    "Accepting",
    "Passing",
    "SelfReport",
    "Siblings",
    "Worker",
    "listen_to_siblings",
    "run_workers",
    "session_prefix",
    "without_parent",
]
