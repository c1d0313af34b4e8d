"""Idempotency keys: stores of first results, outcomes as values, and quotas by identity."""
