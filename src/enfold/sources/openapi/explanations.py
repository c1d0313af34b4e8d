"""What an upstream says about its own failure: one line for a person or a model, from JSON, HTML, XML or text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from typing import Any, Final

import msgspec

from enfold.sources.openapi import media

MAX_LENGTH: Final = 300

_MAX_ERRORS: Final = 5
_MAX_DEPTH: Final = 4
_MAX_BYTES: Final = 1_000_000
_WORDS: Final = ("detail", "title", "message", "error")
_OTHER_WORDS: Final = (
    "error_description",
    "error_message",
    "errormessage",
    "errordescription",
    "msg",
    "description",
    "reason",
    "fault",
    "faultstring",
    "status",
)
_TITLE: Final = re.compile(r"<title[^<>]*>([^<]*)</title", re.IGNORECASE)
_XML_WORD: Final = re.compile(
    r"<(?:\w+:)?(?:detail|title|message|error|description|faultstring|reason)(?:\s[^<>]*)?>([^<]+)<", re.IGNORECASE
)
_HTML: Final = re.compile(r"\s*<(?:!doctype html|html|head|body)\b", re.IGNORECASE)


def explanation(content: bytes, content_type: str) -> str:
    """The upstream's own words, at most 300 characters of one line; empty where it has none."""
    text = content[:_MAX_BYTES].decode("utf-8", "replace")
    if media.bare(content_type) in ("text/html", "application/xhtml+xml") or _HTML.match(text):
        return _line(_first(_TITLE, text))
    if text.lstrip().startswith("<"):
        return _line(_first(_XML_WORD, text))
    try:
        return _line(_words(msgspec.json.decode(text), 0))
    except (msgspec.DecodeError, RecursionError):
        is_text = not content_type or media.is_text(content_type)
        return _line(text[: 4 * MAX_LENGTH]) if is_text and "\ufffd" not in text[: 4 * MAX_LENGTH] else ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return unescape(found[1]) if found else ""


def _line(text: str) -> str:
    shown = "".join(each if each.isprintable() else " " for each in text[: 10 * MAX_LENGTH])
    line = " ".join(shown.split())
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…"


def _words(value: Any, depth: int) -> str:
    """The explanation in a JSON value, wherever common servers put it."""
    if isinstance(value, str):
        return value
    if depth >= _MAX_DEPTH:
        return ""
    if isinstance(value, list):
        return _joined(_item(each, depth) for each in value[:_MAX_ERRORS])
    return _of_object({str(key).lower(): each for key, each in value.items()}, depth) if isinstance(value, dict) else ""


def _of_object(value: Mapping[str, Any], depth: int) -> str:
    main = _named(value, _WORDS, depth)
    each = _errors(value.get("errors"), depth)
    if main and each:
        return main if each in main else f"{main.rstrip('.:')}: {each}"
    if main and " " not in main and isinstance(value.get("error_description"), str):
        return f"{main}: {value['error_description']}"  # OAuth: a code, and what it means
    return main or each or _named(value, _OTHER_WORDS, depth)


def _named(value: Mapping[str, Any], words: Iterable[str], depth: int) -> str:
    return next((text for word in words if (text := _words(value.get(word), depth + 1).strip())), "")


def _errors(value: Any, depth: int) -> str:
    """A list of errors, or errors by the name of what is wrong."""
    if isinstance(value, dict) and not any(isinstance(value.get(word), str) for word in _WORDS):
        named = list(value.items())[:_MAX_ERRORS]
        return _joined(f"{name}: {text}" for name, each in named if (text := _words(each, depth + 1)))
    return _words(value, depth + 1)


def _item(value: Any, depth: int) -> str:
    """One of several errors, with the name of what is wrong where it has one."""
    text = _words(value, depth + 1)
    if not isinstance(value, dict):
        return text
    where = next((value[key] for key in ("loc", "field", "path", "property", "param", "name") if value.get(key)), "")
    place = ".".join(map(str, where)) if isinstance(where, list) else str(where)
    text = text or str(value.get("code") or value.get("type") or "")
    return f"{place}: {text}" if place and text and place not in text else text


def _joined(texts: Iterator[str]) -> str:
    return "; ".join(text for text in texts if text)
