"""One registry of typed operations: many sources in, many surfaces out, one envelope."""
