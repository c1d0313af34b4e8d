"""Groups flat options of `from_openapi` into the values it takes, so that tests name only what they are about."""

from __future__ import annotations

from typing import Any

from enfold.operations import Policy
from enfold.sources.openapi import Service
from enfold.sources.options import Rules, Selection, Shape

_GROUPS = {"service": Service, "selection": Selection, "shape": Shape, "rules": Rules}


def openapi_options(**flat: Any) -> dict[str, Any]:
    policy = {name: flat.pop(name) for name in ("normalize", "extras") if name in flat}
    if policy:
        flat["policy"] = Policy(**policy)
    options = {}
    for group, kind in _GROUPS.items():
        fields = {name: flat.pop(name) for name in kind.__struct_fields__ if name in flat}
        if fields:
            options[group] = kind(**fields)
    return {**flat, **options}
