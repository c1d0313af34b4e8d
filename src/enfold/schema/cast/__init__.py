"""TypeBox 0.34's `Value.Cast` over plain JSON Schema: a value goes in, one of the schema's shape comes out.

Where it leaves TypeBox, on purpose: `format` is an annotation; whole numbers of any size stay exact; property names that
JavaScript's own objects have (`constructor`) are names like others, and names that look like numbers keep their place;
a text is never cut between the halves of one character; and schemas and values that would run JavaScript out of stack
or memory are refused with the same RangeError, only earlier.
"""

from enfold.schema.cast.failure import CastError
from enfold.schema.cast.plan import cast

__all__ = ["CastError", "cast"]
