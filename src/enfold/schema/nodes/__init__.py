"""JSON Schema as a graph of nodes, and what can be said of them."""
