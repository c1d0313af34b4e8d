"""Fixtures of the provenance tests: schemas and test vectors of prov-spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prov_schemas import SPEC, schema_faults
from tests.provenance.vectors import write_vectors

from enfold.operations import OperationSpec

__all__ = ["schema_faults"]


@pytest.fixture(scope="session")
def prov_spec() -> Path:
    """The published schemas, vectors and examples; tests that need them are skipped where they are absent."""
    if not SPEC.exists():
        pytest.skip("the published prov-spec is not in ../shared/data")
    return SPEC


@pytest.fixture(params=["own", "published"])
def vectors(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of test vectors: our own, and the published ones where they are present."""
    if request.param == "own":
        return write_vectors(tmp_path)
    published: Path = request.getfixturevalue("prov_spec") / "spec" / "vectors"
    return published


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
