"""What an operation is: its spec, who may call it, the context of one call, and the handler that does the work."""

from enfold.operation.context import Context, Detached, LogMessage, Progress, new_request_id
from enfold.operation.identity import OPEN, RESERVED_IDS, AccessControl, Identity, ReservedAccess, read_access
from enfold.operation.names import legal_name, legal_names, operation_id, with_hash
from enfold.operation.operation import Operation, Origin, function_name, is_coroutine_function, operation_from_function
from enfold.operation.policy import DEFAULT_POLICY, INHERIT, Normalize, Policy
from enfold.operation.spec import Durable, ErrorSchema, OnCrash, OperationSpec, OperationType

__all__ = [
    "DEFAULT_POLICY",
    "INHERIT",
    "OPEN",
    "RESERVED_IDS",
    "AccessControl",
    "Context",
    "Detached",
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
