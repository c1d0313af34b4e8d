"""Sources: each module has a function that returns an iterable of operations."""
