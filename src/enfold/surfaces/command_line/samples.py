"""One call of an operation as an example: arguments made from its input schema, shown only where they would be taken."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.schema.wording import FORMATS
from enfold.surfaces.command_line.schema_words import fields_of, opened

__all__ = ["example_words"]

_MOST_STEPS: Final = 500


def example_words(schema: dict[str, Any]) -> list[str]:
    """The words that call the operation with its required arguments; none where no example can be found."""
    from enfold.schema.check import compile_schema

    try:
        value = _Sampler(schema).fields(schema)
        is_right = compile_schema(schema).check(value)
    except (ValueError, TypeError, RecursionError):  # an odd schema has no example
        return []
    return [_word(name, sample) for name, sample in value.items()] if is_right else []


def _word(name: str, value: Any) -> str:
    from shlex import quote

    if isinstance(value, str) and not value.startswith("@"):
        return quote(f"{name}={value}")
    text = msgspec.json.encode(value).decode()
    return quote(f"{name}={text}" if isinstance(value, int | float) else f"{name}:={text}")


class _Sampler:
    """Makes one value of a schema, as long as that takes no more than a number of steps."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MOST_STEPS

    def sample(self, given: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("The schema is too large for an example")
        part = opened(given, self._root)
        for key in ("examples", "enum"):
            if isinstance(part.get(key), list) and part[key]:
                return part[key][0]
        for key in ("const", "example", "default"):
            if key in part:
                return part[key]
        for union in ("anyOf", "oneOf"):
            if isinstance(part.get(union), list) and part[union]:
                return self.sample(part[union][0])
        kind = part.get("type", "object" if "properties" in part else "string")
        return self._of_type(kind[0] if isinstance(kind, list) and kind else kind, part)

    def fields(self, part: dict[str, Any]) -> dict[str, Any]:
        """The required properties of an object."""
        return {name: self.sample(field) for name, field, is_required in fields_of(part) if is_required}

    def _of_type(self, kind: Any, part: dict[str, Any]) -> Any:
        if kind == "integer":
            return _number(part)
        if kind == "number":
            return _number(part) + (0 if "multipleOf" in part or "maximum" in part else 0.5)
        if kind == "boolean":
            return True
        if kind == "null":
            return None
        if kind == "array":
            return [self.sample(part.get("items", {}))]
        return self.fields(part) if kind == "object" else _text(part)


def _number(part: dict[str, Any]) -> int:
    if "multipleOf" in part:
        return int(part["multipleOf"])
    if "exclusiveMinimum" in part:
        return int(part["exclusiveMinimum"]) + 1
    highest = part.get("maximum", part.get("minimum", 1))
    return int(part.get("minimum", min(1, highest)))


def _text(part: dict[str, Any]) -> str:
    text = FORMATS.get(str(part.get("format")), ("", "text"))[1]
    shortest, longest = part.get("minLength", 0), part.get("maxLength", len(text))
    return (text + "x" * (shortest - len(text)))[: max(longest, shortest)] if shortest < 1_000 else text
