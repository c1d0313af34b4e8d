"""The command `enfold prov`: list, show, verify and draw records, and the tools of prov-spec: digests, keys, vectors, manifests."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from enfold.commands.shared.options import add_number, parse_options
from enfold.commands.shared.output import in_lines
from enfold.envelope import local_envelope
from enfold.errors import CallError, printable, printable_lines
from enfold.formats import mcp_envelope_v0_1
from enfold.provenance.conformance import capabilities, check_vectors, manifest_faults
from enfold.provenance.integrity import digest_json, generate_key, load_public_keys, read_json
from enfold.provenance.lineage import build_graph, to_mermaid, to_svg, verify_run, verify_value
from enfold.provenance.methods import CATALOGUE, method_id_fault
from enfold.provenance.record_store import RecordStore
from enfold.provenance.verification import Verdict
from enfold.runtime.registry import Registry

OK: Final = 0
NOT_VERIFIED: Final = 1
NOT_FOUND: Final = 3

_STORE: Final = "the SQLite file with the records"


def run(words: list[str], registry: Registry | None) -> int:
    """Show, verify or draw records; the exit code is 1 for not verified, 2 for no record, 3 for not found."""
    del registry
    options = parse_options(_parser(), words)
    try:
        code: int = options.run(options)
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None
    except FileExistsError as error:
        raise CallError("VALIDATION_ERROR", f"The file {error.filename} already exists") from None
    except (LookupError, FileNotFoundError) as error:
        return _print_error(f"NOT_FOUND: {error.args[-1] if isinstance(error, LookupError) else error}", NOT_FOUND)
    return code


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "enfold prov", description="Provenance records: what ran, with which input, derived from which runs."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable[[Any], int], words: str) -> ArgumentParser:
        command = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        command.set_defaults(run=run)
        return command

    listing = add("list", _list, "list the runs of a store, newest first")
    listing.add_argument("--store", type=Path, required=True, help=_STORE)
    listing.add_argument("--operation", help="only runs of this operation")
    listing.add_argument("--caller", help="only runs of this caller")
    add_number(listing, "--limit", default=50, help="maximum number of runs (default 50)")
    listing.add_argument("--json", action="store_true", help="print the complete records as JSON")
    showing = add("show", lambda options: _print(in_lines(_load(options))), "print a record")
    verifying = add("verify", _verify, "verify a record")
    drawing = add("graph", _graph, "draw its lineage")
    for command in (showing, verifying, drawing):
        command.add_argument("target", help="a run id in the store, a file, or - for standard input")
        command.add_argument("--store", type=Path, help=_STORE)
    verifying.add_argument("--key", type=Path, action="append", help="a public key (PEM) to verify signatures with")
    drawing.add_argument("--format", choices=["svg", "mermaid"], default="svg")
    _add_tools(add)
    return parser


def _add_tools(add: Callable[[str, Callable[[Any], int], str], ArgumentParser]) -> None:
    add("capabilities", _capabilities, "print prov-capabilities.json")
    methods = add("methods", _methods, "list known method ids, or check one")
    methods.add_argument("id", nargs="?", help="a method id")
    digest = add("digest", _digest, "print the digest of a JSON file in canonical form")
    digest.add_argument("--algorithm", choices=["sha256", "sha512", "blake3"], default="sha256")
    wrap = add("wrap", _wrap, "wrap JSON or text in an mcp.envelope.v0.1")
    wrap.add_argument("--text", action="store_true", help="treat the input as text")
    manifest = add("validate-manifest", _validate_manifest, "check a prov-capabilities.json")
    for command in (digest, wrap, manifest):
        command.add_argument("target", help="a file, or - for standard input")
    keys = add("keygen", _keygen, "generate a signing key: FILE, and FILE.pub for verification")
    keys.add_argument("target", type=Path, metavar="FILE", help="the file for the private key; it must not exist")
    vector = add("check-vector", _check_vector, "check test vectors of prov-spec")
    vector.add_argument("target", type=Path, help="a vector or a folder of vectors")


def _verify(options: Any) -> int:
    keys = load_public_keys(options.key) if options.key else None
    verdicts = _verdicts(options, keys)
    _print("\n".join(str(verdict) for verdict in verdicts))
    return OK if all(verdict.ok for verdict in verdicts) else NOT_VERIFIED


def _verdicts(options: Any, keys: Any) -> tuple[Verdict, ...]:
    """Verify a run of a store with its lineage, or a file alone or against a store."""
    if options.store is None:
        return verify_value(_read(options.target), keys)
    with RecordStore(options.store, create=False) as store:
        if options.target == "-" or Path(options.target).is_file():
            return verify_value(_read(options.target), keys, store)
        if store.identity_of(options.target) is None:
            raise _no_record(options)
        return verify_run(options.target, store, keys)


def _graph(options: Any) -> int:
    graph = build_graph(_records(options))
    return _print((to_mermaid if options.format == "mermaid" else to_svg)(graph).rstrip("\n"))


def _capabilities(options: Any) -> int:
    del options
    return _print(in_lines(capabilities()))


def _list(options: Any) -> int:
    """Print a line for each run: when, which, what, who, and from how many parents."""
    with RecordStore(options.store, create=False) as store:
        runs = store.find_runs(operation=options.operation, identity=options.caller, limit=options.limit)
    for run in runs:
        if run.record is None:
            _print_error(f"NOT VERIFIED: {run.fault}", OK)
    if options.json:
        return _print(in_lines([run.record for run in runs if run.record is not None]))
    for record in (run.record for run in runs if run.record is not None):
        parents = len(record.get("parents", ()))
        words = (
            str(record.get("time", "-")),
            record["run_id"],
            record["tool"]["name"],
            f"{parents} parents" if parents else "",
        )
        print("\t".join(map(printable, words)).rstrip())
    return OK if runs else _print_error("NOT_FOUND: No matching runs", NOT_FOUND)


# --- the tools of prov-spec ---------------------------------------------------------------------------------------


def _methods(options: Any) -> int:
    if options.id is None:
        return _print("\n".join(f"{method.id:<40} {method.summary}" for method in CATALOGUE.methods.values()))
    fault = method_id_fault(options.id)
    if fault is not None:
        raise ValueError(fault)
    known = CATALOGUE.methods.get(options.id)
    return _print(f"{options.id}: {known.summary if known else 'well formed, but not in a known catalogue'}")


def _digest(options: Any) -> int:
    return _print(in_lines(digest_json(_read(options.target), options.algorithm).to_wire()))


def _wrap(options: Any) -> int:
    """Wrap the input: an envelope is unchanged, JSON goes into `result`, text is one string."""
    text = sys.stdin.read() if options.target == "-" else Path(options.target).read_text(encoding="utf-8")
    value = text if options.text else read_json(text)
    return _print(in_lines(mcp_envelope_v0_1.write(local_envelope(value, ""))))


def _keygen(options: Any) -> int:
    key, public = generate_key(), options.target.with_name(f"{options.target.name}.pub")
    for path, content, mode in ((options.target, key.to_pem(), 0o600), (public, key.public_pem(), 0o644)):
        path.touch(mode, exist_ok=False)  # before anything is in it
        path.write_bytes(content)
    return _print(f"Wrote {options.target} (signs) and {public} (verifies); key id {key.key_id}")


def _validate_manifest(options: Any) -> int:
    faults = manifest_faults(_read(options.target))
    return _print_error("\n".join(faults), NOT_VERIFIED) if faults else _print("valid")


def _check_vector(options: Any) -> int:
    verdicts = list(check_vectors(options.target, mcp_envelope_v0_1.write, mcp_envelope_v0_1.read))
    if not verdicts:
        raise LookupError(f"no vectors in {options.target}")
    _print("\n".join(map(str, verdicts)))
    return OK if not any(verdict.faults for verdict in verdicts) else NOT_VERIFIED


# --- where records come from --------------------------------------------------------------------------------------


def _load(options: Any) -> Any:
    """Load the record of a run from the store, or the JSON value of a file: a record, an envelope, or a list."""
    if options.store is not None:
        with RecordStore(options.store, create=False) as store:
            record = store.get(options.target)
        if record is None:
            raise _no_record(options)
        return record
    return _read(options.target)


def _read(target: str) -> Any:
    return read_json(sys.stdin.read() if target == "-" else Path(target).read_bytes())


def _records(options: Any) -> list[Any]:
    """Return a run of the store with its lineage, or the records of a file, which may be inside an envelope."""
    if options.store is not None:
        with RecordStore(options.store, create=False) as store:
            records = store.lineage(options.target)
        if not records:
            raise _no_record(options)
        return records
    found = _read(options.target)
    if isinstance(found, list):
        return found
    return [found["provenance"] if isinstance(found, Mapping) and "provenance" in found else found]


def _no_record(options: Any) -> LookupError:
    return LookupError(f"no record of run {options.target}")


def _print(text: str) -> int:
    print(printable_lines(text))
    return OK


def _print_error(sentence: str, code: int) -> int:
    print(printable_lines(sentence), file=sys.stderr)
    return code
