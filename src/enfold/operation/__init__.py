"""What an operation is: its spec, who may call it, the context of one call, and the handler that does the work."""

from enfold.operation.context import (
    CallState,
    Context,
    Detached,
    LogMessage,
    Notify,
    Progress,
    new_request_id,
)
from enfold.operation.identity import OPEN, AccessControl, Identity, ReservedAccess, read_access
from enfold.operation.names import (
    MAX_ID_LENGTH,
    MAX_ID_PARTS,
    MAX_NAME_LENGTH,
    legal_name,
    legal_names,
    operation_id,
    with_hash,
)
from enfold.operation.operation import Operation, Origin, function_name, is_coroutine_function, operation_from_function
from enfold.operation.policy import DEFAULT_POLICY, INHERIT, Normalize, Policy
from enfold.operation.spec import (
    DEFAULT_TIMEOUT,
    Durable,
    ErrorSchema,
    LazySchema,
    OnCrash,
    OperationSpec,
    OperationType,
    Schema,
)

__all__ = [
    "DEFAULT_POLICY",
    "DEFAULT_TIMEOUT",
    "INHERIT",
    "MAX_ID_LENGTH",
    "MAX_ID_PARTS",
    "MAX_NAME_LENGTH",
    "OPEN",
    "AccessControl",
    "CallState",
    "Context",
    "Detached",
    "Durable",
    "ErrorSchema",
    "Identity",
    "LazySchema",
    "LogMessage",
    "Normalize",
    "Notify",
    "OnCrash",
    "Operation",
    "OperationSpec",
    "OperationType",
    "Origin",
    "Policy",
    "Progress",
    "ReservedAccess",
    "Schema",
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
