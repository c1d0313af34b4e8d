"""Validation against the schemas of prov-spec: the published ones where present, else the sample in `provenance/data`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

__all__ = ["SPEC", "schema_faults"]

SPEC = Path(__file__).parents[2] / "shared" / "data" / "prov-spec"
SAMPLE = Path(__file__).parent / "provenance" / "data"

Faults = Callable[[str, Any], list[str]]


def _load_schema(name: str) -> Any:
    published = SPEC / "spec" / "schemas" / name
    return json.loads((published if published.exists() else SAMPLE / "schemas" / name).read_text())


@pytest.fixture(scope="session")
def schema_faults() -> Faults:
    """What an independent validator says against a value, by the schema's name: `prov.record`, `mcp.envelope`."""
    validators: dict[str, Any] = {}

    def faults(name: str, value: Any) -> list[str]:
        if name not in validators:
            schema = _load_schema(f"{name}.schema.v0.1.json")
            validators[name] = jsonschema_rs.Draft202012Validator(
                schema, retriever=lambda uri: _load_schema(uri.rsplit("/", 1)[-1])
            )
        return [error.message for error in validators[name].iter_errors(value)]

    return faults
