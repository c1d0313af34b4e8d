"""The worker's end: requests are let in, run under limits and answered."""
