"""What must not be seen: secrets found by schema (`writeOnly`, `format: password`) and by name, taken out of a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

__all__ = ["REDACTED", "Redacted", "is_secret_name", "redact", "redact_locator", "scrub"]

REDACTED: Final = "[redacted]"

MAX_DEPTH: Final = 64
# A shorter secret would be found by chance in texts that have nothing to do with it.
SHORTEST_SECRET: Final = 4

Schemas: TypeAlias = tuple[Any, ...]


class Redacted(msgspec.Struct, frozen=True):
    """A value without its secrets: where they were, and what they were, so that they can be kept out elsewhere."""

    value: Any
    paths: tuple[str, ...] = ()
    secrets: frozenset[str] = frozenset()


def redact(value: Any, schema: Any = None) -> Redacted:
    """The value with every secret replaced; one without secrets is returned as the same object."""
    walk = _Walk(schema)
    clean = walk.visit(value, (schema,) if schema else (), "", 0)
    return Redacted(clean, tuple(walk.paths), frozenset(walk.secrets)) if walk.paths else Redacted(value)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """A text in which no known secret stands."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def redact_locator(locator: str) -> str:
    """A locator without the credentials that an address may carry: user and password, secret query arguments."""
    return _ARGUMENT.sub(_redact_argument, _USER.sub(r"\1", locator))


_USER: Final = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")
_ARGUMENT: Final = re.compile(r"(?<=[?&#;])([^=?&#;]+)=[^?&#;]+")


def _redact_argument(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if is_secret_name(found[1]) else found[0]


# --- by name ------------------------------------------------------------------------------------------------------

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS: Final = frozenset(
    {
        "apikey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "cvc",
        "cvv",
        "jwt",
        "otp",
        "passcode",
        "passphrase",
        "passwd",
        "password",
        "pin",
        "pwd",
        "secret",
        "ssn",
        "token",
    }
)
_PLURALS: Final = _SECRET_WORDS | {"key"}
_QUANTITIES: Final = frozenset(
    [
        "max",
        "min",
        "total",
        "num",
        "n",
        "count",
        "limit",
        "budget",
        "used",
        "prompt",
        "completion",
        "input",
        "output",
        "cached",
        "reasoning",
        "context",
        "per",
    ]
)
_SECRET_KEYS: Final = frozenset({"api", "private", "access", "secret", "signing", "encryption", "ssh", "auth"})


def is_secret_name(name: str) -> bool:
    """Whether a name, in any spelling, promises a secret: `password`, `apiKeys`, `client-secret`, `X-Auth-Token`."""
    words = [word.lower() for word in _WORD.findall(name)]
    if "tokens" in words and not _QUANTITIES.isdisjoint(words):
        return False  # how many a model may use
    words = [word.removesuffix("s") if word.removesuffix("s") in _PLURALS else word for word in words]
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    return any(second == "key" and first in _SECRET_KEYS for first, second in pairwise(words))


# --- walking a value beside its schema ----------------------------------------------------------------------------


class _Walk:
    """One walk through a value: collects where secrets were, and what they were."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.paths: list[str] = []
        self.secrets: set[str] = set()

    def visit(self, value: Any, schemas: Schemas, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return self._hide(value, path)  # What is too deep to be looked at is not shown either.
        known = tuple(self._expand(schemas))
        if any(_is_secret_schema(schema) for schema in known):
            return self._hide(value, path)
        if isinstance(value, Mapping):
            return self._visit_object(value, known, path, depth)
        if isinstance(value, list | tuple):
            return [
                self.visit(item, _item_schemas(known, index), f"{path}/{index}", depth + 1)
                for index, item in enumerate(value)
            ]
        return value

    def _visit_object(self, value: Mapping[str, Any], schemas: Schemas, path: str, depth: int) -> dict[str, Any]:
        clean = {}
        for key, item in value.items():
            below = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if is_secret_name(key) and not (item is None or isinstance(item, bool)):
                clean[key] = self._hide(item, below)
            else:
                clean[key] = self.visit(item, _property_schemas(schemas, key), below, depth + 1)
        return clean

    def _hide(self, value: Any, path: str) -> str:
        self.paths.append(path)
        self.secrets.update(text for text in _leaf_texts(value) if len(text) >= SHORTEST_SECRET)
        return REDACTED

    def _expand(self, schemas: Schemas) -> Iterator[Mapping[str, Any]]:
        """The schemas themselves and those they refer to or are put together from, each once."""
        waiting, seen = list(schemas), set()
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            for keyword in ("allOf", "anyOf", "oneOf"):
                waiting.extend(_as_list(schema.get(keyword)))
            waiting.extend(schema.get(keyword) for keyword in ("if", "then", "else"))
            waiting.append(_refer(self.root, schema.get("$ref")))


def _is_secret_schema(schema: Mapping[str, Any]) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _property_schemas(schemas: Schemas, key: str) -> Schemas:
    return tuple(found for schema in schemas for found in _property_schemas_of(schema, key))


def _property_schemas_of(schema: Mapping[str, Any], key: str) -> Iterator[Any]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        yield properties[key]
    else:
        yield schema.get("additionalProperties")
    patterns = schema.get("patternProperties")
    # Whether a stranger's pattern matches is not worth a risk here: each of them may be the one.
    yield from patterns.values() if isinstance(patterns, Mapping) else ()


def _item_schemas(schemas: Schemas, index: int) -> Schemas:
    return tuple(found for schema in schemas for found in _item_schemas_of(schema, index))


def _item_schemas_of(schema: Mapping[str, Any], index: int) -> Iterator[Any]:
    items, prefix = schema.get("items"), _as_list(schema.get("prefixItems"))
    fixed = prefix or _as_list(items)  # A list of items is how older drafts write a tuple.
    if index < len(fixed):
        yield fixed[index]
    elif isinstance(items, Mapping):
        yield items
    yield schema.get("additionalItems")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _refer(root: Any, reference: Any) -> Any:
    """The part of the document that a local reference names; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


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
