"""Finding operations by what they do: a search index over a registry, and signatures small enough to call at once."""

from enfold.finding.finder import Description, Finder, Found
from enfold.finding.signatures import outline, signature

__all__ = ["Description", "Finder", "Found", "outline", "signature"]
