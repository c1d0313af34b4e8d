"""Python types: read into shapes, described as JSON Schema, and read from JSON by msgspec or pydantic."""
