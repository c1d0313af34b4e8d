"""TypeBox's `Value.Check`: a function for each place of a schema, compiled when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from enfold.schema.cast.check_code import TOOLS, Source
from enfold.schema.cast.kinds import Array, CastSchema, Intersect, Kind, Object, Reference, Union, children
from enfold.schema.cast.missing import MissingRules

# Answers already found in one cast, by kind and identity of the value, each with the value so that no other takes its
# identity. None where a schema cannot ask the same question exponentially often.
Memo = dict[tuple[int, int], tuple[bool, Any]] | None
Check = Callable[[Any, Memo], bool]
Rebuild = Callable[[dict[str, Any], Memo, Any], dict[str, Any]]


class Checks(dict[int, Check]):
    """The checks of one document by the number of their kind. Large schemas are common, their rarer parts are not used."""

    def __init__(self, document: CastSchema) -> None:
        super().__init__()
        self._nodes = {node.number: node for node in _all_nodes(document)}
        self.count = len(self._nodes)
        self.needs_memo = any(map(_is_ambiguous, self._nodes.values()))
        may_throw = any(isinstance(node, Intersect) and node.unevaluated is not True for node in self._nodes.values())
        self._namespace = dict(TOOLS)
        self.missing = MissingRules(document, may_throw=may_throw)
        self._source = Source(document, self.missing, bind=self._namespace.__setitem__, need=self._need)
        self._remembered = {node.number for node in document.targets} if self.needs_memo else set()
        self._by_source: dict[str, Check] = {}
        self._built: set[int] = set()
        self._rebuilds: dict[int, Rebuild] = {}

    def __missing__(self, number: int) -> Check:
        node = self._nodes[number]
        body = self._source.write(node)
        self[number] = check = self._compile(number, body) if number in self._remembered else self._alike(number, body)
        return check

    def rebuild(self, node: Object) -> Rebuild:
        """A function that builds an object of this kind from one that is not valid."""
        known = self._rebuilds.get(node.number)
        if known is None:
            body = self._source.write_rebuild(node)
            known = self._rebuilds[node.number] = self._define(f"rebuild_{node.number}", "v, memo, caster", body)
        return known

    def is_worth_compiling(self, node: Object) -> bool:
        """Whether an object of this kind was built before: compiling takes longer than building one step by step."""
        is_known = node.number in self._built
        self._built.add(node.number)
        return is_known

    def _alike(self, number: int, body: list[str]) -> Check:
        """Places with the same source share one function: a schema has many that are just a string."""
        text = "\n".join(body)
        if text not in self._by_source:
            self._by_source[text] = self._compile(number, body)
        self._namespace[f"check_{number}"] = self._by_source[text]
        return self._by_source[text]

    def _compile(self, number: int, body: list[str]) -> Check:
        check: Check
        if number not in self._remembered:
            check = self._define(f"check_{number}", "v, memo", body)
        else:
            self._define(f"first_{number}", "v, memo", body)
            check = self._define(f"check_{number}", "v, memo", _remembering(number))
        return check

    def _define(self, name: str, parameters: str, body: list[str]) -> Any:
        lines = [f"def {name}({parameters}):", *(f" {line}" for line in body)]
        # What makes this safe is said at the top of `source`, and kept by its `_literal` and `_constant`.
        exec(compile("\n".join(lines), "<schema check>", "exec"), self._namespace)  # noqa: S102
        return self._namespace[name]

    def _need(self, number: int) -> None:
        """Puts something in a function's place that makes way for it at the first call."""

        def first_call(value: Any, memo: Memo) -> bool:
            return self[number](value, memo)

        self._namespace.setdefault(f"check_{number}", first_call)


def _remembering(number: int) -> list[str]:
    return [
        f"key = ({number}, id(v))",
        "known = memo.get(key)",
        "if known is None:",
        f" known = memo[key] = (first_{number}(v, memo), v)",
        "return known[0]",
    ]


def _all_nodes(document: CastSchema) -> Iterator[Kind]:
    waiting = [document.root, *document.targets]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node.number not in seen:
            seen.add(node.number)
            yield node
            waiting.extend(children(node))


def _is_ambiguous(node: Kind) -> bool:
    """Whether one value may be checked more than once by what a reference points to, and so exponentially often."""
    return isinstance(node, Union | Intersect | Array) and sum(map(_has_reference, children(node))) > 1


def _has_reference(node: Kind) -> bool:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Reference):
            return True
        waiting.extend(children(node))
    return False
