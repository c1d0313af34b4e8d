"""Results that are too long for a model, cut so that they stay valid JSON: lists at their end, long texts. Pure functions."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from enfold.content import TextContent, json_text
from enfold.costs import BYTES_PER_TOKEN, estimate_tokens
from enfold.envelope import MCPResponseMeta, ResponseEnvelope
from enfold.json_pointer import escape
from enfold.schema.check import compile_schema

Missing: TypeAlias = dict[str, Any]

ADVICE: Final = (
    "Ask for fewer fields (select), for fewer items, or for the next ones, where the operation has an argument for it."
)
_LEAST_TEXT: Final = 40  # characters of a text that stay
_MAX_REPORTED: Final = 20  # places that are named


def limit_result(
    envelope: ResponseEnvelope[Any], most: int, promised: dict[str, Any] | None
) -> tuple[ResponseEnvelope[Any], Missing]:
    """The envelope within so many tokens, as they are estimated, and what is missing; whole where its schema wants it whole."""
    data = msgspec.json.decode(envelope.data) if isinstance(envelope.data, msgspec.Raw) else envelope.data
    if isinstance(data, bytes) or envelope.is_error or estimate_tokens(_json(data)) <= most:
        return envelope, {}
    cutting = _Cutting()
    shorter = cutting.cut(data, most * BYTES_PER_TOKEN, "")
    if not cutting.places or (promised is not None and not compile_schema(promised).check(shorter)):
        return envelope, {}
    missing = {"places": cutting.places[:_MAX_REPORTED], "advice": ADVICE}
    return _with_data(envelope, shorter), missing


def _with_data(envelope: ResponseEnvelope[Any], data: Any) -> ResponseEnvelope[Any]:
    meta = envelope.meta
    if not isinstance(meta, MCPResponseMeta):
        return msgspec.structs.replace(envelope, data=data)
    others = tuple(block for block in meta.content if not isinstance(block, TextContent))
    if meta.structured_content is msgspec.UNSET:
        texts = [each for each in data if isinstance(each, dict) and each.get("type") == "text"]
        content = (*(TextContent(text=str(each.get("text", ""))) for each in texts), *others)
        return msgspec.structs.replace(envelope, data=data, meta=msgspec.structs.replace(meta, content=content))
    changed = msgspec.structs.replace(
        meta, content=(TextContent(text=json_text(data)), *others), structured_content=data
    )
    return msgspec.structs.replace(envelope, data=data, meta=changed)


def _json(data: Any) -> bytes:
    try:
        return msgspec.json.encode(data)
    except (ValueError, TypeError, RecursionError):  # it cannot be written at all, which is told elsewhere
        return b""


class _Cutting:
    """Cuts one value, and notes where."""

    def __init__(self) -> None:
        self.places: list[dict[str, Any]] = []

    def cut(self, value: Any, room: float, path: str) -> Any:
        """The value in so many bytes, or as near to it as its structure allows."""
        if len(_json(value)) <= room:
            return value
        if isinstance(value, str):
            return self._cut_text(value, room, path)
        if isinstance(value, list):
            return self._cut_list(value, room, path)
        return self._cut_object(value, room, path) if isinstance(value, dict) else value

    def _cut_text(self, text: str, room: float, path: str) -> str:
        kept = max(_LEAST_TEXT, int(room * len(text) / len(_json(text))))
        if kept >= len(text):
            return text
        self.places.append({"path": path, "characters": kept, "of": len(text)})
        return f"{text[:kept]}…"

    def _cut_list(self, items: list[Any], room: float, path: str) -> list[Any]:
        kept: list[Any] = []
        left = room - 2
        for place, item in enumerate(items):
            size = len(_json(item)) + 1
            if size > left:
                if not kept:  # the first at least, as far as it goes
                    kept.append(self.cut(item, left, f"{path}/{place}"))
                break
            kept.append(item)
            left -= size
        if len(kept) < len(items):
            self.places.append({"path": path, "items": len(kept), "of": len(items)})
        return kept

    def _cut_object(self, entries: dict[str, Any], room: float, path: str) -> dict[str, Any]:
        """Every entry, the small ones whole; the large ones share what room is left."""
        sizes = {name: len(_json(value)) for name, value in entries.items()}
        left = room - sum(len(_json(name)) + 2 for name in entries)
        shares: dict[str, float] = {}
        for count, name in enumerate(sorted(sizes, key=lambda each: sizes[each])):
            shares[name] = min(sizes[name], max(0.0, left) / (len(sizes) - count))
            left -= shares[name]
        return {name: self.cut(value, shares[name], f"{path}/{escape(name)}") for name, value in entries.items()}
