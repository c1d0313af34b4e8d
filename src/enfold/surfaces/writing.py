"""Answers as JSON text: a result that has no such form is a failure, and a failure always has one. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.schema.structs import encode

__all__ = ["UNWRITABLE", "encode", "encode_failure", "encode_result", "unwritable"]


def encode_result(write: Callable[..., Any], envelope: ResponseEnvelope[Any], *beside: Any) -> bytes:
    """The JSON of what `write` makes of an envelope, or the failure to write it, which names a place in its data."""
    try:
        return encode(write(envelope, *beside))
    except UNWRITABLE as error:
        raise unwritable(envelope.data, error) from error


UNWRITABLE: Final = (ValueError, TypeError, RecursionError)


def unwritable(data: Any, error: Exception) -> CallError:
    """The error for a result that has no JSON form."""
    from enfold.schema import plain  # few results cannot

    return plain.unwritable(data, error)


def encode_failure(wire: Any) -> bytes:
    """The JSON of a failure; nothing that a handler put into it can make the answer fail too."""
    try:
        return msgspec.json.encode(wire, enc_hook=str)
    except (ValueError, TypeError, RecursionError):
        from enfold.schema.plain import to_plain_leniently  # few failures need it

        return msgspec.json.encode(to_plain_leniently(wire))
