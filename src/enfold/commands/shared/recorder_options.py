"""What records provenance for a command: a store and a key where its options name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from enfold.commands.shared.targets import config_of
from enfold.errors import CallError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.provenance import Recorder


def add_recording_options(parser: ArgumentParser) -> None:
    parser.add_argument("--provenance", action="store_true", help="record runs for callers who ask for it")
    parser.add_argument("--record", choices=["mutations", "all"], help="record these calls without being asked")
    parser.add_argument("--store", metavar="FILE", help="keep the records of provenance in this SQLite file")
    parser.add_argument("--key", metavar="FILE", help="sign the records with this private key (PEM)")


def recorder_of(options: Namespace) -> Recorder | None:
    """What records for a server, as its options and its configuration say; None where nothing is recorded."""
    config = config_of(options.target)
    record = options.record or (None if config is None else config.record)
    if not options.provenance and record is None:
        return None
    named = {"--store": options.store, "--key": options.key}
    recorder = make_recorder({name: value for name, value in named.items() if value is not None})
    if record is not None:
        recorder.record = record
    if not options.provenance:
        recorder.modes = frozenset()
    return recorder


def make_recorder(options: Mapping[str, str]) -> Recorder:
    """The recorder that `--store` and `--key` describe."""
    from pathlib import Path

    from enfold.provenance import Recorder, RecordStore, load_key

    try:
        store = RecordStore(Path(options["--store"])) if "--store" in options else None
        key = load_key(Path(options["--key"])) if "--key" in options else None
    except (OSError, ValueError) as error:
        raise CallError("VALIDATION_ERROR", f"Provenance cannot be recorded: {error}") from None
    return Recorder(store=store, key=key)
