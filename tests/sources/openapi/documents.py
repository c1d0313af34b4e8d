"""Whole OpenAPI documents for tests: our own, and the real ones of `../shared/data` where it is present."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

OWN: Final = Path(__file__).parent / "data" / "documents"
SHARED: Final = Path(__file__).parents[4] / "shared" / "data" / "openapi"


class Document(NamedTuple):
    """A document and the number of its operations; None where the document breaks the specification."""

    path: Path
    operations: int | None


def documents() -> list[Document]:
    """All documents, our own first."""
    manifest = SHARED / "manifest.json"
    listed = json.loads(manifest.read_text()) if manifest.exists() else []
    return [
        Document(OWN / "fleet-2.0.yaml", 5),
        Document(OWN / "bazaar-3.0.yaml", 9),
        Document(OWN / "observatory-3.1.json", 9),
        Document(OWN / "stream-3.2.yaml", 4),
        *(Document(SHARED / each["file"], each["operations"] if each["valid_oas_schema"] else None) for each in listed),
    ]
