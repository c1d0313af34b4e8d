"""Secrets kept out of what a service answers: it may repeat them, in links to the next page or in its errors. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from enfold.content import content_block
from enfold.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from enfold.errors import CallError

SHORTEST: Final = 8  # of a secret; a shorter one would be found in texts that have nothing to do with it
HIDDEN: Final = "[hidden]"
_SECRET_NAME: Final = re.compile(r"token|key|secret|passw|auth|credential", re.IGNORECASE)


def secrets_among(arguments: Mapping[str, Any]) -> frozenset[str]:
    """The texts whose arguments are called by what is secret, as they are and as they stand in addresses."""
    found = (value for name, value in arguments.items() if _SECRET_NAME.search(name) and isinstance(value, str))
    return frozenset(way(each) for each in found if len(each) >= SHORTEST for way in _SPELLINGS)


# As it is, and as it stands in an address.
_SPELLINGS: Final = (str, quote, partial(quote, safe=""), quote_plus)


def without_echoes(result: Any, secrets: frozenset[str]) -> Any:
    """A result without the secrets: an envelope with its headers or content, or plain data."""
    if not secrets:
        return result
    if not isinstance(result, ResponseEnvelope):
        return _clean(result, secrets)
    meta = result.meta
    if isinstance(meta, HTTPResponseMeta):
        meta = msgspec.structs.replace(meta, headers=_clean(meta.headers, secrets))
    elif isinstance(meta, MCPResponseMeta):
        blocks = tuple(content_block(_clean(block.to_wire(), secrets)) for block in meta.content)
        structured, own = _clean(meta.structured_content, secrets), _clean(meta._meta, secrets)
        meta = msgspec.structs.replace(meta, content=blocks, structured_content=structured, _meta=own)
    return msgspec.structs.replace(result, data=_clean(result.data, secrets), meta=meta)


def hide_echoes(error: CallError, secrets: frozenset[str]) -> None:
    error.message, error.details = _clean(error.message, secrets), _clean(error.details, secrets)


def _clean(value: Any, secrets: frozenset[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
    elif isinstance(value, bytes):
        for secret in secrets:
            value = value.replace(secret.encode(), HIDDEN.encode())
    elif isinstance(value, dict):
        return {_clean(name, secrets): _clean(item, secrets) for name, item in value.items()}
    elif isinstance(value, list):
        return [_clean(item, secrets) for item in value]
    return value
