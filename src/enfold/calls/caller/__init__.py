"""The caller: pending requests, and discovery of running peers."""
