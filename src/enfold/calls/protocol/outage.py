"""The loss and the return of a connection, told once each: one line when it goes, one when it is back, and one if we are refused."""

from __future__ import annotations

from enfold.log import Log

__all__ = ["Outage"]


class Outage:
    """Whether a place is lost at this moment, and what has been told of that."""

    def __init__(self, log: Log, place: str) -> None:
        """`place` is what a reader knows it by, without credentials: `NATS at nats://edge:4222`."""
        self._log = log
        self._place = place
        self._told = ""  # why it does not let us in
        self.is_on = False

    def begin(self) -> None:
        """The connection is lost."""
        if not self.is_on:
            self.is_on = True
            self._log.warning("%s is lost: it is tried again until it is back", self._place)

    def refused(self, why: str) -> None:
        """It is there, but does not let us in; while nothing is lost that is told elsewhere."""
        if self.is_on and why != self._told:
            self._told = why
            self._log.warning("%s does not let us in: %s", self._place, why)

    def end(self) -> None:
        """The connection stands again."""
        if self.is_on:
            self.is_on, self._told = False, ""
            self._log.warning("%s is back", self._place)
