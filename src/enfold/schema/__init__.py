"""JSON Schema: derived from Python types, checked, cast and repaired. The only package that inspects users' types."""

# Imports inside functions: pydantic and attrs are optional; the other modules are loaded with the first value, fault or
# reference that needs them.
