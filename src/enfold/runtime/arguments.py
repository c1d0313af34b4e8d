"""The first part of a call: its input becomes the handler's arguments, or a VALIDATION_ERROR that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from enfold.errors import DecodeError, invalid_argument
from enfold.schema.budget import shared_budget

if TYPE_CHECKING:
    from enfold.operations import Operation, OperationSpec, Policy


class Arguments:
    """Reads the input of one operation: by the types of its function, or by its schema where it has none."""

    __slots__ = ("_coerces", "_decode", "_schema", "decode_quickly")

    def __init__(self, operation: Operation, policy: Policy, *, is_remote: bool) -> None:
        """With `is_remote`, the process that runs the operation validates the input against its own schema."""
        signature = operation.signature
        self._decode = _checked_against(operation.spec) if signature is None else signature.decode
        # Raises DecodeError for what `read` has to look at again.
        self.decode_quickly: Callable[[Any], Any] = self._decode if signature is None else signature.decode_quickly
        if is_remote:
            self.decode_quickly = _unchanged
        self._schema = operation.spec.input_schema
        self._coerces = policy.coerce is not False

    def read(self, input: Any) -> tuple[Mapping[str, Any], Any]:
        """Validate the input; return it with the handler's arguments, or raise VALIDATION_ERROR."""
        if not isinstance(input, Mapping):
            raise invalid_argument("", "type", "object", "The input must be an object of named arguments")
        given = dict(input)
        with shared_budget():  # one budget for the patterns of all attempts
            try:
                return input, self._decode(given)
            except DecodeError:
                return self._read_again(given)

    def _read_again(self, input: dict[str, Any]) -> tuple[Mapping[str, Any], Any]:
        """Convert text that stands for its type, or say exactly what is wrong."""
        # Only for input that is not exact.
        from enfold.schema.arguments import coerce, faults, type_faults, validation_error

        value = coerce(self._schema, input) if self._coerces else input
        if value is not input:
            with suppress(DecodeError):
                return value, self._decode(value)
        found = faults(self._schema, value)
        raise validation_error([*found, *type_faults(self._decode, value, found)], self._schema)


def _unchanged(value: Any) -> Any:
    return value


def _checked_against(spec: OperationSpec) -> Callable[[Any], Any]:
    check: Callable[[Any], bool] | None = None

    def convert(input: Any) -> Any:
        nonlocal check
        if check is None:
            from enfold.schema.compiled import compile_schema  # with the first call

            check = compile_schema(spec.input_schema).check
        if check(input):
            return input
        raise DecodeError("", "what the input schema says")

    return convert
