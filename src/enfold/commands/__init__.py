"""The `enfold` command, one module per command; only this package reads the environment.

Each module named in `main.COMMANDS` has a function `run(words, registry)` that returns the exit code: `words` follow the
command's name, `registry` is that of a user's own script (`ops.run()`) or None. What commands share is in `shared`.
"""

# Imports inside functions: `enfold call` and `enfold cgi` start anew for each call, so a command loads only what it runs.
