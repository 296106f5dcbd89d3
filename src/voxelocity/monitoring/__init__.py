"""Samples a machine while a program runs, and draws what it saw."""
