"""Repair: what a value becomes under a schema, and the report of it."""
