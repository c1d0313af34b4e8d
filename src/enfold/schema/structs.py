"""Schemas as types of msgspec, whose checks take a fraction of the time of those written in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal, Union, get_args

import msgspec
from msgspec import UNSET

from enfold.schema.checks.program import Function, Program
from enfold.schema.nodes import MISSING, SILENT, Node
from enfold.schema.nodes.traits import declared_default, nullable_inner

# A struct costs more to make than many checks by other means.
_MAX_NODES: Final = 500

_MAX_FLOAT: Final = 1.7976931348623157e308
# Whole numbers stay as they are, and infinity is no number.
_FRACTION: Final = Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
_NUMBER: Final = Union[int, _FRACTION]  # noqa: UP007  # not a class
_SCALARS: Final[dict[str, Any]] = {"null": None, "boolean": bool, "integer": int, "number": _NUMBER, "string": str}

_EMPTY_NODE: Final = Node(0)
_OF_OBJECTS: Final = frozenset({"types", "properties", "required", "additional"})


class QuickTests(msgspec.Struct, frozen=True):
    """Tests of one schema. What they accept is valid and has nothing to strip or fill.

    What they refuse, with any exception, may still be all that.
    """

    type: Any  # `msgspec.convert(data, type)` tests data of the exact builtin types, as an engine makes it
    # Refuses what `convert` accepts but `encode` writes in another way; None where there is nothing of that kind.
    guard: Callable[[Any], bool] | None
    of_text: Callable[[bytes], Any] | None  # JSON text; None where null may stand for NaN or for a value


def quick_tests(root: Node) -> QuickTests | None:
    """The tests of a schema of objects and arrays, or None where msgspec cannot say what the schema says."""
    structs = _Structs()
    try:
        annotation = structs.annotation(root)
        msgspec.convert(None, Union[annotation, None])  # noqa: UP007  # two kinds of objects in a union are a TypeError
    except (_NoStructError, ValueError, TypeError, RecursionError):  # or a name that no field of a struct can have
        return None
    if not structs.has_containers:
        return None  # a scalar is checked as fast without msgspec
    of_text = None if structs.has_doubtful_numbers else msgspec.json.Decoder(annotation).decode
    return QuickTests(annotation, _BuiltinGuard().function(root), of_text)


def _as_text(value: Any) -> str:
    if isinstance(value, str):  # of a class of its own
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


encode: Final = msgspec.json.Encoder(enc_hook=_as_text).encode
"""JSON text of results: plain data, text that is written already, and what has the same text as plain data."""


class _NoStructError(Exception):
    """The schema says something that a struct cannot say."""


class _Structs:
    """The structs of one schema: a node that is met again has the same."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self.has_containers = False
        self.has_doubtful_numbers = False

    def annotation(self, node: Node) -> Any:
        if node.index not in self._known:
            if len(self._known) >= _MAX_NODES:
                raise _NoStructError
            self._known[node.index] = None  # until it is made: a node inside itself has none
            self._known[node.index] = (self._make(node),)
        made = self._known[node.index]
        if made is None:
            raise _NoStructError
        return made[0]

    def _make(self, node: Node) -> Any:
        inner = nullable_inner(node)
        if inner is not None and _has_only(node, ("any_of", "one_of")):
            return self._any_of([self.annotation(inner), None])
        if len(node.all_of) == 1 and _has_only(node, ("all_of",)):  # a reference
            return self.annotation(node.all_of[0])
        if node.enum is not None:
            return self._any_of(_choices(node))
        return self._any_of([self._of_type(node, kind) for kind in sorted(node.types or ())])

    def _any_of(self, annotations: list[Any]) -> Any:
        if not annotations:
            raise _NoStructError
        union: Any = Union[tuple(annotations)]  # noqa: UP007  # made, not written
        members = get_args(union)
        # In text null stands for NaN too, and for some the word does.
        self.has_doubtful_numbers |= _FRACTION in members and not {str, type(None)}.isdisjoint(members)
        return union

    def _of_type(self, node: Node, kind: str) -> Any:
        if kind == "object" and _has_only(node, _OF_OBJECTS):
            return self._struct(node) if node.properties else self._table(node)
        if kind == "array" and node.items is not None and _has_only(node, ("types", "items")):
            self.has_containers = True
            return list[self.annotation(node.items)]  # type: ignore[misc]  # known only here
        if kind in _SCALARS and _has_only(node, ("types", "items", *_OF_OBJECTS)):
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
            # What has a default may not be missing: it would have to be filled in.
            is_needed = name in node.required or declared_default(child) is not MISSING
            fields.append((f"f{number}", annotation) if is_needed else (f"f{number}", annotation, UNSET))
        return msgspec.defstruct(
            "Written",
            fields,
            rename={f"f{number}": name for number, name in enumerate(properties)},
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,  # values have no cycles
        )


def _has_only(node: Node, fields: Iterable[str]) -> bool:
    allowed = SILENT.union(fields)
    return all(
        getattr(node, field) == getattr(_EMPTY_NODE, field) for field in Node.__struct_fields__ if field not in allowed
    )


def _choices(node: Node) -> list[Any]:
    """A choice of words and whole numbers, perhaps with null."""
    kinds = node.types or frozenset({"string", "integer", "null"})
    values = [value for value in node.enum or [] if _KINDS.get(type(value)) in kinds]
    if not all(type(value) in _KINDS for value in node.enum or []) or not _has_only(node, ("types", "enum")):
        raise _NoStructError
    constants = tuple(value for value in values if value is not None)
    return [*([Literal[constants]] if constants else []), *([None] if None in values else [])]


_KINDS: Final = {str: "string", int: "integer", type(None): "null"}


# --- guards -------------------------------------------------------------------------------------------------------

# msgspec takes a Decimal for a float, and for a struct whatever has items or keys, of which it leaves out what it does
# not know. There a closer look has to be taken at all other types.
_BUILTIN: Final = frozenset({dict, list, tuple, str, int, float, bool, type(None)})


class _BuiltinGuard:
    """Writes a function that says whether a value consists of builtin types wherever msgspec would take others."""

    def __init__(self) -> None:
        self._program = Program(memoizes=False, tools={"BUILTIN": _BUILTIN, "tuple": tuple})

    def function(self, root: Node) -> Callable[[Any], bool] | None:
        """The function for a schema of whose values one is a dict; None where it would have nothing to do."""
        root = _target(root)
        is_flat = root.types == frozenset({"object"}) and not any(True for _ in self._parts(root))
        if is_flat or not _needs_guard(root):
            return None
        self._program.declare("guard", lambda function: self._write(function, root, "v"))
        return self._program.function("guard")

    def _inside(self, node: Node) -> list[tuple[str | None, Node]]:
        return list(self._parts(node)) if "object" in (node.types or ()) else []

    def _parts(self, node: Node) -> Iterator[tuple[str | None, Node]]:
        """What is to be looked at in an object: by name, or, where it has no names, each value."""
        for name, child in (node.properties or {}).items():
            if _needs_guard(_target(child)):
                yield name, _target(child)
        if node.additional is not None and not node.properties and _needs_guard(_target(node.additional)):
            yield None, _target(node.additional)

    def _write_nested(self, function: Function, node: Node, variable: str) -> None:
        """Look at a part here, or, where the function has become long or deep, in one of its own."""
        if function.fits_inline:
            with function.level():
                self._write(function, node, variable)
            return
        self._program.declare(f"g{node.index}", lambda inner: self._write(inner, node, "v"))
        function.reject_unless(self._program.call(f"g{node.index}", variable))

    def _write(self, function: Function, node: Node, variable: str) -> None:
        parts, items, word = self._inside(node), _items(node), "if"
        if parts:
            with function.block(f"if type({variable}) is dict:"):
                self._write_parts(function, node, parts, variable)
            word = "elif"
        if items is not None:
            with function.block(f"{word} type({variable}) is list or type({variable}) is tuple:"):
                self._write_each(function, items, variable)
            word = "elif"
        function.line(f"{word} type({variable}) is not float and type({variable}) not in BUILTIN: return False")

    def _write_parts(self, function: Function, node: Node, parts: list[tuple[str | None, Node]], variable: str) -> None:
        for name, child in parts:
            if name is None:
                self._write_each(function, child, f"{variable}.values()")
                continue
            if name in node.required:
                function.may_raise_key_error = True
                self._write_part(function, child, f"{variable}[{name!r}]")
            else:
                with function.block(f"if {name!r} in {variable}:"):
                    self._write_part(function, child, f"{variable}[{name!r}]")

    def _write_part(self, function: Function, node: Node, place: str) -> None:
        """Look at what is at a place; only what is looked at often gets a name."""
        if not self._inside(node) and _items(node) is None:
            self._write(function, node, place)
            return
        part = function.new_local()
        function.line(f"{part} = {place}")
        self._write_nested(function, node, part)

    def _write_each(self, function: Function, node: Node, values: str) -> None:
        item = function.new_local()
        with function.block(f"for {item} in {values}:"):
            self._write_nested(function, node, item)


def _target(node: Node) -> Node:
    """The node that a reference, or a choice between it and null, leads to."""
    while (inner := nullable_inner(node) or (node.all_of[0] if node.all_of else None)) is not None:
        node = inner
    return node


def _items(node: Node) -> Node | None:
    """What is to be looked at in each item of an array, if anything."""
    items = _target(node.items) if "array" in (node.types or ()) and node.items is not None else None
    return items if items is not None and _needs_guard(items) else None


def _needs_guard(node: Node) -> bool:
    """Whether msgspec may accept a value of another type where the node describes an object or a number."""
    return bool({"object", "number"} & (node.types or frozenset())) or _items(node) is not None
