"""How many bytes of events are kept for clients that may come back: of everybody together, and of each owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enfold.surfaces.bounds import Bounds

if TYPE_CHECKING:
    from enfold.surfaces.mcp.event_stream import EventStream


class KeptStreams:
    """The streams that are kept, by their owners; where there is too much of an owner's, their oldest are released."""

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.resume_bytes
        self._most_of_one = bounds.resume_bytes_per_identity
        self._owners: dict[str, _Owned] = {}
        self.size = 0

    def add(self, stream: EventStream, size: int) -> None:
        """Count an event that has been added to a stream, and make room for it."""
        owned = self._owners.setdefault(stream.owner, _Owned())
        owned.streams[stream] = None
        owned.size += size
        self.size += size
        while owned.size > self._most_of_one and _release_oldest(owned, stream):
            pass
        while self.size > self._most and _release_oldest(self._largest(), stream):
            pass
        if self.is_full(stream.owner):
            stream.forget_sent()

    def is_full(self, owner: str) -> bool:
        """Whether nothing more of an owner can be kept."""
        owned = self._owners.get(owner)
        return owned is not None and (owned.size > self._most_of_one or self.size > self._most)

    def remove(self, stream: EventStream, size: int, *, entirely: bool = False) -> None:
        """Count some bytes of a stream no more; `entirely` where none of it is kept any longer."""
        owned = self._owners.get(stream.owner)
        if owned is None or stream not in owned.streams:
            return
        owned.size -= size
        self.size -= size
        if entirely:
            del owned.streams[stream]
            if not owned.streams:
                del self._owners[stream.owner]

    def _largest(self) -> _Owned:
        return max(self._owners.values(), key=lambda owned: owned.size)


class _Owned:
    """What is kept of one owner, the oldest first."""

    __slots__ = ("size", "streams")

    def __init__(self) -> None:
        self.size = 0
        self.streams: dict[EventStream, None] = {}


def _release_oldest(owned: _Owned, but: EventStream) -> bool:
    found = next((each for each in owned.streams if each is not but), None)
    if found is not None:
        found.release()
    return found is not None
