"""The parts of `enfold serve`."""
