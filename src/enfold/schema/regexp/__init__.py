"""Regular expressions of ECMAScript: read, measured, and matched in two ways. `enfold.schema.pattern` is the door."""
