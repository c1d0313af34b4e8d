"""The worker: admission, execution and responses."""
