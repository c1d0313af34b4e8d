"""First results, kept for calls that come twice under one key: how a call ended as a value, and who may keep how many."""
