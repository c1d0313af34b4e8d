"""URI templates, read forwards: the URI that a template becomes with values for its names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

__all__ = ["expand_uri"]

_BRACES: Final = re.compile(r"\{([+?&#./;]?)([^{}]*)\}")
_RESERVED: Final = ":/?#[]@!$&'()*+,;="


def expand_uri(template: str, values: Mapping[str, Any]) -> str:
    """`{name}` with its value escaped, `{+name}` and `{name*}` with it as it is, `{?a,b}` as a query of those given."""
    return _BRACES.sub(lambda found: _expand(found[1], found[2], values), template)


def _expand(operator: str, names: str, values: Mapping[str, Any]) -> str:
    given = [(name.rstrip("*"), name.endswith("*")) for name in names.split(",") if name.rstrip("*") in values]
    safe = _RESERVED if operator in ("+", "#") else ""
    if operator in ("?", "&"):
        pairs = "&".join(f"{name}={quote(str(values[name]), safe='')}" for name, _ in given)
        return f"{operator}{pairs}" if pairs else ""
    return ",".join(quote(str(values[name]), safe=_RESERVED if spans else safe) for name, spans in given)
