"""Checks as generated Python: whether a value is valid, and whether it may pass as it is."""
