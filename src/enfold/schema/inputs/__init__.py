"""What callers send: text converted without loss, and faults told by argument."""
