"""Traces: reads those of profilers into figures, and writes one of a whole recording."""
