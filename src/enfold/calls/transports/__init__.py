"""What carries messages between peers: memory, a hub and its spokes, NATS; an address opens one."""
