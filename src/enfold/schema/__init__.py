"""JSON Schema: made from Python types, checked, cast, repaired. The only folder that looks into users' types."""

# Imports inside functions: pydantic and attrs for types of theirs; the rest with the first value, fault or reference that needs it.
