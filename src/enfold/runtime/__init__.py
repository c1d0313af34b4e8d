"""How one operation runs: the funnel around its handler, and the stack of middleware around the funnel."""

from enfold.runtime.driving import drive, is_cancellation, never_waits
from enfold.runtime.funnel import Services
from enfold.runtime.prepared import Ingress, PreparedOperation

__all__ = ["Ingress", "PreparedOperation", "Services", "drive", "is_cancellation", "never_waits"]
