"""Search over a registry, signatures for agents, token estimates, and `select`: the fields of a result that a caller asks for."""
