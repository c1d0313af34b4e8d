"""Search over a registry, signatures for agents, token estimates, and `select`: the requested fields of a result."""
