"""Reads `multipart/form-data` (RFC 7578), as browsers, curl and HTTP clients write it. No I/O, nothing is copied.

The body is complete and within the limit of a request; parts are views of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

import msgspec

from enfold.errors import CallError, invalid_argument

MAX_PARTS: Final = 1_000
MAX_HEADERS: Final = 8_192  # bytes of the headers of one part

_BOUNDARY: Final = re.compile(rb"[ -~]{0,69}[!-~]")
_PARAMETER: Final = re.compile(rb';\s*([!#$&+.^_`|~0-9A-Za-z-]+\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]*))')
_ESCAPED: Final = re.compile(rb'\\(["\\])')
_IDENTITY: Final = (b"", b"binary", b"8bit", b"7bit")


class Part(msgspec.Struct, frozen=True):
    """One part of a form."""

    name: str
    content: memoryview
    filename: str | None = None
    content_type: str | None = None

    @property
    def is_empty_choice(self) -> bool:
        """Whether a browser sent it for a file input without a chosen file."""
        return self.filename == "" and not self.content


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary that the header names."""
    boundary = _parameters(content_type).get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise _invalid("its Content-Type needs a boundary of 1 to 70 characters")
    return boundary


def read_parts(body: bytes | bytearray, boundary: bytes) -> Iterator[Part]:
    """Yield the parts of a body; raise VALIDATION_ERROR where it is malformed or cut off."""
    view = memoryview(body).toreadonly()
    for count, (start, end) in enumerate(_sections(body, b"\r\n--" + boundary)):
        if count == MAX_PARTS:
            raise _invalid(f"it has more than {MAX_PARTS} parts")
        # Headers end with an empty line; a part without headers starts with it.
        blank = body.find(b"\r\n\r\n", start - 2, min(end, start + MAX_HEADERS))
        if blank < 0:
            raise _invalid(f"part {count + 1} has no end of its headers within {MAX_HEADERS} bytes")
        yield _part(bytes(view[start:blank]), view[blank + 4 : end], count + 1)


def _sections(body: bytes | bytearray, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each part starts and ends; text before the first and after the last is ignored."""
    found = -2 if body.startswith(delimiter[2:]) else body.find(delimiter)
    start = -1
    while found != -1:
        after = found + len(delimiter)
        is_last = body.startswith(b"--", after)
        following = _line_end(body, after + 2 if is_last else after)
        if following < 0:  # a line that only begins like the delimiter
            found = body.find(delimiter, after)
            continue
        if start >= 0:
            yield start, max(found, start)
        if is_last:
            return
        start = following
        # The line break after a delimiter may also be the first one of the next delimiter.
        found = body.find(delimiter, following - 2)
    raise _invalid("it ends before its last boundary")


def _line_end(body: bytes | bytearray, place: int) -> int:
    """Return the place after a line break or the end, which padding may precede; -1 where something else follows."""
    while body.startswith((b" ", b"\t"), place):
        place += 1
    if place == len(body):
        return place
    return place + 2 if body.startswith(b"\r\n", place) else -1


def _part(head: bytes, content: memoryview, number: int) -> Part:
    headers = dict(_header(line) for line in head.split(b"\r\n") if line)
    disposition = headers.get(b"content-disposition", b"")
    parameters = _parameters(disposition)
    if disposition.partition(b";")[0].strip().lower() != b"form-data" or b"name" not in parameters:
        raise _invalid(f'part {number} needs the header Content-Disposition: form-data; name="…"')
    if headers.get(b"content-transfer-encoding", b"").lower() not in _IDENTITY:
        raise _invalid(f"part {number} has a Content-Transfer-Encoding: send its bytes unencoded")
    kind = headers.get(b"content-type")
    return Part(
        _text(parameters[b"name"], number),
        content,
        _filename(parameters, number),
        None if kind is None else kind.decode("latin-1"),
    )


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def _parameters(header: bytes) -> dict[bytes, bytes]:
    """Return the parameters of a header, the first of each name; quoted ones as curl and browsers escape them."""
    found: dict[bytes, bytes] = {}
    for name, quoted, plain in _PARAMETER.findall(header):
        value = _ESCAPED.sub(rb"\1", quoted) if quoted else plain
        found.setdefault(name.lower(), value)
    return found


def _filename(parameters: dict[bytes, bytes], number: int) -> str | None:
    """Return the name of a file without folders; older clients send names that are not ASCII as `filename*`."""
    extended = parameters.get(b"filename*")
    if extended is not None and extended[:7].lower() == b"utf-8''":
        name = unquote(extended[7:].decode("latin-1"))
    elif b"filename" in parameters:
        name = _text(parameters[b"filename"], number)
    else:
        return None
    return re.split(r"[/\\]", name)[-1]


def _text(value: bytes, number: int) -> str:
    """Return a name as text, with the three characters that browsers escape."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise _invalid(f"the name of part {number} is not UTF-8 text") from None
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _invalid(why: str) -> CallError:
    return invalid_argument("", "type", "multipart/form-data", f"Invalid multipart body: {why}")
