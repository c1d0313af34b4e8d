"""What the tests of formats share."""

from tests.prov_schemas import schema_faults

__all__ = ["schema_faults"]
