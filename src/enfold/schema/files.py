"""Files in types and JSON Schemas: which values are bytes, written as base64 text, and of which media type."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.keywords import properties_of
from enfold.schema.nodes.reference import opened

__all__ = [
    "FileArgument",
    "MediaType",
    "as_base64",
    "bytes_schemas",
    "file_argument",
    "file_arguments",
    "media_types",
    "never_blank",
    "only_files",
]

Schema: TypeAlias = dict[str, Any]

_WORD: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE: Final = re.compile(rf'{_WORD}/{_WORD}(?:\s*;\s*{_WORD}=(?:{_WORD}|"[^"\\\x00-\x1f\x7f]*"))*')
_DEEPEST: Final = 3
_OF_CERTAIN_TEXT: Final = frozenset({"const", "contentEncoding", "enum", "format", "minLength", "pattern"})
_FIELDS: Final = frozenset({"data", "filename"})  # of an object that stands for a file


class MediaType(msgspec.Struct, frozen=True):
    """The media type of bytes: `Annotated[bytes, MediaType("image/png")]`.

    Over HTTP, a result with a media type is sent unencoded to callers who accept that type. Over MCP it is an image, audio or
    resource block. An argument may have a range, such as `image/*`.
    """

    name: str

    def __post_init__(self) -> None:
        if not is_media_type(self.name):
            raise ValueError(f"{self.name!r} is not a media type such as image/png")

    @property
    def is_range(self) -> bool:
        return "*" in self.name.partition(";")[0]

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Schema:
        return {**handler(core), "contentMediaType": self.name}


def is_media_type(text: str) -> bool:
    """Whether a text is a media type or a range of them, and can be sent in a header."""
    return len(text) <= 255 and _MEDIA_TYPE.fullmatch(text) is not None


def as_base64(content: bytes | bytearray | memoryview) -> str:
    """Encode bytes as JSON data has them."""
    return b2a_base64(content, newline=False).decode()


class FileArgument(msgspec.Struct, frozen=True):
    """How an argument takes the content of a file."""

    media_type: str | None = None
    is_list: bool = False  # an array of files
    is_object: bool = False  # it may be an object that also has `filename` and `content_type`

    def value(
        self, content: bytes | bytearray | memoryview, filename: str | None, content_type: str | None = None
    ) -> Any:
        """Return one file as the argument takes it."""
        data = as_base64(content)
        if not self.is_object or not filename:
            return data
        return {"data": data, "filename": filename, **({"content_type": content_type} if content_type else {})}


def file_arguments(schema: Schema) -> dict[str, FileArgument]:
    """Return the arguments of an input schema that take files, by name."""
    found = {name: file_argument(part, schema) for name, part in properties_of(opened(schema, schema)).items()}
    return {name: each for name, each in found.items() if each is not None}


def file_argument(part: Any, root: Schema) -> FileArgument | None:
    """Return how a part of a schema takes a file; None where it takes no bytes, or takes other text as well."""
    variants = list(_variants(part, root))
    if any(_is_text(each) for each in variants):
        return None
    own = next((each for each in variants if _is_bytes(each)), None)
    if own is not None:
        is_object = any(properties_of(each).keys() >= _FIELDS for each in variants)
        return FileArgument(own.get("contentMediaType"), is_object=is_object)
    for each in variants:
        item = file_argument(each["items"], root) if each.get("type") == "array" and "items" in each else None
        if item is not None and not item.is_list:
            return msgspec.structs.replace(item, is_list=True)
    return None


def never_blank(schema: Schema) -> set[str]:
    """Return the arguments of an input schema for which an empty text is no value: all but those that may be any text."""
    return {name for name, part in properties_of(opened(schema, schema)).items() if not _takes_any_text(part, schema)}


def media_types(schema: Any) -> tuple[str, ...]:
    """Return the media types of the bytes that a schema allows at its root."""
    return tuple(each["contentMediaType"] for each in bytes_schemas(schema) if "contentMediaType" in each)


def only_files(schema: Any) -> bool:
    """Whether every value that a schema allows is a file of a declared media type, or null."""
    if not isinstance(schema, dict):
        return False
    variants = [each for each in _variants(schema, schema) if each.get("type") != "null"]
    return bool(variants) and all(_is_bytes(each) and "contentMediaType" in each for each in variants)


def bytes_schemas(schema: Any) -> list[Schema]:
    """Return the variants of a schema that are bytes, as base64 text."""
    return [each for each in _variants(schema, schema) if _is_bytes(each)] if isinstance(schema, dict) else []


def _variants(part: Any, root: Schema, depth: int = 0) -> Iterator[Schema]:
    """Yield the branches of unions, also of nested ones; a media type beside a union is that of all branches."""
    whole = opened(part, root)
    branches = whole.get("anyOf") or whole.get("oneOf")
    if not isinstance(branches, list) or depth > _DEEPEST:
        yield whole
        return
    beside = {key: value for key, value in whole.items() if key == "contentMediaType"}
    for branch in branches:
        for variant in _variants(branch, root, depth + 1):
            yield {**beside, **variant}


def _takes_any_text(part: Any, root: Schema) -> bool:
    variants = _variants(part, root)
    return any("string" in each.get("type", "string") and _OF_CERTAIN_TEXT.isdisjoint(each) for each in variants)


def _is_bytes(part: Schema) -> bool:
    return part.get("contentEncoding") == "base64" and part.get("type", "string") in ("string", ["string", "null"])


def _is_text(part: Schema) -> bool:
    return part.get("type") == "string" and part.get("contentEncoding") != "base64"
