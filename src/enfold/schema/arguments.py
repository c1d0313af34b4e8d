"""The input of an operation: text that stands for its type is converted, and what is wrong is said by argument.

This is the slow way, taken when the quick validation has refused. It never raises: hostile input gets a shorter answer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from enfold.errors import CallError, DecodeError
from enfold.nearest import nearest
from enfold.schema import wording
from enfold.schema.check import Schema, compile_schema
from enfold.schema.inputs.coercion import Coercion
from enfold.schema.inputs.faults import MAX_STEPS, Fault, TooMuchWorkError, Walk
from enfold.schema.keywords import properties_of
from enfold.schema.nodes.budget import shared_budget

__all__ = ["Fault", "coerce", "faults", "type_faults", "validation_error"]

_MAX_FAULTS: Final = 100
_MAX_IN_DETAILS: Final = 20
_MAX_IN_MESSAGE: Final = 5
_MAX_SCHEMA: Final = 100


def coerce(schema: dict[str, Any], value: Any) -> Any:
    """The value with every text that stands for its type without loss converted; the same object if there is none."""
    try:
        with shared_budget():
            compiled = compile_schema(schema)
            return Coercion(Walk(compiled.variants, 2 * MAX_STEPS)).convert(compiled.root, value)
    except (TooMuchWorkError, RecursionError):
        return value


def faults(schema: dict[str, Any], value: Any) -> list[Fault]:
    """What is wrong with the value: first in the order of the schema's properties, then the unknown ones."""
    with shared_budget():
        compiled = compile_schema(schema)
        if compiled.check(value):
            return []
        found = _find_faults(compiled, value)
    if not found:
        return [Fault("", "constraint", f"a value that fits {wording.short_json(schema, _MAX_SCHEMA)}")]
    return sorted(found, key=lambda fault: fault.reason == "unknown")


def _find_faults(schema: Schema, value: Any) -> dict[Fault, None]:
    found: dict[Fault, None] = {}
    try:
        for fault in islice(Walk(schema.variants).faults(schema.root, value), _MAX_FAULTS):
            found[fault] = None
    except (TooMuchWorkError, RecursionError):
        pass  # what was found so far is told
    return found


def type_faults(decode: Callable[[Any], Any], input: dict[str, Any], found: list[Fault]) -> list[Fault]:
    """What types refuse where a schema finds no fault: a validator of the user's own, a date that is none.

    Of one argument the first is told, and the argument left out to come to the next.
    """
    known = {_root(fault.argument) for fault in found}
    rest = {name: value for name, value in input.items() if name not in known}
    told: list[Fault] = []
    while len(told) < _MAX_IN_MESSAGE:
        try:
            decode(rest)
        except DecodeError as refused:
            if (found or told) and (refused.reason in ("missing", "unknown") or not refused.path):
                break  # only because something was left out, or told already
            told.append(Fault(refused.path, refused.reason, refused.expected, said=wording.refusal(refused.expected)))
            if (name := _root(refused.path)) not in rest:
                break
            del rest[name]
        else:
            break
    return told or ([] if found else [Fault("", "constraint", "what its types accept")])


def _root(argument: str) -> str:
    return argument.partition(".")[0].partition("[")[0]


def validation_error(faults: list[Fault], schema: dict[str, Any]) -> CallError:
    """The error for a call whose input has these faults; the first ones stand in its message, one after another."""
    first, *others = faults
    details = first.to_wire()
    if others:
        details["more"] = [fault.to_wire() for fault in others[:_MAX_IN_DETAILS]]
    sentences = [_sentence(fault, schema) for fault in faults[:_MAX_IN_MESSAGE]]
    return CallError("VALIDATION_ERROR", "; ".join(dict.fromkeys(sentences)), details)


def _sentence(fault: Fault, schema: dict[str, Any]) -> str:
    name = f'Argument "{fault.argument}"' if fault.argument else "The input"
    if fault.reason == "missing":
        return f"{name} is missing (expected {fault.expected})"
    if fault.reason == "unknown":
        near = nearest(fault.argument, properties_of(schema))
        return f'Unknown argument "{fault.argument}"' + (f': did you mean "{near}"?' if near else "")
    if fault.said:
        return f"{name} {fault.said}"
    got = f", got {fault.got}" if fault.got else ""
    return f"{name} must be {fault.expected}{got}"
