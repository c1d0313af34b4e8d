"""JSON Schema: derived from Python types, checked, cast and repaired. The only package that inspects users' types."""

# Late imports: pydantic and attrs, which are optional, and modules that a start-up without faults or references never needs.
