"""Ways out: each module serves a registry, and knows no other (but `http`, which serves the document of `openapi`)."""
