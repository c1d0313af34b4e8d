"""What every surface over ASGI does: headers, hosts and origins, the client that may go, its body, the answer."""
