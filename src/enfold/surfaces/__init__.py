"""Surfaces: each module serves a registry and is independent of the others (except `http`, which serves the document of `openapi`)."""
