"""What records provenance for a command: a store and a key where its options name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from enfold.errors import CallError

if TYPE_CHECKING:
    from enfold.provenance import Recorder

__all__ = ["make_recorder"]


def make_recorder(options: Mapping[str, str]) -> Recorder:
    """The recorder that `--store` and `--key` describe."""
    from enfold.provenance import Recorder, RecordStore, load_key

    try:
        store = RecordStore(Path(options["--store"])) if "--store" in options else None
        key = load_key(Path(options["--key"])) if "--key" in options else None
    except (OSError, ValueError) as error:
        raise CallError("VALIDATION_ERROR", f"Provenance cannot be recorded: {error}") from None
    return Recorder(store=store, key=key)
