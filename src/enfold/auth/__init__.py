"""Who may come in: files of tokens, what a caller without a good one is told, and how guesses are slowed down."""
