"""Schemas expressed as msgspec types, whose checks take a fraction of the time of generated Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Union, get_args

import msgspec
from msgspec import UNSET

from enfold.schema.checks import CheckWriter
from enfold.schema.checks.program import Function, Program
from enfold.schema.nodes import MISSING, Node, children
from enfold.schema.nodes.traits import declared_default, has_only, nullable_inner

# Creating a struct costs more than many checks by other means.
_MAX_NODES: Final = 500

_MAX_FLOAT: Final = 1.7976931348623157e308
# Integers are kept, infinity is rejected.
_FRACTION: Final = Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
_NUMBER: Final = Union[int, _FRACTION]  # noqa: UP007  # not a class
_SCALARS: Final[dict[str, Any]] = {"null": None, "boolean": bool, "integer": int, "number": _NUMBER, "string": str}

_OF_OBJECTS: Final = frozenset({"types", "properties", "required", "additional"})


class QuickTests(msgspec.Struct, frozen=True):
    """Fast tests of one schema. A value they accept is valid and has nothing to strip or fill.

    A value they reject, with any exception, may still be valid.
    """

    type: Any  # `msgspec.convert(data, type)` tests data of exact builtin types
    # Rejects values that `convert` accepts but `encode` writes differently; None where there are none.
    guard: Callable[[Any], bool] | None
    of_text: Callable[[bytes], Any] | None  # tests JSON text; None where null may represent NaN


def quick_tests(root: Node) -> QuickTests | None:
    """Return the tests of a schema of objects and arrays, or None where msgspec cannot express the schema."""
    structs = _Structs()
    try:
        annotation = structs.annotation(root)
        msgspec.convert(None, Union[annotation, None])  # noqa: UP007  # raises TypeError for two object types in a union
    except (_NoStructError, ValueError, TypeError, RecursionError):  # ValueError: an invalid field name
        return None
    if not structs.has_containers:
        return None  # scalars gain nothing from msgspec
    of_text = None if structs.has_doubtful_numbers else msgspec.json.Decoder(annotation).decode
    return QuickTests(annotation, _guard(root), of_text)


def _as_text(value: Any) -> str:
    if isinstance(value, str):  # a subclass
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


encode: Final = msgspec.json.Encoder(enc_hook=_as_text).encode
"""Encodes results as JSON text: plain data, `msgspec.Raw`, and types that encode like plain data."""


class _NoStructError(Exception):
    """A struct cannot express the schema."""


class _Structs:
    """The msgspec types of one schema, one per node."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self.has_containers = False
        self.has_doubtful_numbers = False

    def annotation(self, node: Node) -> Any:
        if node.index not in self._known:
            if len(self._known) >= _MAX_NODES:
                raise _NoStructError
            self._known[node.index] = None  # a recursive node has no type
            self._known[node.index] = (self._make(node),)
        made = self._known[node.index]
        if made is None:
            raise _NoStructError
        return made[0]

    def _make(self, node: Node) -> Any:
        inner = nullable_inner(node)
        if inner is not None and has_only(node, ("any_of", "one_of")):
            return self._any_of([self.annotation(inner), None])
        if len(node.all_of) == 1 and has_only(node, ("all_of",)):  # a reference
            return self.annotation(node.all_of[0])
        if node.enum is not None:
            return self._any_of(_choices(node))
        return self._any_of([self._of_type(node, kind) for kind in sorted(node.types or ())])

    def _any_of(self, annotations: list[Any]) -> Any:
        if not annotations:
            raise _NoStructError
        union: Any = Union[tuple(annotations)]  # noqa: UP007  # built at run time
        members = get_args(union)
        # In JSON text NaN may appear as null or as a string.
        self.has_doubtful_numbers |= _FRACTION in members and not {str, type(None)}.isdisjoint(members)
        return union

    def _of_type(self, node: Node, kind: str) -> Any:
        if kind == "object" and has_only(node, _OF_OBJECTS):
            return self._struct(node) if node.properties else self._table(node)
        if kind == "array" and node.items is not None and has_only(node, ("types", "items")):
            self.has_containers = True
            return list[self.annotation(node.items)]  # type: ignore[misc]  # known only here
        if kind in _SCALARS and has_only(node, ("types", "items", *_OF_OBJECTS)):
            return _SCALARS[kind]
        raise _NoStructError

    def _table(self, node: Node) -> Any:
        if node.additional is None or node.additional.never or node.required:
            raise _NoStructError
        self.has_containers = True
        return dict[str, self.annotation(node.additional)]  # type: ignore[misc]  # as above

    def _struct(self, node: Node) -> type[msgspec.Struct]:
        properties = node.properties or {}
        is_closed = node.additional is None or node.additional.never
        if not is_closed or not properties.keys() >= set(node.required):
            raise _NoStructError
        self.has_containers = True
        fields: list[Any] = []
        for number, (name, child) in enumerate(properties.items()):
            annotation = self.annotation(child)
            # A property with a default is required here: if missing, it has to be filled in.
            is_needed = name in node.required or declared_default(child) is not MISSING
            fields.append((f"f{number}", annotation) if is_needed else (f"f{number}", annotation, UNSET))
        return msgspec.defstruct(
            "Written",
            fields,
            rename={f"f{number}": name for number, name in enumerate(properties)},
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,  # no cycles
        )


def _choices(node: Node) -> list[Any]:
    """Return the annotations of an enum of strings and integers, possibly with null."""
    kinds = node.types or frozenset({"string", "integer", "null"})
    values = [value for value in node.enum or [] if _KINDS.get(type(value)) in kinds]
    if not all(type(value) in _KINDS for value in node.enum or []) or not has_only(node, ("types", "enum")):
        raise _NoStructError
    constants = tuple(value for value in values if value is not None)
    return [*([Literal[constants]] if constants else []), *([None] if None in values else [])]


_KINDS: Final = {str: "string", int: "integer", type(None): "null"}


# --- guards -------------------------------------------------------------------------------------------------------

# msgspec accepts a Decimal as a float, and any mapping or object with attributes as a struct, ignoring unknown keys.
# At such locations values must be of builtin types.
_BUILTIN: Final = frozenset({dict, list, tuple, str, int, float, bool, type(None)})


def _guard(root: Node) -> Callable[[Any], bool] | None:
    """Return a function that checks an object for builtin types wherever msgspec would accept others, if there are any."""
    root = _target(root)
    writer = _GuardWriter(Program(memoizes=False, tools={"BUILTIN": _BUILTIN}))
    if not any(map(_needs_guard, children(root))):
        return None
    writer.program.declare("guard", lambda function: writer.members(function, root, "v"))
    return writer.program.function("guard")


class _GuardWriter(CheckWriter):
    """Emits checks of builtin types only: msgspec itself checks the rest."""

    def emit(self, function: Function, node: Node, variable: str) -> None:
        if not _needs_guard(node):
            return
        if function.fits_inline:
            with function.level():
                self.write(function, node, variable)
        else:
            super().emit(function, node, variable)

    def members(self, function: Function, node: Node, variable: str) -> None:
        for name, child in (node.properties or {}).items():
            if name in node.required and _needs_guard(child):
                self.required(function, child, repr(name), variable)
            elif _needs_guard(child):
                self.optional(function, child, repr(name), variable, "")
        if not node.properties:
            self.other_properties(function, node, variable)

    def scalar(self, node: Node, variable: str) -> str:
        return "True" if node.all_of else self.scalar_of(node, "", variable)

    def scalar_of(self, node: Node, kind: str, variable: str) -> str:  # noqa: ARG002  # msgspec checks the type
        return f"(type({variable}) is float or type({variable}) in BUILTIN)"


def _target(node: Node) -> Node:
    """Follow references and nullable choices to the target node."""
    while (inner := nullable_inner(node) or (node.all_of[0] if node.all_of else None)) is not None:
        node = inner
    return node


def _needs_guard(node: Node) -> bool:
    """Whether msgspec may accept a value that is not of a builtin type for this node."""
    node = _target(node)
    if {"object", "number"} & (node.types or frozenset()):
        return True
    return "array" in (node.types or ()) and node.items is not None and _needs_guard(node.items)
