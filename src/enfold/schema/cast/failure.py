"""CastError, and the sentences TypeBox throws with."""

from __future__ import annotations


class CastError(ValueError):
    """A value that cannot be cast: `kind` is the name of the error TypeBox throws, the text is its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[CastError], tuple[str, str]]:
        return type(self), (self.kind, self.message)


def cannot_create(message: str) -> CastError:
    return CastError("ValueCreateError", message)


def cannot_cast(message: str) -> CastError:
    return CastError("ValueCastError", message)


def unknown_reference(name: str) -> CastError:
    return CastError("TypeDereferenceError", f"Unable to dereference schema with $id '{name}'")


def bad_pattern(source: str, reason: str) -> CastError:
    return CastError("SyntaxError", f"Invalid regular expression: /{source[:200]}/: {reason}")


def too_deep() -> CastError:
    return CastError("RangeError", "Maximum call stack size exceeded")


def too_large(what: str) -> CastError:
    return CastError("RangeError", f"{what} is too large to cast")
