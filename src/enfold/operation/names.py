"""The ids of operations: which names are legal, and how imported ones are made so. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

__all__ = ["MAX_ID_LENGTH", "MAX_ID_PARTS", "MAX_NAME_LENGTH", "legal_name", "legal_names", "operation_id", "with_hash"]

MAX_ID_PARTS: Final = 6
MAX_ID_LENGTH: Final = 200
MAX_NAME_LENGTH: Final = 64

_PART: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")


def operation_id(namespace: str, name: str) -> str:
    """The id of a name in a namespace; a part that is not legal, or an id too long, is told at once."""
    if not _PART.match(name):
        raise ValueError(f"{name!r} is not a legal operation name: 1 to 64 of A-Z a-z 0-9 _ -")
    parts = namespace.split(".") if namespace else []
    for part in parts:
        if not _PART.match(part):
            raise ValueError(f"{namespace!r} is not a legal namespace: each part is 1 to 64 of A-Z a-z 0-9 _ -")
    found = f"{namespace}.{name}" if namespace else name
    if len(parts) + 1 > MAX_ID_PARTS or len(found) > MAX_ID_LENGTH:
        raise ValueError(f"The id {found!r} is too long: at most {MAX_ID_PARTS} parts and {MAX_ID_LENGTH} characters")
    return found


def legal_name(original: str) -> str:
    """An imported name with every character that an id may not have turned into `_`."""
    return _ILLEGAL.sub("_", original)[:MAX_NAME_LENGTH] or "_"


def legal_names(originals: Iterable[str], hashed: Callable[[str], str] | None = None) -> dict[str, str]:
    """A legal name for each imported one; in a clash each that had to change gets 8 digits of its hash.

    `hashed` gives the text to hash for an original where that is not the name itself.
    """
    wanted = {original: legal_name(original) for original in originals}
    holders: dict[str, int] = {}
    for name in wanted.values():
        holders[name] = holders.get(name, 0) + 1
    return {
        original: name
        if name == original or holders[name] == 1
        else with_hash(name, hashed(original) if hashed else original)
        for original, name in wanted.items()
    }


def with_hash(name: str, original: str) -> str:
    """The name, cut to stay within 64 characters, with the first 8 digits of its original's SHA-256."""
    digest = sha256(original.encode("utf-8", "surrogatepass"))
    return f"{name[: MAX_NAME_LENGTH - 9]}_{digest[:8]}"


def sha256(text: bytes) -> str:
    import hashlib  # slow to import, and only for digests and clashes

    return hashlib.sha256(text).hexdigest()
