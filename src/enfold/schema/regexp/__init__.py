"""Regular expressions of ECMAScript: read, measured, and matched in two ways. `enfold.schema.nodes.pattern` is the door."""
