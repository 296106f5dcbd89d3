"""Limits of tests: only what would never end is ended, however busy the machine is."""

HANGS_S = 1500.0
"""Seconds after which something that a test waits for counts as hanging."""
