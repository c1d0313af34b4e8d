"""From what a handler returned to an envelope: make plain, detect, wrap, normalize, validate. One place for every path.

It does not depend on HTTP, MCP or brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from time import time_ns
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import (
    MISFITS,
    ROOT_MISMATCH,
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    from_wire,
    has_no_content,
    has_own_schema,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
)
from enfold.envelope.content import is_content_block
from enfold.errors import CallError, LargeMisfitError
from enfold.observability.log import Log
from enfold.operations import OperationSpec, Policy
from enfold.schema.compiled import Schema, compile_apart, compile_schema
from enfold.schema.plain import is_plain, to_plain
from enfold.schema.repairs import count_values
from enfold.schema.signature import Signature
from enfold.schema.structs import QuickTests

Finish: TypeAlias = Callable[[Any], ResponseEnvelope[Any]]

_LARGE: Final = 5_000  # values in a result


def is_large(result: Any) -> bool:
    """Whether a repair of the result could keep an event loop busy for long."""
    data = result.data if isinstance(result, ResponseEnvelope) else result
    return type(data) in (dict, list) and count_values(data, _LARGE) >= _LARGE


def build_pipeline(spec: OperationSpec, policy: Policy, signature: Signature | None = None) -> Finish:
    """Build the pipeline of one operation; its schema is compiled for the first result. May raise LargeMisfitError.

    The signature of its function, if it has one, chooses the engine that makes its results plain.
    """
    operation_id = spec.id
    is_clean: Callable[[Any], bool] | None = None
    slow = _SlowPath(spec, policy, signature)

    def finish(result: Any) -> ResponseEnvelope[Any]:
        nonlocal is_clean
        try:
            if is_clean is None:
                is_clean = slow.clean_test()
            if type(result) is ResponseEnvelope and _has_plain_meta(result) and is_clean(result.data):
                return result
            # A clean result is plain, valid, and has nothing to strip or fill: it only needs wrapping.
            is_bare = type(result) is not dict or "meta" not in result or not is_response_envelope(result)
            if is_bare and is_clean(result):
                return ResponseEnvelope(result, LocalResponseMeta(operation_id, time_ns() // 1_000_000))
            if slow.typed is not None and not _is_wrapped_already(result):
                plain = slow.typed.convert(result)
                if slow.typed.is_clean(plain):
                    return ResponseEnvelope(plain, LocalResponseMeta(operation_id, time_ns() // 1_000_000))
        except Exception:  # noqa: BLE001, S110  # too deep, or an object that raises when it is inspected: not clean
            pass
        if is_large(result):
            raise LargeMisfitError(partial(_SlowPath(spec, policy, signature, compile_apart).finish, result))
        return slow.finish(result)

    return finish


def build_writing_pipeline(spec: OperationSpec, policy: Policy, signature: Signature | None = None) -> Finish:
    """Build the pipeline for a caller that only writes results: `data` is anything that `structs.encode` accepts.

    If the engine of the result's type writes JSON itself, `data` is that text.
    """
    operation_id = spec.id
    finish = build_pipeline(spec, policy, signature)
    tests = None if policy.normalize == "typebox" else compile_schema(spec.output_schema).quick_tests()
    if tests is None:
        return finish
    write = _writer(tests, signature) if spec.values == 1 else None  # several values are written one by one
    convert, kind, guard = msgspec.convert, tests.type, tests.guard

    def finish_for_writing(result: Any) -> ResponseEnvelope[Any]:
        """Wrap a result that fits as it is; others go through the steps of the pipeline."""
        try:
            if type(result) is dict and "meta" not in result and (guard is None or guard(result)):
                convert(result, kind)  # positional: a keyword argument would take half as long again
                return ResponseEnvelope(result, LocalResponseMeta(operation_id, time_ns() // 1_000_000))
        except Exception:  # noqa: BLE001, S110  # the next steps find out why
            pass
        try:
            if write is not None and not _is_wrapped_already(result):
                text = write(result)
                return ResponseEnvelope(msgspec.Raw(text), LocalResponseMeta(operation_id, time_ns() // 1_000_000))
        except Exception:  # noqa: BLE001, S110  # the slow path finds out why
            pass
        return finish(result)

    return finish_for_writing


def _writer(tests: QuickTests, signature: Signature | None) -> Callable[[Any], bytes] | None:
    """Return a function that encodes results of the declared type and validates the text, if both are possible."""
    converter = None if signature is None or tests.of_text is None else signature.make_converter()
    if converter is None or tests.of_text is None:
        return None
    write, test = converter.write, tests.of_text

    def write_tested(result: Any) -> bytes:
        text = write(result)
        test(text)
        return text

    return write_tested


class _SlowPath:
    """The steps for a result that is not clean: make it plain, detect, wrap, normalize, validate."""

    def __init__(
        self,
        spec: OperationSpec,
        policy: Policy,
        signature: Signature | None,
        compile: Callable[[Any], Schema] = compile_schema,
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._signature = signature
        self._compile = compile

    def clean_test(self) -> Callable[[Any], bool]:
        if not self._has_schema():
            return is_plain
        if self._policy.normalize == "typebox":
            return _never  # `cast` reads some schemas differently: it decides itself what to leave alone
        return self._schema.is_clean

    @cached_property
    def typed(self) -> _Typed | None:
        """Makes results of the declared type plain, if an engine knows the type; built for the first that needs it."""
        converter = None if self._signature is None else self._signature.make_converter()
        if converter is None:
            return None
        is_clean = self.clean_test()
        quick = self._schema.quick_tests() if converter.gives_builtins and is_clean not in (is_plain, _never) else None
        test = is_clean if quick is None else _either(quick.type, is_clean)
        return _Typed(converter.convert, test, converter.is_final)

    def finish(self, result: Any) -> ResponseEnvelope[Any]:
        envelope = self._checked(self._wrap(result))
        if envelope.warnings:
            _log(self._spec.id, envelope.warnings)
            self._refuse_if_strict(envelope)
        return envelope

    def _wrap(self, result: Any) -> ResponseEnvelope[Any]:
        if _is_content(result):
            blocks = result if isinstance(result, list | tuple) else [result]
            return mcp_envelope([block.to_wire() for block in blocks], content=blocks)
        if isinstance(result, ResponseEnvelope):
            return _plain_envelope(result)
        if self._policy.detect != "instances" and is_response_envelope(result):
            return _plain_envelope(_detected(result))
        return local_envelope(self._plain(result), self._spec.id)

    def _plain(self, result: Any) -> Any:
        """Convert the result to plain data: with its type's engine if that is final, else with `to_plain`."""
        if self.typed is not None and self.typed.is_final and not is_plain(result):
            try:
                plain = self.typed.convert(result)
            except Exception:  # noqa: BLE001, S110  # `to_plain` says where it fails
                pass
            else:
                return plain if is_plain(plain) else to_plain(result)
        return to_plain(result)

    def _checked(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        if not self._has_schema() or _is_exempt(envelope) or self._was_checked(envelope):
            return envelope
        data, warnings = self._normalize(envelope.data)
        if data is envelope.data and not warnings:
            return envelope
        return msgspec.structs.replace(envelope, data=data, warnings=(*envelope.warnings, *warnings))

    def _was_checked(self, envelope: ResponseEnvelope[Any]) -> bool:
        """Whether the source checked it already: with normalize off it may know a schema for this very status."""
        return self._policy.normalize == "off" and any(each.code in MISFITS for each in envelope.warnings)

    def _normalize(self, data: Any) -> tuple[Any, tuple[ResultWarning, ...]]:
        if isinstance(data, bytes):
            return data, self._bytes_mismatch(len(data))
        if has_own_schema(data):
            return data, tuple(map(_softened, self._schema.mismatches(data)))
        policy = self._policy.normalize
        if policy == "off":
            return data, self._schema.mismatches(data)
        if policy == "typebox":
            return self._cast(data)
        repaired = self._schema.repair(data, self._policy.extras or "strip")
        return repaired.data, repaired.warnings

    def _bytes_mismatch(self, size: int) -> tuple[ResultWarning, ...]:
        """Return a warning if the schema allows no text: raw bytes are base64 text on every wire."""
        is_wrong = any(warning.code == ROOT_MISMATCH for warning in self._schema.mismatches(""))
        return (ResultWarning(ROOT_MISMATCH, "", type="string", size=size),) if is_wrong else ()

    def _cast(self, data: Any) -> tuple[Any, tuple[ResultWarning, ...]]:
        from enfold.schema.cast import CastError, cast  # for the one policy that casts
        from enfold.schema.repairs.report import differences

        try:
            changed = cast(self._spec.output_schema, data)
        except CastError as error:
            return data, (ResultWarning("unrepairable", "", new=str(error)), *self._schema.mismatches(data))
        return changed, (*differences(data, changed), *self._schema.mismatches(changed))

    def _refuse_if_strict(self, envelope: ResponseEnvelope[Any]) -> None:
        wrong = [warning.to_wire() for warning in envelope.warnings if warning.code in MISFITS]
        if self._policy.strict_output and wrong:
            error = CallError(
                "EXECUTION_ERROR",
                f"The result of {self._spec.id} does not match its output schema at {wrong[0]['path'] or '/'}",
                {"reason": "output", "warnings": wrong},
            )
            error.partial = envelope
            raise error

    def _has_schema(self) -> bool:
        return self._spec.output_schema not in ({}, True)

    @cached_property
    def _schema(self) -> Schema:
        return self._compile(self._spec.output_schema)


class _Typed(msgspec.Struct, frozen=True):
    """Converts results of the declared type to plain data, and tests the outcome."""

    convert: Callable[[Any], Any]
    is_clean: Callable[[Any], bool]
    is_final: bool


def _either(kind: Any, is_clean: Callable[[Any], bool]) -> Callable[[Any], bool]:
    # msgspec analyses the type of a list or union at every call, but that of a struct only once.
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    struct = kind if is_struct else msgspec.defstruct("_Result", [("data", kind)])

    def test(plain: Any) -> bool:
        try:
            msgspec.convert(plain if is_struct else {"data": plain}, struct)
        except Exception:  # noqa: BLE001  # the exact test decides
            return is_clean(plain)
        return True

    return test


def _never(result: Any) -> bool:  # noqa: ARG001  # has the signature of a check
    return False


def _is_wrapped_already(result: Any) -> bool:
    return is_response_envelope(result) or _is_content(result)


def _is_content(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return bool(result) and is_content_block(result[0]) and all(map(is_content_block, result))
    return is_content_block(result)


def _detected(mapping: Any) -> ResponseEnvelope[Any]:
    """Read the envelope that a mapping describes, with a warning: data from elsewhere could claim a false origin."""
    envelope = from_wire(mapping)
    return msgspec.structs.replace(envelope, warnings=(ResultWarning("detected", ""), *envelope.warnings))


def _plain_envelope(envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta):
        structured, extensions = (
            part if part is UNSET else to_plain(part) for part in (meta.structured_content, meta._meta)
        )
        meta = msgspec.structs.replace(meta, structured_content=structured, _meta=extensions)
    return msgspec.structs.replace(envelope, data=_plain_data(envelope), meta=meta)


def _has_plain_meta(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether making it plain would change nothing beside its data."""
    meta = envelope.meta
    if not isinstance(meta, MCPResponseMeta):
        return True
    structured, extensions = meta.structured_content, meta._meta
    if type(structured) is dict and structured.keys() == {"result"}:
        structured = structured["result"]  # the wrapper of data that is no object
    is_seen = structured is UNSET or structured is envelope.data
    return (is_seen or is_plain(structured)) and (extensions is UNSET or is_plain(extensions))


def _plain_data(envelope: ResponseEnvelope[Any]) -> Any:
    data = envelope.data
    if isinstance(data, bytes) and isinstance(envelope.meta, HTTPResponseMeta):
        return data
    return to_plain(data)


def _is_exempt(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the schema does not apply: to an MCP error result, or to a response without content."""
    return (isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error) or has_no_content(envelope)


def _softened(warning: ResultWarning) -> ResultWarning:
    """Return the warning for data that names its own schema: a mismatch with ours is not a failure."""
    is_root = warning.code == ROOT_MISMATCH
    return msgspec.structs.replace(warning, code="type_mismatch") if is_root else warning


def _log(operation_id: str, warnings: tuple[ResultWarning, ...]) -> None:
    places = ", ".join(f"{warning.code} {warning.path or '/'}" for warning in warnings)
    Log("enfold.runtime.pipeline").warning("%s: %s", operation_id, places)
