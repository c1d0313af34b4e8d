"""Tokens kept out of what a server says, however it spells them in JSON. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

SHORTEST: Final = 8  # of a token; a shorter one would be found in texts that have nothing to do with it
HIDDEN: Final = b"[token]"
MOST: Final = 4  # the newest token and the one before, each in two spellings


class KnownSecrets:
    """The tokens that a server was sent of late, to keep them out of what it says."""

    def __init__(self) -> None:
        self._newest = ""
        self._secrets: tuple[bytes, ...] = ()

    def remember(self, authorization: str) -> None:
        """Remember the value of an `Authorization` header."""
        if authorization != self._newest:
            self._newest = authorization
            self._secrets = (*secrets_in(authorization), *self._secrets)[:MOST]

    def censored(self, text: bytes) -> bytes:
        """What the server says, without our tokens, which callers of its operations must not see."""
        return without_secrets(text, self._secrets)


def without_secrets(text: bytes, secrets: Collection[bytes]) -> bytes:
    r"""The text with every secret replaced: as it is, with escapes (`\u0074oken`), or in JSON within JSON."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    if b"\\u00" not in text and b"\\/" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    found = [secret for secret in secrets if secret in plain]
    for secret in found:
        plain = plain.replace(secret, HIDDEN)
    return plain if found else text


def secrets_in(authorization: str) -> tuple[bytes, ...]:
    """What is secret in the value of an `Authorization` header: all of it, and the token without its scheme."""
    found = (authorization, authorization.partition(" ")[2])
    return tuple(each.encode() for each in found if len(each) >= SHORTEST)


# An escape of a letter that needs none, in as many layers of JSON as anybody would read.
_ESCAPE: Final = re.compile(rb"\\{1,15}(?:u00(2[013-9a-fA-F]|[346][0-9a-fA-F]|5[0-9abdefABDEF]|7[0-9a-eA-E])|/)")


def _character(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)]) if found[1] else b"/"
