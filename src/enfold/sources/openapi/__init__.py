"""OpenAPI services as operations: every version from 2.0 to 3.2, JSON and YAML, streams included."""

# Imports inside functions: a document in JSON needs no PyYAML, and most answers neither phrases nor streams.

from enfold.sources.openapi.source import ImportedOperations, from_openapi
from enfold.sources.options import OpenAPILimits, Service
from enfold.sources.reports import ImportReport

__all__ = ["ImportReport", "ImportedOperations", "OpenAPILimits", "Service", "from_openapi"]
