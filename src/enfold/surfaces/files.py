"""Files among results: bytes with a media type, as HTTP sends them and as MCP content shows them. No I/O."""

from __future__ import annotations

from binascii import a2b_base64
from typing import Any, Final

import msgspec

from enfold.envelope import HTTPResponseMeta, ResponseEnvelope
from enfold.operations import OperationSpec
from enfold.schema.files import as_base64, is_media_type, media_types, only_files

VARY: Final = (b"vary", b"Accept")  # for caches: the result is a file or JSON
_BYTES: Final = "application/octet-stream"
# Shown by browsers; everything else is saved, because HTML, SVG and PDF may contain scripts.
_SAFE_INLINE: Final = ("image/", "audio/", "video/", "text/plain")
_SVG: Final = "image/svg+xml"


class ResultFile(msgspec.Struct, frozen=True):
    """The result of an operation as a file."""

    media_type: str
    data: bytes | str  # as bytes, or as base64 text: whichever it came as
    name: str

    @property
    def content(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else a2b_base64(self.data)

    @property
    def text(self) -> str:
        return self.data if isinstance(self.data, str) else as_base64(self.data)

    @property
    def is_media(self) -> bool:
        """Whether MCP has a kind of content for it: an image or audio."""
        return self.media_type.partition("/")[0].lower() in ("image", "audio")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that keep a browser from running the file as a page of this server."""
        kind = self.media_type.partition(";")[0].strip().lower()
        is_inline = kind.startswith(_SAFE_INLINE) and kind != _SVG
        disposition = f'{"inline" if is_inline else "attachment"}; filename="{self.name}"'
        return [
            (b"content-disposition", disposition.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"default-src 'none'; sandbox"),
            VARY,
        ]

    def block(self) -> dict[str, Any]:
        """Return the file as an MCP content block: an image, audio, or an embedded resource."""
        if self.is_media:
            kind = self.media_type.partition("/")[0].lower()
            return {"type": kind, "data": self.text, "mimeType": self.media_type}
        return self.resource_block()

    def resource_block(self) -> dict[str, Any]:
        resource = {"uri": f"enfold://result/{self.name}", "mimeType": self.media_type, "blob": self.text}
        return {"type": "resource", "resource": resource}


def result_file(envelope: ResponseEnvelope[Any], operation: OperationSpec) -> ResultFile | None:
    """Return a result that is a file: an HTTP body of bytes, or bytes for which the operation declares a media type."""
    data, meta = envelope.data, envelope.meta
    if isinstance(data, bytes):
        received = meta.content_type if isinstance(meta, HTTPResponseMeta) else ""
        kind = received if is_media_type(received) else _declared(operation) or _BYTES
        return ResultFile(kind, data, _file_name(operation, kind))
    if isinstance(data, msgspec.Raw):
        data = msgspec.json.decode(data)
    if not isinstance(data, str) or isinstance(meta, HTTPResponseMeta) or not only_files(operation.output_schema):
        return None  # the text of an HTTP body is what it says, and not base64
    declared = _declared(operation)
    if declared is None or envelope.is_error or not _is_base64(data):
        return None
    return ResultFile(declared, data, _file_name(operation, declared))


def _declared(operation: OperationSpec) -> str | None:
    """Return the declared media type; of several, only an envelope with its own `content_type` could tell which."""
    kinds = {kind for kind in media_types(operation.output_schema) if "*" not in kind}
    return _BYTES if len(kinds) > 1 else next(iter(kinds), None)


def _is_base64(text: str) -> bool:
    try:
        a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return True


def _file_name(operation: OperationSpec, kind: str) -> str:
    """Return the id of an operation with the usual extension of a media type."""
    from mimetypes import guess_extension  # few results are files

    return f"{operation.id}{guess_extension(kind.partition(';')[0].strip().lower()) or ''}"
