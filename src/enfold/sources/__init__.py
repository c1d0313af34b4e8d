"""Where operations come from: each module gives a function whose result is an iterable of operations."""
