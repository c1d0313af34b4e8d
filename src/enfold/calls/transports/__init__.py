"""What carries messages between peers: memory, a hub and its clients, NATS; an address opens one."""
