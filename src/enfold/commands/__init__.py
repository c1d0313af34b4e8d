"""The `enfold` command, one module per command; the one room that reads the environment for itself.

Each module named in `main.COMMANDS` has a function `run(words, registry)` that gives the exit code: `words` are what
stands after the command's name, `registry` is that of a user's own script (`ops.run()`), else None. What commands share
is in `shared`, the parts of `serve` alone are in `serving`.
"""

# Imports inside functions: `enfold call` and `enfold cgi` start anew for each call, so a command loads only what it runs.
