"""What the tests of provenance share: the schemas and vectors of prov-spec, its own or the sample beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prov_schemas import SPEC, schema_faults

from enfold.operations import OperationSpec

__all__ = ["schema_faults"]


@pytest.fixture(scope="session")
def prov_spec() -> Path:
    """The published schemas, vectors and examples; a test that needs them is skipped without."""
    if not SPEC.exists():
        pytest.skip("the prov-spec data is not here")
    return SPEC


@pytest.fixture
def add() -> OperationSpec:
    """The spec of an operation that adds two integers."""
    integer = {"type": "integer"}
    return OperationSpec(
        name="add",
        namespace="shop",
        input_schema={"type": "object", "properties": {"x": integer, "y": integer}, "required": ["x", "y"]},
        output_schema=integer,
    )
