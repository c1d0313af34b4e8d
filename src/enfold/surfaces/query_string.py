"""The arguments of an operation in a query string: an array is a repeated name, an object JSON text, all else text.

An array of objects may also be written as one JSON text: that is the form the OpenAPI document can describe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.errors import invalid_argument
from enfold.operation import OperationSpec
from enfold.schema.nodes.node import Node, TooLargeError, read_nodes

ArgumentKind: TypeAlias = Literal["text", "texts", "json", "jsons"]
QueryReader: TypeAlias = Callable[[bytes], dict[str, Any]]

MAX_FIELDS: Final = 1_000


def query_reader(spec: OperationSpec) -> QueryReader:
    """What reads one operation's arguments from a query string; the registry converts text to other types."""
    kinds = argument_kinds(spec)

    def read(query: bytes) -> dict[str, Any]:
        return {name: _READERS[kinds.get(name, "text")](values) for name, values in _fields(query).items()}

    return read


def argument_kinds(spec: OperationSpec) -> dict[str, ArgumentKind]:
    """How each argument that the schema names is written in a query string."""
    try:
        root = read_nodes(spec.input_schema)[0]
    except TooLargeError:
        return {}
    parts = (*root.all_of, root)
    return {name: _kind(node) for part in parts for name, node in (part.properties or {}).items()}


def query_pairs(query: bytes) -> list[tuple[str, str]]:
    """The names and values of a query string, in their order."""
    from urllib.parse import parse_qsl  # slow to load, and many programs are only posted to

    try:
        text = query.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        expected = f"at most {MAX_FIELDS} fields of UTF-8 text"
        raise invalid_argument("", "type", expected, "The query string cannot be read") from None


def _fields(query: bytes) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for name, value in query_pairs(query):
        fields.setdefault(name, []).append(value)
    return fields


def _kind(node: Node) -> ArgumentKind:
    if _may_be("string", node):
        return "text"
    if _may_be("array", node):
        return "jsons" if _holds_containers(node) else "texts"
    return "json" if _may_be("object", node) else "text"


def _holds_containers(node: Node) -> bool:
    """Whether the items of an array can only be written as JSON text."""
    parts = (node, *node.any_of, *node.one_of, *node.all_of)
    items = [item for part in parts for item in (*part.prefix, part.items) if item is not None]
    return bool(items) and all(_is_container(item) for item in items)


def _is_container(node: Node) -> bool:
    return not _may_be("string", node) and (_may_be("object", node) or _may_be("array", node))


def _may_be(kind: Literal["string", "array", "object"], node: Node, depth: int = 0) -> bool:
    """Whether a value of this JSON type could fit, as far as types and variants tell."""
    if node.never or (node.types is not None and kind not in node.types):
        return False
    if node.enum is not None and not any(isinstance(value, _PYTHON[kind]) for value in node.enum):
        return False
    if depth > _DEEPEST:
        return True
    variants = [variants for variants in (node.any_of, node.one_of) if variants]
    return all(_may_be(kind, part, depth + 1) for part in node.all_of) and all(
        any(_may_be(kind, part, depth + 1) for part in choices) for choices in variants
    )


_DEEPEST: Final = 20
_PYTHON: Final[dict[str, type]] = {"string": str, "array": list, "object": dict}


def _one_or_many(values: list[str]) -> Any:
    return values[0] if len(values) == 1 else values


_READERS: Final[dict[ArgumentKind, Callable[[list[str]], Any]]] = {
    "text": _one_or_many,
    "texts": lambda values: values,
    "json": lambda values: _parse_json(values[0]) if len(values) == 1 else values,
    "jsons": lambda values: _whole_or_items([_parse_json(value) for value in values]),
}


def _whole_or_items(values: list[Any]) -> list[Any]:
    """An array of containers: each of them as JSON text, or all of them in one."""
    (first, *others) = values
    is_whole = not others and isinstance(first, list) and all(isinstance(item, dict | list) for item in first)
    return first if is_whole else values


def _parse_json(text: str) -> Any:
    """The JSON value of a text, or the text itself, which the registry then refuses by the argument's name."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
