"""Logs the loss of a connection, a refusal and its return once each."""

from __future__ import annotations

from enfold.log import Log


class Outage:
    """Whether a connection is lost now, and what was logged of that."""

    def __init__(self, log: Log, place: str) -> None:
        """`place` names it in the log, without credentials: `NATS at nats://edge:4222`."""
        self._log = log
        self._place = place
        self._told = ""  # why it does not let us in
        self._why = ""  # the same, as it is now
        self.is_on = False

    @property
    def reason(self) -> str:
        """Why there is no connection at this moment; "" where there is one."""
        if not self.is_on:
            return ""
        return f"it does not let us in: {self._why}" if self._why else "it cannot be reached"

    def begin(self) -> None:
        """The connection is lost."""
        if not self.is_on:
            self.is_on = True
            self._log.warning("%s is lost: it is tried again until it is back", self._place)

    def refused(self, why: str) -> bool:
        """Note why it does not let us in ("" where it is not there); whether that is another reason than before.

        While the connection stands nothing is noted: a first refusal is an error of its own.
        """
        if not self.is_on:
            return False
        is_news, self._why = why != self._why, why
        if why and why != self._told:
            self._told = why
            self._log.warning("%s does not let us in: %s", self._place, why)
        return is_news

    def end(self) -> None:
        """The connection stands again."""
        if self.is_on:
            self.is_on, self._told, self._why = False, "", ""
            self._log.warning("%s is back", self._place)


def address_name(addresses: str) -> str:
    """Comma-separated addresses without users and passwords."""
    return ", ".join(map(_without_secrets, addresses.split(",")))


def _without_secrets(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else address.rpartition("@")[2]
