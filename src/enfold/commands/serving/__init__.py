"""The parts of `enfold serve` alone: the socket, the server, the peers, the first lines, and starting again. No command is here."""
