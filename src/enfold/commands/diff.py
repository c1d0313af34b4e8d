"""The command `enfold diff`: operations that two targets added, removed or changed, and which changes are breaking.

A change is breaking if a call that was accepted may now be refused, or a result may no longer match its old schema.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from enfold.commands.shared.options import TARGETS, TargetParser, parse_options
from enfold.commands.shared.output import print_json
from enfold.commands.shared.targets import Target, on_target, read_target, script_target
from enfold.errors import CallError, printable_lines
from enfold.operations import AccessControl, OperationSpec
from enfold.runtime.registry import Registry
from enfold.schema.compatibility import incompatibilities

BREAKING: Final = 1

Verdict: TypeAlias = Literal["breaking", "compatible"]

_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}


class OperationChange(msgspec.Struct, frozen=True):
    """A change of one operation, whether it is breaking, and why."""

    id: str
    change: Literal["added", "removed", "changed"]
    verdict: Verdict
    reasons: tuple[str, ...] = ()


def run(words: list[str], registry: Registry | None) -> int:
    """Print the changes from one target to the other; the exit code is 1 if one of them is breaking."""
    options = parse_options(_parser(registry), words)
    old = _specs(read_target(options.old))
    new = _specs(read_target(options.new) if registry is None else script_target(registry))
    changes = list(compare(old, new))
    is_breaking = any(change.verdict == "breaking" for change in changes)
    if options.json:
        print_json({"breaking": is_breaking, "changes": changes})
    else:
        print(printable_lines(_report(changes)))
    return BREAKING if is_breaking else 0


def _parser(registry: Registry | None) -> ArgumentParser:
    told = "Report breaking changes between two targets."
    parser = TargetParser("diff", targets=("old", "new"), rest=" NEW-TARGET", prog="enfold diff", description=told)
    parser.add_argument("old", help=TARGETS)
    if registry is None:
        parser.add_argument("new", help="the new version")
    parser.add_argument("--json", action="store_true", help="the changes as JSON")
    return parser


def _specs(target: Target) -> dict[str, OperationSpec]:
    found: dict[str, OperationSpec] = {}

    def keep(opened: Registry) -> int:
        found.update((spec.id, spec) for spec in opened.list())
        return 0

    on_target(target, keep)
    if not found:
        raise CallError("OPERATION_NOT_FOUND", f"{target.text} has no operations")
    return found


def compare(old: dict[str, OperationSpec], new: dict[str, OperationSpec]) -> Iterator[OperationChange]:
    """Compare operations by id: each that was added, removed or changed."""
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield OperationChange(name, "removed", "breaking")
        elif name not in old:
            yield OperationChange(name, "added", "compatible")
        elif old[name] != new[name]:
            reasons = tuple(_breaks(old[name], new[name]))
            yield OperationChange(
                name, "changed", "breaking" if reasons else "compatible", reasons or _harmless(old[name], new[name])
            )


def _breaks(old: OperationSpec, new: OperationSpec) -> Iterator[str]:
    """Why the new operation is incompatible with the old one."""
    if old.type is not new.type:
        yield f"type changed from {old.type.value} to {new.type.value}"
    yield from _locked_out(old.access_control, new.access_control)
    for found in incompatibilities(old.input_schema, new.input_schema):
        yield f"input: {found}"
    for found in incompatibilities(new.output_schema, old.output_schema, ignores_extras=True):
        yield f"output: {found}"
    if old.idempotent and not new.idempotent:
        yield "no longer idempotent"


def _locked_out(old: AccessControl, new: AccessControl) -> Iterator[str]:
    more = sorted(set(new.required_scopes) - set(old.required_scopes))
    if more:
        yield f"now requires the scope {', '.join(more)}"
    some, before = set(new.required_scopes_any), set(old.required_scopes_any)
    if some and not (before and before <= some) and not some & set(old.required_scopes):
        yield f"now requires one of the scopes {', '.join(sorted(some))}"
    resource = (new.resource_type, new.resource_action, new.resource_id)
    if new.resource_type is not None and resource != (old.resource_type, old.resource_action, old.resource_id):
        yield f"now requires {new.resource_action or 'access'} on a {new.resource_type}"
    if old.public and not new.public:
        yield "no longer public"


def _harmless(old: OperationSpec, new: OperationSpec) -> tuple[str, ...]:
    before, now = old.to_dict(), new.to_dict()
    return (f"{', '.join(name for name in now if before.get(name) != now[name])} changed",)


def _report(changes: list[OperationChange]) -> str:
    if not changes:
        return "Nothing changed."
    lines = []
    for change in changes:
        lines.append(
            f"{_SIGNS[change.change]} {change.id}  {change.change}{', breaking' if change.verdict == 'breaking' else ''}"
        )
        lines += [f"    {reason}" for reason in change.reasons]
    counts = Counter(change.change for change in changes)
    breaking = sum(change.verdict == "breaking" for change in changes)
    return "\n".join([*lines, f"{', '.join(f'{count} {name}' for name, count in counts.items())}; {breaking} breaking"])
