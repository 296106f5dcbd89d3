"""Runs a command under the recorder: whether it can be watched, how it runs, and what the machine did meanwhile."""
