"""Media types: what content of a type is, and the likely type of content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EVENT_STREAM: Final = "text/event-stream"
LINE_STREAMS: Final = frozenset(
    {
        "application/jsonl",
        "application/x-jsonl",
        "application/json-lines",
        "application/jsonlines",
        "application/x-jsonlines",
        "application/ndjson",
        "application/x-ndjson",
        "application/x-json-stream",
        "application/stream+json",
    }
)
SEQUENCE_STREAMS: Final = frozenset({"application/json-seq", "application/geo+json-seq"})

_TEXT: Final = frozenset({
    "application/ecmascript", "application/graphql", "application/javascript", "application/sql",
    "application/toml", "application/vnd.yaml", "application/x-javascript", "application/x-sh",
    "application/x-www-form-urlencoded", "application/x-yaml", "application/xml", "application/xml-dtd",
    "application/yaml",
})  # fmt: skip


def bare(media_type: str) -> str:
    """Return the type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    kind = bare(media_type)
    if kind in ("application/json", "text/json", "application/x-json"):
        return True
    return kind.endswith("+json") and not is_stream(kind)


def is_yaml(media_type: str) -> bool:
    kind = bare(media_type)
    return kind in ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml") or kind.endswith("+yaml")


def has_fields(media_type: str) -> bool:
    """Whether an object can be written as this type, field by field; JSON is YAML too."""
    return is_json(media_type) or is_form(media_type) or is_multipart(media_type) or is_yaml(media_type)


def is_stream(media_type: str) -> bool:
    kind = bare(media_type)
    return kind == EVENT_STREAM or kind in LINE_STREAMS or kind in SEQUENCE_STREAMS


def is_text(media_type: str) -> bool:
    kind = bare(media_type)
    return kind.startswith("text/") or kind in _TEXT or kind.endswith(("+xml", "+yaml"))


def is_form(media_type: str) -> bool:
    return bare(media_type) == "application/x-www-form-urlencoded"


def is_multipart(media_type: str) -> bool:
    return bare(media_type).startswith("multipart/")


def is_range(media_type: str) -> bool:
    return "*" in bare(media_type)


def is_within(media_type: str, declared: str) -> bool:
    """Whether a media type is the declared one, or lies in the declared range (`image/*`, `*/*`)."""
    kind, wanted = bare(media_type), bare(declared)
    return kind == wanted or wanted in ("*/*", "*") or (wanted.endswith("/*") and kind.startswith(wanted[:-1]))


def is_bytes(media_type: str) -> bool:
    """Whether content of this type, or of any type in this range, is bytes and never text."""
    return bare(media_type).partition("/")[0] in ("image", "audio", "video", "font", "model")


def plainest(declared: str) -> str:
    """Return the plainest type in a range, for unknown content."""
    return _PLAINEST.get(bare(declared).partition("/")[0], "application/octet-stream")


_PLAINEST: Final = {
    "text": "text/plain; charset=utf-8",
    "image": "image/png",
    "audio": "audio/mpeg",
    "video": "video/mp4",
    "font": "font/ttf",
    "model": "model/gltf-binary",
    "message": "message/rfc822",
    "multipart": "multipart/form-data",
}
_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)


def recognized(content: bytes) -> str | None:
    """Recognise the commonest types by their first bytes."""
    if content[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(content[8:12])
    return next((kind for start, kind in _SIGNATURES if content.startswith(start)), None)


def parameter(media_type: str, name: str) -> str | None:
    """Return a parameter of a media type, such as its charset."""
    for part in media_type.split(";")[1:]:
        key, _, value = part.partition("=")
        if key.strip().lower() == name:
            return value.strip().strip('"') or None
    return None


def json_first(media_types: Iterable[str]) -> list[str]:
    """Sort the types: `application/json` first, then other JSON types, then the rest."""
    return sorted(media_types, key=lambda each: 0 if bare(each) == "application/json" else 1 if is_json(each) else 2)
