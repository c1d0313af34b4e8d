"""The parts of an operation: its spec, access rules and handler, and the context of a call."""

from enfold.operations.access import OPEN, RESERVED_IDS, AccessControl, Identity, ReservedAccess, read_access
from enfold.operations.context import Context, LogMessage, Progress, new_request_id
from enfold.operations.operation import Operation, Origin, function_name, is_coroutine_function, operation_from_function
from enfold.operations.policy import DEFAULT_POLICY, INHERIT, Normalize, Policy
from enfold.operations.spec import (
    Durable,
    ErrorSchema,
    OnCrash,
    OperationSpec,
    OperationType,
    legal_name,
    legal_names,
    operation_id,
    with_hash,
)

__all__ = [
    "DEFAULT_POLICY",
    "INHERIT",
    "OPEN",
    "RESERVED_IDS",
    "AccessControl",
    "Context",
    "Durable",
    "ErrorSchema",
    "Identity",
    "LogMessage",
    "Normalize",
    "OnCrash",
    "Operation",
    "OperationSpec",
    "OperationType",
    "Origin",
    "Policy",
    "Progress",
    "ReservedAccess",
    "function_name",
    "is_coroutine_function",
    "legal_name",
    "legal_names",
    "new_request_id",
    "operation_from_function",
    "operation_id",
    "read_access",
    "with_hash",
]
