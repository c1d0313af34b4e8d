"""The caller's end: requests that wait, and the operations that running peers serve."""
