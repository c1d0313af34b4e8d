"""Redaction of secrets, which are found by schema (`writeOnly`, `format: password`) and by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.compiled import compile_schema
from enfold.schema.json_pointer import escape
from enfold.schema.nodes import Node
from enfold.schema.nodes.traits import nodes_inside, with_all_in_place

REDACTED: Final = "[redacted]"

MAX_DEPTH: Final = 64
# Shorter secrets would match unrelated text by chance.
SHORTEST_SECRET: Final = 4

Nodes: TypeAlias = tuple[Node, ...]


class Redacted(msgspec.Struct, frozen=True):
    """A redacted value, with the locations and values of its secrets for redaction elsewhere."""

    value: Any
    paths: tuple[str, ...] = ()
    secrets: frozenset[str] = frozenset()


def redact(value: Any, schema: Any = None) -> Redacted:
    """Replace every secret in a value; return the same object where there are none."""
    compiled = compile_schema(schema or {})
    walk = _SecretSearch()
    # A value that cannot be inspected is not shown.
    clean = walk.hide(value, "") if compiled.problem else walk.visit(value, (compiled.root,), "", 0)
    return Redacted(clean, tuple(walk.paths), frozenset(walk.secrets)) if walk.paths else Redacted(value)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Replace known secrets in a text."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def redact_locator(locator: str) -> str:
    """Remove credentials from a locator: user, password and secret query arguments."""
    return _ARGUMENT.sub(_redact_argument, _USER.sub(r"\1", locator))


_USER: Final = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")
_ARGUMENT: Final = re.compile(r"(?<=[?&#;])([^=?&#;]+)=[^?&#;]+")


def _redact_argument(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if is_secret_name(found[1]) else found[0]


# --- by name ------------------------------------------------------------------------------------------------------

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS: Final = frozenset({
    "apikey", "authorization", "bearer", "cookie", "credential", "cvc", "cvv", "jwt", "otp", "passcode",
    "passphrase", "passwd", "password", "pin", "pwd", "secret", "ssn", "token",
})  # fmt: skip
_PLURALS: Final = _SECRET_WORDS | {"key"}
_QUANTITIES: Final = frozenset([
    "max", "min", "total", "num", "n", "count", "limit", "budget", "used", "prompt", "completion", "input",
    "output", "cached", "reasoning", "context", "per",
])  # fmt: skip
_SECRET_KEYS: Final = frozenset({"api", "private", "access", "secret", "signing", "encryption", "ssh", "auth"})


def is_secret_name(name: str) -> bool:
    """Whether a name suggests a secret: `password`, `apiKeys`, `client-secret`, `X-Auth-Token`."""
    words = [word.lower() for word in _WORD.findall(name)]
    if "tokens" in words and not _QUANTITIES.isdisjoint(words):
        return False  # the number of tokens a model may use
    words = [word.removesuffix("s") if word.removesuffix("s") in _PLURALS else word for word in words]
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    return any(second == "key" and first in _SECRET_KEYS for first, second in pairwise(words))


# --- walking a value beside its schema ----------------------------------------------------------------------------


class _SecretSearch:
    """One traversal of a value that collects its secrets and their locations."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.secrets: set[str] = set()

    def visit(self, value: Any, nodes: Nodes, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return self.hide(value, path)  # As above.
        known = tuple(dict.fromkeys(part for node in nodes for part in with_all_in_place(node)))
        if any(node.is_secret for node in known):
            return self.hide(value, path)
        if isinstance(value, Mapping):
            return self._visit_object(value, known, path, depth)
        if isinstance(value, list | tuple):
            return [
                self.visit(item, _inside(known, index), f"{path}/{index}", depth + 1)
                for index, item in enumerate(value)
            ]
        return value

    def _visit_object(self, value: Mapping[str, Any], nodes: Nodes, path: str, depth: int) -> dict[str, Any]:
        clean = {}
        for key, item in value.items():
            below = f"{path}/{escape(key)}"
            if is_secret_name(key) and not (item is None or isinstance(item, bool)):
                clean[key] = self.hide(item, below)
            else:
                clean[key] = self.visit(item, _inside(nodes, key), below, depth + 1)
        return clean

    def hide(self, value: Any, path: str) -> str:
        self.paths.append(path)
        self.secrets.update(text for text in _leaf_texts(value) if len(text) >= SHORTEST_SECRET)
        return REDACTED


def _inside(nodes: Nodes, step: str | int) -> Nodes:
    return tuple(part for node in nodes for part in nodes_inside(node, step))


def _leaf_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaf_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaf_texts(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
