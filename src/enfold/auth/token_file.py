"""Token files: created, listed and revoked from the command line, and reloaded when they change.

A file contains only hashes; a token is shown once, when it is created.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from enfold.auth.tokens import TokenEntry, Tokens, digest_of, hash_token, new_token, wrong_shape
from enfold.observability.log import Log
from enfold.operations import Identity
from enfold.operations.access import words
from enfold.storage import FileVersion, file_version, replace_file, try_lock

SHOWN: Final = 8  # digits of its hash that identify a token
LOCK_PAUSE: Final = 0.01  # seconds between two attempts to lock the file
_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}

_log: Final = Log("enfold.auth.tokens")


class FileEntry(TokenEntry, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token of a file: its hash and expiry."""

    expires: str | None = None  # RFC 3339

    @property
    def short(self) -> str:
        """The id for revocation."""
        return self.token.removeprefix("sha256:")[:SHOWN]

    @property
    def ends(self) -> float:
        """The expiry in Unix seconds."""
        return float("inf") if self.expires is None else datetime.fromisoformat(self.expires).timestamp()


# --- what the command does ----------------------------------------------------------------------------------------


def add_token(
    path: Path,
    id: str,
    *,
    scopes: Iterable[str] = (),
    resources: dict[str, list[str]] | None = None,
    seconds: float | None = None,
    now: float | None = None,
) -> str:
    """Create a token and store its hash in the file. Returns the token, which cannot be shown again."""
    if not id or not id.isprintable():
        raise ValueError("A token requires the id of its owner, in printable characters")
    token = new_token()
    entry = FileEntry(id, hash_token(token), sorted(set(words(scopes))), resources, _expiry(seconds, now))
    with _rewriting(path) as entries:
        entries.append(entry)
    return token


def _expiry(seconds: float | None, now: float | None) -> str | None:
    if seconds is None:
        return None
    start = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return (start + timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def list_tokens(path: Path) -> list[FileEntry]:
    """Return the tokens of a file: hashes, owners and permissions."""
    return read_entries(path.read_bytes(), str(path))


def revoke_tokens(path: Path, which: str) -> list[FileEntry]:
    """Remove the tokens of an id, or the one with this hash prefix; return what was removed."""
    with _rewriting(path) as entries:
        gone = [entry for entry in entries if which in (entry.id, entry.token, entry.short)]
        entries[:] = [entry for entry in entries if entry not in gone]
    return gone


def read_duration(text: str) -> float:
    """Return the seconds of `90d`, `12h`, `30m`, `2w`."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal() or not 0 < int(number) <= 100_000:
        raise ValueError(f"{text!r} is not a duration: use 30m, 12h, 90d or 2w")
    return float(int(number) * _UNITS[unit])


def read_resources(texts: Iterable[str]) -> dict[str, list[str]] | None:
    """Parse `--resource project:42=read,list`; None without values."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, actions = text.partition("=")
        named = [action for action in actions.split(",") if action]
        if ":" not in name or not named:
            raise ValueError(f"{text!r} is not a resource: use type:id=action,action")
        found.setdefault(name, []).extend(named)
    return found or None


# --- the file -----------------------------------------------------------------------------------------------------


def read_entries(text: bytes, where: str) -> list[FileEntry]:
    """Read the entries of a file; raise ValueError, without any part of a token, if it is malformed."""
    try:
        entries = msgspec.json.decode(text, type=list[FileEntry])
        for entry in entries:
            _check(entry)
    except msgspec.DecodeError as error:
        raise ValueError(wrong_shape(where, error)) from None  # without the context, which may show a token
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return entries


def _check(entry: FileEntry) -> None:
    if not entry.token.startswith("sha256:"):
        advice = f"replace it by its hash {hash_token(entry.token)}"
        raise ValueError(f"the token of {entry.id} is in plain text: {advice}")
    digest_of(entry.token)
    try:
        has_zone = entry.expires is None or datetime.fromisoformat(entry.expires).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        raise ValueError(f"the expiry of the token of {entry.id} is not an RFC 3339 time with a time zone")


@contextmanager
def _rewriting(path: Path) -> Iterator[list[FileEntry]]:
    """Yield the entries of a locked file for changes; the file is replaced at the end."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        while try_lock(lock.fileno()) is False:
            time.sleep(LOCK_PAUSE)
        entries = read_entries(path.read_bytes(), str(path)) if path.exists() else []
        yield entries
        text = msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"
        replace_file(path, text)


class TokenFile:
    """Verifies the tokens in a file, which is reloaded when it changes."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        """Raises ValueError for a malformed file; if a later version is malformed, the previous tokens stay valid."""
        self._path = Path(path)
        self._clock = clock
        self._version = file_version(path)  # before reading, so that a concurrent change is detected
        self._entries = list_tokens(self._path)
        self._drop_expired()

    def identify(self, token: str) -> Identity | None:
        """Return the current identity of a token."""
        return self._current().identify(token)

    def known(self, identity_id: str) -> Identity | None:
        """Return the permissions of all tokens of an identity; None if it has none."""
        return self._current().known(identity_id)

    def _current(self) -> Tokens:
        version = file_version(self._path)
        if version != self._version:
            self._read(version)
        if self._clock() >= self._until:
            self._drop_expired()
        return self._tokens

    def examine(self, token: str) -> tuple[Identity | None, str]:
        """Return the identity of a token, or the reason why there is none."""
        identity = self.identify(token)
        known = [entry for entry in self._entries if entry.token == hash_token(token)]
        if identity is None and known:
            return None, f"rejected by {self._path}: the token of {known[0].id} expired at {known[0].expires}"
        return identity, f"rejected by {self._path}: unknown token"

    def _read(self, version: FileVersion) -> None:
        self._version = version
        try:
            self._entries = [] if version is None else list_tokens(self._path)
        except (OSError, ValueError) as error:
            _log.error("The token file was not reloaded, the previous tokens stay valid: %s", error)
            return
        self._drop_expired()

    def _drop_expired(self) -> None:
        now = self._clock()
        good = [entry for entry in self._entries if entry.ends > now]
        self._until = min((entry.ends for entry in good), default=float("inf"))
        self._tokens = Tokens([(entry.token, entry.identity) for entry in good])

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<TokenFile of {len(self)} tokens>"
