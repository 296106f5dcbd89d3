"""Slow, obviously right references of the fast paths, to compare with. Not for use in a run."""
