"""Secrets that a service repeats in its answers, in links to the next page or in its errors, hidden from callers. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from enfold.content import content_block
from enfold.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from enfold.errors import CallError

SHORTEST: Final = 8  # of a secret; a shorter one would be found in texts that have nothing to do with it
MAX_SECRETS: Final = 8  # that are remembered at a time, where they change
HIDDEN: Final = "[hidden]"

_SECRET_NAME: Final = re.compile(r"token|key|secret|passw|auth|credential", re.IGNORECASE)
# An escape of a letter that needs none, in as many layers of JSON as anybody would read.
_ESCAPE: Final = re.compile(rb"\\{1,15}(?:u00(2[013-9a-fA-F]|[346][0-9a-fA-F]|5[0-9abdefABDEF]|7[0-9a-eA-E])|/)")


class KnownSecrets:
    """The secrets that a service was sent of late; what it answers is redacted before anybody else sees it."""

    def __init__(self, limit: int = MAX_SECRETS) -> None:
        self._limit = limit
        self._spellings: dict[str, tuple[str, ...]] = {}  # of each secret, the oldest first
        self._texts: tuple[str, ...] = ()
        self._bytes: tuple[bytes, ...] = ()

    def remember_authorization(self, value: str) -> None:
        """Remember the token in the value of an `Authorization` header, or all of it where it has no scheme."""
        self.remember(value.partition(" ")[2] or value)

    def remember(self, secret: str) -> None:
        """Remember a password, a key or a token."""
        if secret in self._spellings or len(secret) < SHORTEST:
            return
        self._spellings[secret] = tuple(_spellings(secret))
        if len(self._spellings) > self._limit:
            del self._spellings[next(iter(self._spellings))]
        self._texts = tuple(dict.fromkeys(text for each in self._spellings.values() for text in each))
        self._bytes = tuple(map(str.encode, self._texts))

    def remember_named(self, values: Mapping[str, Any]) -> None:
        """Remember the texts among these arguments or headers whose names say that they are secret."""
        for name, value in values.items():
            if isinstance(value, str) and name.lower() == "authorization":
                self.remember_authorization(value)
            elif isinstance(value, str) and _SECRET_NAME.search(name):
                self.remember(value)

    def redact_bytes(self, text: bytes) -> bytes:
        r"""JSON or other text with every secret hidden: as it is, with escapes (`\u0074oken`), or in JSON within JSON."""
        for secret in self._bytes:
            text = text.replace(secret, HIDDEN.encode())
        if not self._bytes or (b"\\u00" not in text and b"\\/" not in text):
            return text
        plain = _ESCAPE.sub(_character, text)
        found = [secret for secret in self._bytes if secret in plain]
        for secret in found:
            plain = plain.replace(secret, HIDDEN.encode())
        return plain if found else text

    def redact_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Headers with every secret hidden; most have none."""
        values = "\n".join([value for _, value in headers]) if self._texts else ""
        for secret in self._texts:
            if secret in values:
                return [(name, self.redact(value)) for name, value in headers]
        return headers

    def redact(self, value: Any) -> Any:
        """A text, bytes or JSON data with every secret hidden."""
        if isinstance(value, str):
            for secret in self._texts:
                value = value.replace(secret, HIDDEN)
        elif isinstance(value, bytes):
            return self.redact_bytes(value)
        elif isinstance(value, dict):
            return {self.redact(name): self.redact(item) for name, item in value.items()}
        elif isinstance(value, list):
            return [self.redact(item) for item in value]
        return value

    def redact_result(self, result: Any) -> Any:
        """A result with every secret hidden: an envelope with its headers or content, or plain data."""
        if not self._texts:
            return result
        if not isinstance(result, ResponseEnvelope):
            return self.redact(result)
        meta = result.meta
        if isinstance(meta, HTTPResponseMeta):
            meta = msgspec.structs.replace(meta, headers=self.redact(meta.headers))
        elif isinstance(meta, MCPResponseMeta):
            blocks = tuple(content_block(self.redact(block.to_wire())) for block in meta.content)
            structured, own = self.redact(meta.structured_content), self.redact(meta._meta)
            meta = msgspec.structs.replace(meta, content=blocks, structured_content=structured, _meta=own)
        return msgspec.structs.replace(result, data=self.redact(result.data), meta=meta)

    @contextmanager
    def hidden_in_errors(self) -> Iterator[None]:
        """Hide every secret in an error that is raised inside."""
        try:
            yield
        except CallError as error:
            error.message, error.details = self.redact(error.message), self.redact(error.details)
            raise


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it is, in an address, in JSON, and in JSON within JSON."""
    from json import dumps  # slow to import, and most programs have no secrets

    yield from (secret, quote(secret), quote(secret, safe=""), quote_plus(secret))
    for is_ascii in (True, False):
        text = secret
        for _ in range(2):
            text = dumps(text, ensure_ascii=is_ascii)[1:-1]
            yield text


def _character(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)]) if found[1] else b"/"
