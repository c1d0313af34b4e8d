"""The ids of operations: which names are legal, and how imported ones are made so. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

MAX_ID_PARTS: Final = 6
MAX_ID_LENGTH: Final = 200
MAX_NAME_LENGTH: Final = 64

# A set, because two patterns would be a good part of what importing `enfold` costs.
_LEGAL: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def operation_id(namespace: str, name: str) -> str:
    """The id of a name in a namespace; a part that is not legal, or an id too long, is told at once."""
    if not _is_legal(name):
        raise ValueError(f"{name!r} is not a legal operation name: 1 to 64 of A-Z a-z 0-9 _ -")
    parts = namespace.split(".") if namespace else []
    for part in parts:
        if not _is_legal(part):
            raise ValueError(f"{namespace!r} is not a legal namespace: each part is 1 to 64 of A-Z a-z 0-9 _ -")
    found = f"{namespace}.{name}" if namespace else name
    if len(parts) + 1 > MAX_ID_PARTS or len(found) > MAX_ID_LENGTH:
        raise ValueError(f"The id {found!r} is too long: at most {MAX_ID_PARTS} parts and {MAX_ID_LENGTH} characters")
    return found


def _is_legal(part: Any) -> bool:
    return isinstance(part, str) and 0 < len(part) <= MAX_NAME_LENGTH and _LEGAL.issuperset(part)


def legal_name(original: str) -> str:
    """An imported name with every character that an id may not have turned into `_`."""
    kept = original[:MAX_NAME_LENGTH]
    if not _LEGAL.issuperset(kept):
        kept = "".join(each if each in _LEGAL else "_" for each in kept)
    return kept or "_"


def legal_names(originals: Iterable[str]) -> dict[str, str]:
    """A legal name for each imported one; in a clash each that had to change gets 8 digits of its hash."""
    wanted = [WantedName(original, original) for original in dict.fromkeys(originals)]
    return {each.original: name for each, name in zip(wanted, distinct_names(wanted), strict=True)}


class WantedName(msgspec.Struct, frozen=True):
    """A name to be made legal, and the text that tells it from others that would become the same."""

    original: str
    hashed: str
    may_stay: bool = True  # where it is legal as it is, and others clash with it


def distinct_names(wanted: Sequence[WantedName]) -> list[str]:
    """A legal name for each: in a clash, and only there, each gets its hash but the one that may stay as it is.

    A name may be chosen to be what a hash makes of another: who clashes then gets another hash, until none do.
    """
    names = found = [legal_name(each.original) for each in wanted]
    stay = [each.may_stay and each.original == name for each, name in zip(wanted, names, strict=True)]
    staying = Counter(name for name, stays in zip(names, stay, strict=True) if stays)
    for turn in range(min(len(wanted), 100)):
        holders = Counter(found)
        if len(holders) == len(found):
            break
        found = [
            now if holders[now] == 1 or (stays and staying[name] == 1) else with_hash(name, each.hashed + " " * turn)
            for each, name, now, stays in zip(wanted, names, found, stay, strict=True)
        ]
    return found


def with_hash(name: str, original: str) -> str:
    """The name, cut to stay within 64 characters, with the first 8 digits of its original's SHA-256."""
    digest = sha256(original.encode("utf-8", "surrogatepass"))
    return f"{name[: MAX_NAME_LENGTH - 9]}_{digest[:8]}"


def json_digest(value: Any) -> str:
    """The SHA-256 of JSON data, however its keys are ordered and its whole numbers written."""
    return sha256(msgspec.json.encode(_with_whole_numbers(value), order="deterministic"))


def _with_whole_numbers(value: Any) -> Any:
    """The value with 1.0 written as 1, which JSON takes for the same number."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _MAX_EXACT_INTEGER else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    return [_with_whole_numbers(each) for each in value] if isinstance(value, list | tuple) else value


_MAX_EXACT_INTEGER: Final = 2**53  # below it every whole number is a float, too


def sha256(text: bytes) -> str:
    import hashlib  # slow to import, and only for digests and clashes

    return hashlib.sha256(text).hexdigest()
