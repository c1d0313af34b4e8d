"""Several processes that serve one registry on one socket: started again when they die, and forwarding what another holds."""

from enfold.workers.accepting import Accepting
from enfold.workers.forwarding import SessionRouter, end_with_parent, listen_to_siblings, session_prefix
from enfold.workers.processes import Worker, run_workers
from enfold.workers.siblings import SelfReport, Siblings

__all__ = [
    "Accepting",
    "SelfReport",
    "SessionRouter",
    "Siblings",
    "Worker",
    "end_with_parent",
    "listen_to_siblings",
    "run_workers",
    "session_prefix",
]
