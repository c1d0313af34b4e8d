"""What a fleet costs: edges, a NATS cluster and workers in processes of their own, under load, overload and losses."""
