"""Access: whether the caller may run this operation with this input."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from enfold.middleware.around import Around, Take
from enfold.operations.access import check_access

if TYPE_CHECKING:
    from enfold.operations.call import Call, Next
    from enfold.operations.outcomes import Outcome


class CheckAccess(Around):
    """Refuses a call whose caller lacks scopes or resources."""

    def __call__(self, call: Call, next: Next) -> Coroutine[Any, Any, Outcome]:
        check_access(call.operation.spec, call.identity, call.input)
        return next(call)

    @contextmanager
    def around(self, call: Call) -> Generator[Take]:
        check_access(call.operation.spec, call.identity, call.input)
        yield lambda _: None
