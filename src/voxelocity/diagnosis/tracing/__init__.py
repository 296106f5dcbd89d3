"""Traces: those of profilers read into figures, and one of a whole recording written."""
