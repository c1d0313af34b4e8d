"""How an operation runs: the registry, the stack of middleware around a call, and the funnel around its handler."""
