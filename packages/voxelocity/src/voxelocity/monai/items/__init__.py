"""Items after the fixed part of their chain, kept: in memory, copy-on-write, or in files. Knows no transforms."""
