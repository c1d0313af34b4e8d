"""The input of an operation: text that stands for its type is converted, and what is wrong is said by argument.

This is the slow way, taken when the quick validation has refused. It never raises: hostile input gets a shorter answer.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from enfold.errors import CallError
from enfold.nearest import nearest
from enfold.schema import wording
from enfold.schema.check import Schema, compile_schema
from enfold.schema.inputs.coercion import Coercion
from enfold.schema.inputs.faults import MAX_STEPS, Fault, TooMuchWorkError, Walk
from enfold.schema.nodes.budget import shared_effort
from enfold.schema.nodes.node import Node, read_nodes
from enfold.schema.nodes.own import own_copy

__all__ = ["Fault", "coerce", "faults", "validation_error"]

_MOST_FOUND: Final = 100
_MOST_TOLD: Final = 20
_MOST_SAID: Final = 5
_MOST_OF_A_SCHEMA: Final = 100


def coerce(schema: dict[str, Any], value: Any) -> Any:
    """The value with every text that stands for its type without loss converted; the same object if there is none."""
    try:
        with shared_effort():
            return Coercion(Walk(2 * MAX_STEPS)).convert(_root(schema), value)
    except (TooMuchWorkError, RecursionError):
        return value


def faults(schema: dict[str, Any], value: Any) -> list[Fault]:
    """What is wrong with the value: first in the order of the schema's properties, then the unknown ones."""
    with shared_effort():
        if compile_schema(schema).check(value):
            return []
        found = _found(schema, value)
    if not found:
        return [Fault("", "constraint", f"a value that fits {wording.json_text(schema, _MOST_OF_A_SCHEMA)}")]
    return sorted(found, key=lambda fault: fault.reason == "unknown")


def _found(schema: dict[str, Any], value: Any) -> dict[Fault, None]:
    found: dict[Fault, None] = {}
    try:
        for fault in islice(Walk().faults(_root(schema), value), _MOST_FOUND):
            found[fault] = None
    except (TooMuchWorkError, RecursionError):
        pass  # what was found so far is told
    return found


def validation_error(faults: list[Fault], schema: dict[str, Any]) -> CallError:
    """The error for a call whose input has these faults; the first ones stand in its message, one after another."""
    first, *others = faults
    details = first.to_wire()
    if others:
        details["more"] = [fault.to_wire() for fault in others[:_MOST_TOLD]]
    sentences = [_sentence(fault, schema) for fault in faults[:_MOST_SAID]]
    return CallError("VALIDATION_ERROR", "; ".join(dict.fromkeys(sentences)), details)


def _sentence(fault: Fault, schema: dict[str, Any]) -> str:
    name = f'Argument "{fault.argument}"' if fault.argument else "The input"
    if fault.reason == "missing":
        return f"{name} is missing (expected {fault.expected})"
    if fault.reason == "unknown":
        near = _nearest(fault.argument, schema)
        return f'Unknown argument "{fault.argument}"' + (f': did you mean "{near}"?' if near else "")
    got = f", got {fault.got}" if fault.got else ""
    return f"{name} must be {fault.expected}{got}"


def _nearest(name: str, schema: dict[str, Any]) -> str | None:
    """The argument that a wrong name comes closest to, if it comes close to one."""
    properties = schema.get("properties")
    return nearest(name, properties) if isinstance(properties, dict) else None


_MOST_ROOTS: Final = 512
_roots: Final[dict[Schema, Node]] = {}


def _root(schema: Any) -> Node:
    """The first node of a schema; equal schemas share theirs, as they share what they are compiled to."""
    compiled = compile_schema(schema)
    known = _roots.get(compiled)
    if known is None:
        if len(_roots) >= _MOST_ROOTS:
            _roots.clear()
        known = _roots[compiled] = read_nodes({} if compiled.problem else own_copy(schema))[0]
    return known
