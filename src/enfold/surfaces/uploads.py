"""Files in request bodies: `multipart/form-data`, and a raw body for an operation with one file argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from enfold.errors import invalid_argument
from enfold.operations import OperationSpec
from enfold.schema.files import FileArgument, file_arguments, never_blank
from enfold.surfaces.multipart import Part, boundary_of, read_parts
from enfold.surfaces.request import field_reader
from enfold.surfaces.responses import unsupported_body

Body: TypeAlias = bytes | bytearray
UploadReader: TypeAlias = Callable[[Body], dict[str, Any]]

MULTIPART: Final = "multipart/form-data"
RAW: Final = "application/octet-stream"


def upload_reader(operation: OperationSpec, content_type: bytes) -> UploadReader | None:
    """Return what reads the arguments of a body of this type; None where the operation takes no files."""
    files = file_arguments(operation.input_schema)
    if not files:
        return None
    kind = content_type.partition(b";")[0].strip().lower().decode("latin-1")
    if kind == MULTIPART:
        boundary = boundary_of(content_type)
        return lambda body: _read_form(body, boundary, operation, files)
    raw = raw_types(files)
    if any(_is_within(kind, each) for each in raw):
        ((name, file),) = files.items()
        return lambda body: {name: file.value(body, None, kind)}
    expected = ["application/json", MULTIPART, *raw]
    raise unsupported_body(f"The body must be {', '.join(expected[:-1])} or {expected[-1]}", ", ".join(expected))


def raw_types(files: dict[str, FileArgument]) -> list[str]:
    """Return the media types of a body that is the only file of an operation; none where it takes several."""
    if len(files) != 1 or next(iter(files.values())).is_list:
        return []
    declared = next(iter(files.values())).media_type
    return [RAW] if declared is None or declared == RAW else [RAW, declared]


def _is_within(kind: str, declared: str) -> bool:
    wanted = declared.partition(";")[0].strip().lower()
    return wanted in (kind, "*/*") or (wanted.endswith("/*") and kind.startswith(wanted[:-1]))


def _read_form(body: Body, boundary: bytes, operation: OperationSpec, files: dict[str, FileArgument]) -> dict[str, Any]:
    """Read a form: files by their arguments, other fields as a query string has them.

    Browsers send an empty text for an input that was left blank: it is left out unless its argument may be any text.
    """
    found: dict[str, list[Any]] = {}
    fields: dict[str, list[str]] = {}
    for part in read_parts(body, boundary):
        if part.name in files:
            if not part.is_empty_choice:
                file = files[part.name].value(part.content, part.filename, part.content_type)
                found.setdefault(part.name, []).append(file)
        else:
            fields.setdefault(part.name, []).append(_text(part))
    unfit = never_blank(operation.input_schema)
    filled = {name: values for name, values in fields.items() if values != [""] or name not in unfit}
    given = field_reader(operation)(filled)
    for name, values in found.items():
        if not files[name].is_list and len(values) > 1:
            raise invalid_argument(name, "constraint", "one file", f'Argument "{name}" takes one file')
        given[name] = values if files[name].is_list else values[0]
    return given


def _text(part: Part) -> str:
    try:
        return str(part.content, "utf-8")
    except UnicodeDecodeError:
        raise invalid_argument(part.name, "type", "UTF-8 text") from None
