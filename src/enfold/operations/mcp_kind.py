"""How MCP clients see an operation: as a tool, resource or prompt; and the URI templates of resources.

`meta["mcp"]` of a spec holds the kind, URI, icons and annotations. In a template `{name}` matches one path segment,
`{+name}` and `{name*}` any number of segments, `{?a,b}` query parameters. Templates and URIs come from other parties, so
neither may make matching slow: see `_pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from enfold.operations.spec import OperationSpec

# `updates` tells when the resources of its namespace change: a subscription, whose input is a URI.
Kind: TypeAlias = Literal["tool", "resource", "prompt", "completion", "updates"]

META: Final = "mcp"
KINDS: Final = ("tool", "resource", "prompt", "completion", "updates")


def kind_of(spec: OperationSpec) -> Kind:
    """Return what the operation is on an MCP server; a tool by default."""
    kind = facts_of(spec).get("kind", "tool")
    return kind if kind in KINDS else "tool"


def facts_of(spec: OperationSpec) -> dict[str, Any]:
    """Return the MCP properties of the operation: its kind, a resource's URI, annotations and icons."""
    facts = spec.meta.get(META)
    return facts if isinstance(facts, dict) else {}


def with_facts(kind: Kind, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an operation of this kind, with its other MCP properties."""
    said = {name: value for name, value in facts.items() if value is not None}
    return {**options, "meta": {**(options.get("meta") or {}), META: {"kind": kind, **said}}}


def check_template(uri: str, spec: OperationSpec) -> None:
    """Refuse a template with a name that the function does not take, before a reader of the resource finds out."""
    match_uri(uri, "")  # raises for an invalid template
    arguments = spec.input_schema.get("properties", {})
    unknown = [name for name in names_of(uri) if name not in arguments] if is_template(uri) else []
    if unknown:
        raise ValueError(f"{spec.id} has no argument {unknown[0]!r}, which {uri} names")


MAX_LENGTH: Final = 2048  # of a template, and of a URI without its query; a longer URI fits no template
MAX_NAMES: Final = 32  # in one template

# Texts, which `re` compiles with the first template: most programs have none.
_BRACES: Final = r"\{([+?&#./;]?)([^{}]*)\}"
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*\*?"
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]*:"
_RESERVED: Final = ":/?#[]@!$&'()*+,;="


def is_template(uri: str) -> bool:
    return "{" in uri


def literal_scheme(template: str) -> str:
    """Return the scheme that all URIs of a template share, with its colon; "" if it is variable."""
    found = re.match(_SCHEME, template)
    return found[0] if found else ""


def names_of(template: str) -> tuple[str, ...]:
    """Return the variable names of a template in order, each once."""
    found = (name.rstrip("*") for _, names in re.findall(_BRACES, template) for name in names.split(","))
    return tuple(dict.fromkeys(found))


def match_uri(template: str, uri: str) -> dict[str, str] | None:
    """Return the values with which the template gives this URI, or None; raise ValueError for an invalid template."""
    return _matcher(template)(uri)


def expand_uri(template: str, values: Mapping[str, Any]) -> str:
    """Expand a template: `{name}` escaped, `{+name}` and `{name*}` as they are, `{?a,b}` as a query."""
    return re.sub(_BRACES, lambda found: _expand(found[1], found[2], values), template)


def _expand(operator: str, names: str, values: Mapping[str, Any]) -> str:
    from urllib.parse import quote  # slow to import, and only for servers with templates

    given = [(name.rstrip("*"), name.endswith("*")) for name in names.split(",") if name.rstrip("*") in values]
    safe = _RESERVED if operator in ("+", "#") else ""
    if operator in ("?", "&"):
        pairs = "&".join(f"{name}={quote(str(values[name]), safe='')}" for name, _ in given)
        return f"{operator}{pairs}" if pairs else ""
    return ",".join(quote(str(values[name]), safe=_RESERVED if spans else safe) for name, spans in given)


@lru_cache(maxsize=1024)
def _matcher(template: str) -> Callable[[str], dict[str, str] | None]:
    from urllib.parse import parse_qs, unquote  # slow to import, and only for servers with templates

    _check_size(template)
    path, query_names = _split(template)
    names, pattern = _pattern(path)

    def match(uri: str) -> dict[str, str] | None:
        address, _, query = uri.partition("?") if query_names else (uri, "", "")
        found = pattern.fullmatch(address[::-1]) if len(address) <= MAX_LENGTH else None
        if found is None:
            return None
        values: dict[str, str] = {}
        for name, reversed_value in zip(names, reversed(found.groups()), strict=True):
            value = unquote(reversed_value[::-1])
            if values.setdefault(name, value) != value:  # a name that stands twice has one value
                return None
        given = parse_qs(query, keep_blank_values=True) if query else {}
        return {**values, **{name: given[name][-1] for name in query_names if name in given}}

    return match


def _check_size(template: str) -> None:
    if len(template) > MAX_LENGTH:
        raise ValueError(f"{template[:40]!r}… is longer than {MAX_LENGTH} characters")
    if len(names_of(template)) > MAX_NAMES:
        raise ValueError(f"{template[:40]!r}… has more than {MAX_NAMES} names")


def _split(template: str) -> tuple[str, tuple[str, ...]]:
    """Split a template into the part before its query and the names in the query."""
    names: list[str] = []

    def take(found: re.Match[str]) -> str:
        if found[1] not in ("?", "&"):
            return found[0]
        names.extend(found[2].split(","))
        return ""

    return re.sub(_BRACES, take, template), tuple(names)


def _pattern(path: str) -> tuple[list[str], re.Pattern[str]]:
    """Return the names of a path in order, and a pattern for a reversed URI with a group per name, last first.

    A name takes as little as it can until the text before it, and never tries again (`(?>…)`); one of any number of parts
    tries again only until what stands between it and the next such name fits. That is enough to find values if there are
    any, because names have text between them; and it takes no longer than the square of the URI's length. It is read from
    the end so that the first name gets the most: `{name}.{ending}` of `a.tar.gz`.
    """
    names, texts, groups = _parts(path)
    pattern = re.escape(texts.pop()[::-1])
    is_open = False  # a block that begins with a name of any number of parts
    for place in range(len(groups) - 1, -1, -1):
        text = re.escape(texts[place][::-1])
        if place == 0:
            pattern += (")" if is_open and groups[0] == "." else "") + f"({groups[0]}+){text}"
        elif groups[place] == ".":
            pattern += (")" if is_open else "") + f"(?>(.+?){text}"
            is_open = True
        else:
            pattern += f"(?>({groups[place]}+?){text})"
    if is_open and groups[0] != ".":
        pattern += "\\Z)"
    return names, re.compile(pattern, re.DOTALL)


def _parts(path: str) -> tuple[list[str], list[str], list[str]]:
    """Return the names of a path, the texts around them, and the characters that each name may match."""
    names: list[str] = []
    texts: list[str] = []
    groups: list[str] = []
    end = 0
    for found in re.finditer(_BRACES, path):
        if names and found.start() == end:
            raise ValueError(f"{path!r}: two variables need some text between them")
        texts.append(path[end : found.start()])
        groups.append(_group(found[1], found[2], path))
        names.append(found[2].rstrip("*"))
        end = found.end()
    return names, [*texts, path[end:]], groups


def _group(operator: str, name: str, template: str) -> str:
    """Return the characters that a name may match."""
    if operator not in ("", "+") or not re.fullmatch(_NAME, name):
        raise ValueError(f"{template!r}: {{{operator}{name}}} is not supported: use {{name}}, {{+name}} or {{?a,b}}")
    return "." if operator == "+" or name.endswith("*") else "[^/?#]"
