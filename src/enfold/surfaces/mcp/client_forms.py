"""In which form a client gets results: text and structure, or text alone, by the name that it gives itself. No I/O.

Some clients hand both to their model, which then reads, and is charged for, everything twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.mcp.revisions import Revision

Form: TypeAlias = Literal["text", "both"]

# Clients that are known to give their models text and structure side by side.
FORMS: Final[Mapping[str, Form]] = {"github-copilot-developer": "text"}


class Forms:
    """The forms of the clients that are known; others get both."""

    def __init__(self, by_name: Mapping[str, Form]) -> None:
        self.text_alone = frozenset(name.lower() for name, form in by_name.items() if form == "text")

    def revision_for(self, revision: Revision, info: Any) -> Revision:
        """The revision as it is spoken with a client, which says in its `clientInfo` who it is."""
        name = info.get("name") if isinstance(info, dict) else None
        if not isinstance(name, str) or name.lower() not in self.text_alone or not revision.has_structure:
            return revision
        return msgspec.structs.replace(revision, is_text_alone=True)


def read_forms(by_name: Mapping[str, Any]) -> Forms:
    """The forms that the operator chose, over those that we know."""
    for name, form in by_name.items():
        if form not in ("text", "both"):
            raise ValueError(f"There is no form {form!r} for the client {name}: use text or both")
    return Forms({**FORMS, **by_name})
