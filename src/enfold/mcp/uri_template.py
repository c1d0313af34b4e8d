"""URI templates, read backwards: which values a URI has for the names in braces.

`{name}` stands for one part of a path, `{+name}` and `{name*}` for any number of parts, `{?a,b}` for a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = ["is_template", "match_uri", "names_of"]

_BRACES: Final = re.compile(r"\{([+?&#./;]?)([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


def is_template(uri: str) -> bool:
    return "{" in uri


def names_of(template: str) -> tuple[str, ...]:
    """The names a template has, in their order."""
    return tuple(name.rstrip("*") for _, names in _BRACES.findall(template) for name in names.split(","))


def match_uri(template: str, uri: str) -> dict[str, str] | None:
    """The values that make the template this URI; None where no values do."""
    return _matcher(template)(uri)


@lru_cache(maxsize=1024)
def _matcher(template: str) -> Callable[[str], dict[str, str] | None]:
    from urllib.parse import parse_qs, unquote

    path, query_names = _split(template)
    pattern = re.compile(_pattern(path), re.DOTALL)

    def match(uri: str) -> dict[str, str] | None:
        address, _, query = uri.partition("?") if query_names else (uri, "", "")
        found = pattern.fullmatch(address)
        if found is None:
            return None
        values = {name: unquote(value) for name, value in found.groupdict().items()}
        given = parse_qs(query, keep_blank_values=True) if query else {}
        return {**values, **{name: given[name][-1] for name in query_names if name in given}}

    return match


def _split(template: str) -> tuple[str, tuple[str, ...]]:
    """The template without its query, and the names in that."""
    names: list[str] = []

    def take(found: re.Match[str]) -> str:
        if found[1] not in ("?", "&"):
            return found[0]
        names.extend(found[2].split(","))
        return ""

    return _BRACES.sub(take, template), tuple(names)


def _pattern(path: str) -> str:
    parts: list[str] = []
    end = 0
    for found in _BRACES.finditer(path):
        parts.append(re.escape(path[end : found.start()]))
        parts.append(_group(found[1], found[2], path))
        end = found.end()
    return "".join(parts) + re.escape(path[end:])


def _group(operator: str, name: str, template: str) -> str:
    if operator not in ("", "+") or not _NAME.fullmatch(name):
        raise ValueError(f"{template!r}: {{{operator}{name}}} is not understood: use {{name}}, {{+name}} or {{?a,b}}")
    spans = operator == "+" or name.endswith("*")
    return f"(?P<{name.rstrip('*')}>{'.+' if spans else '[^/?#]+'})"
