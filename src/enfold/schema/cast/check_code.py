"""Python source that does what TypeBox's `Value.Check` does at one place of a schema.

Nothing a stranger wrote becomes a name or a piece of the source: texts and numbers enter through `repr`, all else as a
constant bound to a name of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from enfold.schema.cast import kinds
from enfold.schema.cast.failure import CastError, too_deep, unknown_reference
from enfold.schema.cast.javascript import among, is_multiple, is_unique, length, matcher, own_names, own_values
from enfold.schema.cast.kinds import MISSING, Kind
from enfold.schema.cast.missing import MissingRules, extends_undefined

# All that generated source can name, beside its own functions and constants.
TOOLS: Final[dict[str, Any]] = {
    "__builtins__": {},
    **{tool.__name__: tool for tool in (type, len, id, str, int, float, dict, list, KeyError)},
    **{tool.__name__: tool for tool in (is_multiple, is_unique, length, own_names, own_values)},
    "missing": MISSING,
    "infinity": float("inf"),
}

# Terms of one `and`, and variants written out in place of a call: more of them only make the source harder to compile.
_TERMS: Final = 25
_INLINE_VARIANTS: Final = 4


class Source:
    """Writes the bodies of checks `(v, memo)`; `bind` is told the constants they name, `need` the checks they call.

    Two threads may write at the same time: nothing but a counter is kept from one call to the next.
    """

    def __init__(
        self,
        document: kinds.CastSchema,
        missing: MissingRules,
        bind: Callable[[str, Any], None],
        need: Callable[[int], None],
    ) -> None:
        self._document = document
        self._missing = missing
        self._bind = bind
        self._need = need
        self._constants = count()

    def write(self, node: Kind) -> list[str]:
        """The lines of a function that checks one kind."""
        match node:
            case kinds.Object():
                return self._object(node)
            case kinds.Record():
                return self._record(node)
            case kinds.Array():
                return self._array(node)
            case kinds.Tuple():
                return self._tuple(node)
            case kinds.Intersect():
                return self._intersect(node)
            case kinds.Union():
                return [f"return {self._any(node)}"]
            case _:
                return [f"return {self._test(node, 'v')}"]

    def write_rebuild(self, node: kinds.Object) -> list[str]:
        """The lines of a function `(v, memo, caster)` that builds an object anew: parts that fit stay as they are."""
        lines = ["result = {}"]
        for name, part in node.properties.items():
            key, kind = self._literal(name), self._constant(part)
            kept = f"x if {self._test(part, 'x')} else caster.remake({kind}, x)"
            lines += [f"x = v.get({key}, missing)", f"if x is not missing: result[{key}] = {kept}"]
            if name in node.required:
                lines.append(f"else: caster.put(result, {key}, caster.visit_missing({kind}))")
        return [*lines, "return result"]

    def _test(self, node: Kind, name: str) -> str:
        """An expression that is true where the variable `name` holds what the kind accepts."""
        match node:
            case kinds.Unknown():
                return "True"
            case kinds.Never():
                return "False"
            case kinds.Null():
                return f"{name} is None"
            case kinds.Boolean():
                return f"({name} is True or {name} is False)"
            case kinds.String():
                return self._string(node, name)
            case kinds.Number():
                return self._number(node, name)
            case kinds.Literal():
                return self._equal([node.value], name)
            case kinds.Enum():
                return self._equal(node.values, name)
            case kinds.Not():
                return f"(not {self._flat(node.inner, name)})"
            case kinds.Ref() | kinds.Import():
                return self._reference(node, name)
            case kinds.Union() if len(node.variants) <= _INLINE_VARIANTS:
                return self._any(node, name)
            case _:
                return self._call(node, name)

    def _flat(self, node: Kind, name: str) -> str:
        """As `_test`, but never nested: the source of a deep schema must not be deep."""
        return self._test(node, name) if is_leaf(node) or isinstance(node, kinds.Reference) else self._call(node, name)

    def _call(self, node: Kind, name: str) -> str:
        self._need(node.number)
        return f"check_{node.number}({name}, memo)"

    def _reference(self, node: kinds.Reference, name: str) -> str:
        target = self._document.follow(node)
        if isinstance(target, kinds.Reference):
            return f"{self._constant(_failing(target))}({name})"
        return self._test(target, name) if is_leaf(target) else self._call(target, name)

    def _any(self, node: kinds.Union, name: str = "v") -> str:
        return f"({' or '.join(self._flat(variant, name) for variant in node.variants)})"

    def _string(self, node: kinds.String, name: str) -> str:
        tests = [f"type({name}) is str"]
        if node.minimum_length is not None:
            least = self._literal(node.minimum_length)
            tests.append(f"(len({name}) >= {least} or length({name}) >= {least})")
        if node.maximum_length is not None:
            most = self._literal(node.maximum_length)
            tests.append(f"len({name}) <= {most} and ({name}.isascii() or length({name}) <= {most})")
        if node.pattern is not None:
            tests.append(f"{self._constant(matcher(node.pattern))}({name})")
        return _all(tests)

    def _number(self, node: kinds.Number, name: str) -> str:
        fraction = f"{name}.is_integer()" if node.integer else f"-infinity < {name} < infinity"
        tests = [f"(type({name}) is int or type({name}) is float and {fraction})"]
        limits = ((">", node.above), ("<", node.below), (">=", node.minimum), ("<=", node.maximum))
        tests += [f"{name} {sign} {self._literal(limit)}" for sign, limit in limits if limit is not None]
        if node.multiple_of is not None:
            tests.append(f"is_multiple({name}, {self._literal(node.multiple_of)})")
        return _all(tests)

    def _equal(self, values: list[Any] | tuple[Any, ...], name: str) -> str:
        texts = [value for value in values if isinstance(value, str)]
        numbers = [value for value in values if type(value) in (int, float)]
        tests = [f"{name} is {value}" for value in (None, True, False) if any(value is other for other in values)]
        if texts:
            tests.append(f"(type({name}) is str and {name} {self._among(texts)})")
        if numbers:
            tests.append(f"((type({name}) is int or type({name}) is float) and {name} {self._among(numbers)})")
        containers = [value for value in values if isinstance(value, dict | list)]
        if containers:
            tests.append(f"{self._constant(among(containers))}({name})")
        return f"({' or '.join(tests) or 'False'})"

    def _among(self, values: list[Any]) -> str:
        return f"== {self._literal(values[0])}" if len(values) == 1 else f"in {self._constant(frozenset(values))}"

    def _object(self, node: kinds.Object) -> list[str]:
        lines = ["if type(v) is not dict: return False", *self._sizes(node.minimum_size, node.maximum_size)]
        if node.extra is False and not self._missing.may_throw:
            lines.append(f"if len(v) > {len(node.properties)}: return False")
        required: list[tuple[str, Kind]] = []
        for name, part in node.properties.items():
            if name in node.required and self._missing.never_fits(part):
                required.append((name, part))
            else:
                lines += self._required(required) + self._property(node, name, part)
                required = []
        return [*lines, *self._required(required), *self._extras(node), "return True"]

    def _required(self, properties: list[tuple[str, Kind]]) -> list[str]:
        """Properties that have to be there, fetched together: one `try` costs less than many questions."""
        lines: list[str] = []
        size = 1 if self._missing.may_throw else _TERMS
        for start in range(0, len(properties), size):
            some = list(enumerate(properties[start : start + size]))
            lines += ["try:", *(f" x{i} = v[{self._literal(name)}]" for i, (name, _) in some)]
            lines += ["except KeyError: return False"]
            tests = [self._test(part, f"x{i}") for i, (_, part) in some]
            lines += _return_unless([test for test in tests if test != "True"])
        return lines

    def _property(self, node: kinds.Object, name: str, part: Kind) -> list[str]:
        """A property that may be absent, because it is optional or because its kind accepts even that."""
        test = self._test(part, "x")
        absent = "" if name in node.required else "x is not missing and "
        if test == "True":
            return []
        key = self._literal(name)
        lines = [f"x = v.get({key}, missing)", f"if {absent}not {test}: return False"]
        if name in node.required and extends_undefined(part):
            lines.append(f"if {key} not in v: return False")
        return lines

    def _extras(self, node: kinds.Object) -> list[str]:
        known = self._constant(frozenset(node.properties))
        if node.extra is False:
            # TypeBox counts before it compares, and a `required` that names strangers is counted too.
            counted = f"len(v) != {len(node.properties)} and " if node.required_count == len(node.properties) else ""
            return [f"if {counted}not v.keys() <= {known}: return False"]
        if isinstance(node.extra, Kind) and not isinstance(node.extra, kinds.Unknown):
            test = self._test(node.extra, "x")
            return ["for k, x in v.items():", f" if k not in {known} and not {test}: return False"]
        return []

    def _record(self, node: kinds.Record) -> list[str]:
        lines = ["if type(v) is not dict: return False", *self._sizes(node.minimum_size, node.maximum_size)]
        test = self._test(node.values, "x")
        if node.pattern is None:
            if test != "True":
                lines += ["for x in v.values():", f" if not {test}: return False"]
            return [*lines, "return True"]
        other = self._test(node.extra, "x") if isinstance(node.extra, Kind) else str(node.extra)
        fits = self._constant(matcher(node.pattern))
        lines += ["for k, x in v.items():", f" if not ({test} if {fits}(k) else {other}): return False"]
        return [*lines, "return True"]

    def _array(self, node: kinds.Array) -> list[str]:
        lines = ["if type(v) is not list: return False", *self._sizes(node.minimum_size, node.maximum_size)]
        test = self._test(node.items, "x")
        if test != "True":
            lines += ["for x in v:", f" if not {test}: return False"]
        if node.unique:
            lines.append("if not is_unique(v): return False")
        return [*lines, *self._contains(node), "return True"]

    def _contains(self, node: kinds.Array) -> list[str]:
        if node.contains is None:
            # Without `contains`, TypeBox counts items of type Never.
            counted = node.minimum_contains is not None or node.maximum_contains is not None
            return ["return False"] if counted else []
        lines = ["found = 0", "for x in v:", f" if {self._test(node.contains, 'x')}: found += 1"]
        lines.append("if found == 0: return False")
        if node.minimum_contains is not None:
            lines.append(f"if found < {self._literal(node.minimum_contains)}: return False")
        if node.maximum_contains is not None:
            lines.append(f"if found > {self._literal(node.maximum_contains)}: return False")
        return lines

    def _tuple(self, node: kinds.Tuple) -> list[str]:
        lines = [f"if type(v) is not list or len(v) != {len(node.items)}: return False"]
        for i, part in enumerate(node.items):
            test = self._test(part, "x")
            if test != "True":
                lines += [f"x = v[{i}]", f"if not {test}: return False"]
        return [*lines, "return True"]

    def _intersect(self, node: kinds.Intersect) -> list[str]:
        if node.unevaluated is True:
            return [*_return_unless([self._test(member, "v") for member in node.members]), "return True"]
        lines = [f"fits = {_all([self._test(member, 'v') for member in node.members])}"]
        named = self._constant(matcher(_key_pattern(node)))
        if node.unevaluated is False:
            lines += ["for k in own_names(v):", f" if not {named}(k): return False"]
        elif isinstance(node.unevaluated, Kind):
            lines += ["for k, x in own_values(v):"]
            lines += [f" if not ({named}(k) or {self._test(node.unevaluated, 'x')}): return False"]
        return [*lines, "return fits"]

    def _sizes(self, least: float | None, most: float | None) -> list[str]:
        lines = [] if least is None else [f"if len(v) < {self._literal(least)}: return False"]
        return lines if most is None else [*lines, f"if len(v) > {self._literal(most)}: return False"]

    def _literal(self, value: Any) -> str:
        """How a value of the schema is written in the source: by `repr` if that is plain, else as a bound constant."""
        if isinstance(value, str) or (type(value) is int and abs(value) < 2**63):
            return repr(value)
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"constant_{next(self._constants)}"
        self._bind(name, value)
        return name


def is_leaf(node: Kind) -> bool:
    return isinstance(
        node,
        kinds.Unknown
        | kinds.Never
        | kinds.Null
        | kinds.Boolean
        | kinds.String
        | kinds.Number
        | kinds.Literal
        | kinds.Enum,
    )


def _all(tests: list[str]) -> str:
    return f"({' and '.join(tests)})"


def _return_unless(tests: list[str]) -> list[str]:
    return [f"if not {_all(tests[i : i + _TERMS])}: return False" for i in range(0, len(tests), _TERMS)]


def _failing(reference: kinds.Reference) -> Callable[[Any], bool]:
    """A check that raises, for a reference to nothing or to itself: TypeBox finds out only when it gets there."""

    def fail(_: Any) -> bool:
        raise dead_reference(reference)

    return fail


def dead_reference(reference: kinds.Reference) -> CastError:
    if isinstance(reference, kinds.Ref) and reference.slot is None:
        return unknown_reference(reference.name)
    return too_deep()


def _key_pattern(node: kinds.Intersect) -> str:
    """The pattern TypeBox makes of the property names it can see: a name is taken as the pattern it happens to be."""
    return f"^({'|'.join(f'({key})' for key in _keys(node))})$"


def _keys(node: Kind) -> list[str]:
    match node:
        case kinds.Intersect():
            return [key for member in node.members for key in _keys(member)]
        case kinds.Union():
            first, *others = map(_keys, node.variants)
            return [key for key in first if all(key in other for other in others)]
        case kinds.Tuple():
            return [str(i) for i in range(len(node.items))]
        case kinds.Array():
            return ["[number]"]
        case kinds.Object():
            return list(node.properties)
        case kinds.Record():
            return [_without_anchors(node.pattern or "^(.*)$")]
        case _:
            return []


def _without_anchors(pattern: str) -> str:
    return pattern[1:-1] if pattern.startswith("^") and pattern.endswith("$") else pattern
