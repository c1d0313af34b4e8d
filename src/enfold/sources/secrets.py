"""Secrets of a source: supplied by a value or a function, and redacted wherever the service repeats them.


Each source redacts what comes over its wire, as bytes of whole messages: nothing above it has to.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import isawaitable
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

import msgspec

from enfold.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from enfold.envelope.content import content_block
from enfold.errors import CallError
from enfold.observability.log import Log

SHORTEST: Final = 8  # of a secret; a shorter one would be found in texts that have nothing to do with it
MAX_SECRETS: Final = 8  # that are remembered at a time, where they change
HIDDEN: Final = "[hidden]"

_log: Final = Log("enfold.sources")

_SECRET_NAME: Final = re.compile(
    r"token|(?<!mon)key(?!word|board|note)|secret|passw|passphrase|pwd|auth(?!or(?!i[sz]))|credential|cookie|session"
    r"|bearer|jwt|signature|(?<![a-z])(?:pin|pat)(?![a-z])",
    re.IGNORECASE,
)
# Names about a secret: where it is, what it is called, how many there may be.
_HARMLESS_NAME: Final = re.compile(
    r"(?:files?|paths?|dirs?|folders?|names?|types?|modes?|methods?|urls?|uris?|hosts?|ports?|socks?|sockets?|ttl|timeout"
    r"|sizes?|lengths?|counts?|limits?|expiry|expires(?:_in)?|algs?|algorithms?|(?:max|min|num)\w*tokens?)\Z",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(r"-{1,2}([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_HEADER: Final = re.compile(r"([A-Za-z][\w-]*):\s*(\S.*)\Z", re.DOTALL)
# A needless escape of a character, in several layers of JSON.
_ESCAPE: Final = re.compile(rb"\\{1,15}(?:u00(2[013-9a-fA-F]|[346][0-9a-fA-F]|5[0-9abdefABDEF]|7[0-9a-eA-E])|/)")


def names_secret(name: str) -> bool:
    """Whether an argument, a header or a variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None and _HARMLESS_NAME.search(name) is None


class KnownSecrets:
    """The secrets that a source sends; what comes back is redacted."""

    def __init__(self, owner: str = "", limit: int = MAX_SECRETS) -> None:
        """`owner` is the source, for warnings. Of changing secrets, the newest `limit` are remembered."""
        self.owner = owner
        self._limit = limit
        self._changing: dict[str, dict[str, str]] = {}  # by secret, the oldest first: its spellings and their masks
        self._lasting: dict[str, dict[str, str]] = {}
        self._warned: set[str] = set()
        self._texts: tuple[tuple[str, str], ...] = ()  # each spelling, and what is put in its place
        self._bytes: tuple[tuple[bytes, bytes], ...] = ()

    def remember_authorization(self, value: str) -> None:
        """Remember the token in the value of an `Authorization` header, or all of it where it has no scheme."""
        self._remember_header(value, "authorization", lasts=False)

    def remember(self, secret: str, name: str = "", *, lasts: bool = False) -> None:
        """Remember a password, key or token; logs the name of one that is too short to be redacted."""
        if len(secret) < SHORTEST:
            if secret and name and name not in self._warned:
                self._warned.add(name)
                told = "%s: the secret %s has fewer than %d characters and is not redacted"
                _log.warning(told, self.owner or "A source", name, SHORTEST)
            return
        known = self._lasting if lasts else self._changing
        if secret in self._lasting or secret in known:
            return
        known[secret] = dict(_spellings(secret))
        if len(self._changing) > self._limit:
            del self._changing[next(iter(self._changing))]
        every = {
            text: mask for each in (*self._lasting.values(), *self._changing.values()) for text, mask in each.items()
        }
        self._texts = tuple(sorted(every.items(), key=lambda pair: -len(pair[0])))  # one may be part of another
        self._bytes = tuple((text.encode(), mask.encode()) for text, mask in self._texts)

    def remember_named(self, values: Mapping[str, Any], place: str = "", *, lasts: bool = True) -> None:
        """Remember the values among these arguments, headers or variables whose names say that they are secret.

        `place` is the key of the configuration that has them, for warnings.
        """
        for name, value in values.items():
            self._remember_value(name, value, f"{place}.{name}" if place else name, lasts=lasts)

    def _remember_value(self, name: str, value: Any, place: str, *, lasts: bool) -> None:
        if isinstance(value, Mapping):
            for inner, each in value.items():
                self._remember_value(f"{name}.{inner}", each, f"{place}.{inner}", lasts=lasts)
        elif isinstance(value, list | tuple):
            for each in value:
                self._remember_value(name, each, place, lasts=lasts)
        elif isinstance(value, bool) or not isinstance(value, str | int):
            return
        elif name.lower() in ("authorization", "proxy-authorization", "cookie"):
            self._remember_header(str(value), place, lasts=lasts)
        elif isinstance(value, str) and "://" in value:
            self.remember_url(value, place)
        elif names_secret(name):
            self.remember(str(value), place, lasts=lasts)

    def _remember_header(self, value: str, place: str, *, lasts: bool) -> None:
        """Remember a token behind its scheme, the password in `Basic`, or the value of each cookie."""
        scheme, _, token = value.partition(" ")
        if "=" in scheme:
            for cookie in value.split(";"):
                self.remember(cookie.partition("=")[2].strip(), lasts=lasts)
            return
        self.remember(token.strip() or value, place, lasts=lasts)
        if scheme.lower() == "basic":
            with suppress(ValueError):
                self.remember(b64decode(token).decode().partition(":")[2], place, lasts=lasts)

    def remember_url(self, url: str, place: str = "") -> None:
        """Remember the password of a URL, and the parameters of its query whose names say that they are secret."""
        with suppress(ValueError):
            parts = urlsplit(url)
            self.remember(unquote(parts.password or ""), place, lasts=True)
            self.remember_named(dict(parse_qsl(parts.query)), place)

    def remember_words(self, words: Iterable[str], place: str = "") -> None:
        """Remember what a command line has as secrets: `--token=…`, `--api-key …`, `Authorization: …`, URLs."""
        for before, word in pairwise(("", *words)):
            option, header, last = _OPTION.match(word), _HEADER.match(word), _OPTION.match(before)
            if option is not None:
                self.remember_named({option[1]: option[2] or ""}, place)
            elif last is not None and last[2] is None and names_secret(last[1]):
                self.remember_named({last[1]: word}, place)
            elif "://" in word:
                self.remember_url(word, place)
            elif header is not None:
                self.remember_named({header[1]: header[2]}, place)

    def redact_bytes(self, text: bytes) -> bytes:
        r"""JSON or other text with every secret hidden: as it is, with escapes (`\u0074oken`), or in JSON within JSON."""
        for secret, mask in self._bytes:
            if secret in text:
                text = text.replace(secret, mask)
        if not self._bytes or (b"\\u00" not in text and b"\\/" not in text):
            return text
        plain = _ESCAPE.sub(_character, text)
        found = [pair for pair in self._bytes if pair[0] in plain]
        for secret, mask in found:
            plain = plain.replace(secret, mask)
        return plain if found else text

    def redact_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return headers with every secret hidden; most have none."""
        values = "\n".join([value for _, value in headers]) if self._texts else ""
        for secret, _ in self._texts:
            if secret in values:
                return [(name, self.redact(value)) for name, value in headers]
        return headers

    def redact(self, value: Any) -> Any:
        """Return text, bytes or JSON data with every secret hidden."""
        if isinstance(value, str):
            for secret, mask in self._texts:
                value = value.replace(secret, mask)
        elif isinstance(value, bytes):
            return self.redact_bytes(value)
        elif isinstance(value, dict):
            return {self.redact(name): self.redact(item) for name, item in value.items()}
        elif isinstance(value, list):
            return [self.redact(item) for item in value]
        return value

    def redact_result(self, result: Any) -> Any:
        """Return a result with every secret hidden: an envelope with its headers or content, or plain data."""
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


def _spellings(secret: str) -> Iterator[tuple[str, str]]:
    """Return a secret in base64, plain, in an address, in HTML, in JSON and in nested JSON, each with its mask."""
    from html import escape  # slow to import, as `json` is, and most programs have no secrets
    from json import dumps  # as above

    for text in _in_base64(secret.encode("utf-8", "surrogatepass")):
        yield text, "A" * len(text)  # which is base64 again
    mask = "9" * len(secret) if secret.isdecimal() else HIDDEN  # a number stays one
    for text in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), escape(secret)):
        yield text, mask
    for is_ascii in (True, False):
        text = secret
        for _ in range(2):
            text = dumps(text, ensure_ascii=is_ascii)[1:-1]
            yield text, mask


def _in_base64(secret: bytes) -> Iterator[str]:
    """Return what is constant of a secret inside longer base64, for each offset in a group of three bytes."""
    for before, start in ((0, 0), (1, 2), (2, 3)):
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * before + secret)[start : (before + len(secret)) * 8 // 6].decode()


def _character(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)]) if found[1] else b"/"


T = TypeVar("T")

Supplied: TypeAlias = T | Callable[[], T | Awaitable[T]]


async def current(supplied: Supplied[T]) -> T:
    """Return the current value."""
    given = supplied() if callable(supplied) else supplied
    return await given if isawaitable(given) else given
