"""Slow, obviously right references of the fast paths, contracts, and means to compare. Not for a run."""
