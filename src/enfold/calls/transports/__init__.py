"""Transports: memory, a hub and its WebSocket clients, NATS."""
