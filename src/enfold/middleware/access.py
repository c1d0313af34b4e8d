"""Access: whether the caller may run this operation with this input."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from enfold.access import check_access
from enfold.middleware.around import Around, Take

if TYPE_CHECKING:
    from enfold.operation.call import Call, Next, Outcome


class CheckAccess(Around):
    """Refuses a call whose caller lacks scopes or resources."""

    async def __call__(self, call: Call, next: Next) -> Outcome:
        check_access(call.operation.spec, call.identity, call.input)
        return await next(call)

    @contextmanager
    def around(self, call: Call) -> Generator[Take]:
        check_access(call.operation.spec, call.identity, call.input)
        yield lambda _: None
