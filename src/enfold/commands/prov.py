"""The command `enfold prov`: show, verify and draw records, from a store or from files."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.commands.command_options import parsed
from enfold.provenance.canonical import read_json
from enfold.provenance.drawing import to_mermaid, to_svg
from enfold.provenance.lineage import build_graph, verify_run, verify_value
from enfold.provenance.manifest import capabilities
from enfold.provenance.signing import load_public_keys
from enfold.provenance.store import RecordStore, StoredRecordError
from enfold.provenance.verification import Verdict
from enfold.registry import Registry

__all__ = ["run"]

OK: Final = 0
NOT_VERIFIED: Final = 1
WRONG: Final = 2
NOT_FOUND: Final = 3


def run(words: list[str], registry: Registry | None) -> int:
    """Show, verify or draw records; the exit code is 1 for not verified, 2 for no record, 3 for not found."""
    del registry
    options = parsed(_parser(), words)
    try:
        code: int = _COMMANDS[options.command](options)
    except ValueError as error:
        return _tell(f"VALIDATION_ERROR: {error}", WRONG)
    except (LookupError, FileNotFoundError) as error:
        return _tell(f"NOT_FOUND: {error.args[-1] if isinstance(error, LookupError) else error}", NOT_FOUND)
    return code


def _parser() -> ArgumentParser:
    parser = ArgumentParser("enfold prov", description="Records of which tool ran, on what, from which parents.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("show", "print a record"), ("verify", "verify a record"), ("graph", "draw its lineage")):
        command = commands.add_parser(name, help=words, description=words.capitalize() + ".")
        command.add_argument("target", help="a run id of the store; or a file, or - for standard input")
        command.add_argument("--store", type=Path, help="the SQLite file that holds the records")
    verifying = commands.choices["verify"]
    verifying.add_argument("--key", type=Path, action="append", help="a public key (PEM) that signatures must fit")
    commands.choices["graph"].add_argument("--format", choices=["svg", "mermaid"], default="svg")
    commands.add_parser("capabilities", help="print prov-capabilities.json")
    return parser


def _show(options: Any) -> int:
    return _print(_pretty(_load(options)))


def _verify(options: Any) -> int:
    keys = load_public_keys(options.key) if options.key else None
    verdicts = _verdicts(options, keys)
    _print("\n".join(str(verdict) for verdict in verdicts))
    return OK if all(verdict.ok for verdict in verdicts) else NOT_VERIFIED


def _verdicts(options: Any, keys: Any) -> tuple[Verdict, ...]:
    """A run of a store is verified with its lineage; a file alone, or against the store where one is given too."""
    if options.store is None:
        return verify_value(_read(options.target), keys)
    with RecordStore(options.store, create=False) as store:
        if options.target == "-" or Path(options.target).is_file():
            return verify_value(_read(options.target), keys, store)
        if not _has(store, options.target):
            raise LookupError(f"there is no record of run {options.target}")
        return verify_run(options.target, store, keys)


def _has(store: RecordStore, run_id: str) -> bool:
    try:
        return store.get(run_id) is not None
    except StoredRecordError:  # It is there, and verification says what is wrong with it.
        return True


def _graph(options: Any) -> int:
    found = _lineage(options) if options.store is not None else _records(_load(options))
    graph = build_graph(found)
    return _print((to_mermaid if options.format == "mermaid" else to_svg)(graph).rstrip("\n"))


def _capabilities(options: Any) -> int:
    del options
    return _print(_pretty(capabilities()))


_COMMANDS: Final[dict[str, Callable[[Any], int]]] = {
    "show": _show,
    "verify": _verify,
    "graph": _graph,
    "capabilities": _capabilities,
}


# --- where records come from --------------------------------------------------------------------------------------


def _load(options: Any) -> Any:
    """The record of a run in the store, or the JSON value of a file: a record, an envelope, or a list of records."""
    if options.store is not None:
        with RecordStore(options.store, create=False) as store:
            record = store.get(options.target)
        if record is None:
            raise LookupError(f"there is no record of run {options.target}")
        return record
    return _read(options.target)


def _read(target: str) -> Any:
    return read_json(sys.stdin.read() if target == "-" else Path(target).read_bytes())


def _lineage(options: Any) -> list[dict[str, Any]]:
    with RecordStore(options.store, create=False) as store:
        records = store.lineage(options.target)
    if not records:
        raise LookupError(f"there is no record of run {options.target}")
    return records


def _records(found: Any) -> list[Any]:
    if isinstance(found, list):
        return found
    return [found["provenance"] if _is_envelope(found) else found]


def _is_envelope(value: Any) -> bool:
    return isinstance(value, Mapping) and "provenance" in value


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _print(text: str) -> int:
    print(text)
    return OK


def _tell(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code
